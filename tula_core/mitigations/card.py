"""`MitigationCard`: what is known of a method before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tula_core.records import MitigationEffect

Place = Literal["learning rate", "batch size", "optimizer", "normalization", "averaging", "inputs", "noise", "steps"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """The default of a hyperparameter and the values that make sense, whole numbers only where ``whole``."""

    default: float
    low: float
    high: float
    meaning: str
    whole: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class MitigationCard:
    """What `tula list` says of a method, and what it can be combined with.

    Attributes
    ----------
    summary, source
        One line, and the paper.
    place
        Where it takes hold.
    entry
        ``module:Class`` of its hook, None for what the learning-rate rule does alone.
    options
        Its hyperparameters.
    step_cost
        Time of a step over that of a plain one; 1 where it costs nothing that shows.
    cost_option
        Option that the time of a step is multiplied by beside, None for none.
    parameter_copies
        Copies of the trained parameters by which it raises each process's peak, beside the optimizer's state; where
        it keeps less for good, what a step of it needs for a moment was measured on a network of equal layers.
    slots
        Numbers that the optimizer it brings keeps for each parameter, by the recipe's optimizer, in place of those that
        the recipe's own would keep.
    least_processes, precisions
        Processes that it needs at least; precisions that it can train in, empty for all.
    excludes
        Methods it makes no sense with, each with the reason.
    optimizers
        Recipe optimizers it is meant for, empty for all.
    rising
        Options whose values have to rise in this order.
    effect
        What it is known to do to learning, relative to pilots that train with the optimizer's rule of the rate and its
        warm-up; None where nothing is. `tula_core.mitigations.evidence` says where each number is from.
    needs_batch_norm, needs_classes, needs_images
        Whether it does something only to batch norm, only to class labels, only to images with a label each.
    """

    summary: str
    source: str
    place: Place
    entry: str | None = None
    options: Mapping[str, Bounds] = field(default_factory=dict)
    step_cost: float = 1.0
    cost_option: str | None = None
    parameter_copies: float = 0.0
    slots: Mapping[str, int] = field(default_factory=dict)
    least_processes: int = 1
    precisions: frozenset[str] = frozenset()
    excludes: Mapping[str, str] = field(default_factory=dict)
    optimizers: frozenset[str] = frozenset()
    rising: tuple[str, ...] = ()
    effect: MitigationEffect | None = None
    needs_batch_norm: bool = False
    needs_classes: bool = False
    needs_images: bool = False


def excluding(own: str, *groups: tuple[str, str]) -> dict[str, str]:
    """Return the reason why a method does not go with others, by their names; itself is left out.

    Parameters
    ----------
    groups
        Pairs of names, with spaces between, and the reason of them all.

    >>> excluding("a", ("a b", "too bright"), ("c", "too dark"))
    {'b': 'too bright', 'c': 'too dark'}
    """
    return {name: reason for names, reason in groups for name in names.split() if name != own}
