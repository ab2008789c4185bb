"""Ways to keep a small batch's accuracy at a large batch: each a pure function and a thin hook, its card beside it.

`MITIGATIONS` lists them with their cards; `resolve` turns a job's ``mitigation`` into names that go together, `make`
turns names into the hooks of one run. With ``mitigation: auto`` a plan chooses among those of `packages_of`.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tula_core.errors import InputError, nearest
from tula_core.job import Job, Recipe
from tula_core.mitigations.card import Bounds, MitigationCard
from tula_core.mitigations.packages import Packages
from tula_core.mitigations.registry import MITIGATIONS
from tula_core.records import MitigationEffect
from tula_core.records.corrections import MethodCorrection

if TYPE_CHECKING:
    from tula_core.mitigations.compose import Methods
    from tula_core.mitigations.method import Setting

__all__ = [
    "MITIGATIONS",
    "Bounds",
    "MitigationCard",
    "Options",
    "Packages",
    "check_options",
    "check_together",
    "complete",
    "effects_of",
    "kept_copies",
    "make",
    "options_of",
    "packages_of",
    "refusal",
    "resolve",
    "step_cost",
    "taught",
]

Options = Mapping[str, Mapping[str, float]]


def resolve(job: Job) -> tuple[str, ...]:
    """Return the names of the methods that the job names; for ``auto`` those that its pilots train with.

    Raises
    ------
    InputError
        A name is unknown, two methods exclude each other, a method is not meant for the recipe's optimizer, or an
        option is unknown or out of its bounds.
    """
    return packages_of(job).pilots


def packages_of(job: Job) -> Packages:
    """Return the packages of methods that candidates of a job are trained with: one, or with ``auto`` several.

    Raises
    ------
    InputError
        As `resolve` does.
    """
    if job.mitigation == "auto":
        found = Packages.auto(job.recipe.optimizer)
        check_options(found.names, job.mitigation_options)
        return found
    names: tuple[str, ...] = ()
    if job.mitigation != "none":
        given = (job.mitigation,) if isinstance(job.mitigation, str) else tuple(job.mitigation)
        names = tuple(dict.fromkeys(given))
        check_together(names, job.recipe.optimizer)
    check_options(names, job.mitigation_options)
    _check_world(names, job)
    return Packages.alone(names)


def _check_world(names: Sequence[str], job: Job) -> None:
    most = job.cluster.nodes * job.cluster.processes_per_node
    for name in names:
        if (reason := refusal(name, most, job.recipe.precision)) is not None:
            raise InputError(f"mitigation: {reason}. Leave the method out, or change cluster or recipe.precision.")


def refusal(name: str, processes: int, precision: str) -> str | None:
    """Return why a method cannot train on so many processes or in a precision, None where it can."""
    card = MITIGATIONS[name]
    if processes < card.least_processes:
        return f"{name!r} needs {card.least_processes} processes at least, and there is {processes}"
    if card.precisions and precision not in card.precisions:
        return f"{name!r} trains in {' and '.join(sorted(card.precisions))}, and the precision is {precision}"
    return None


def check_together(names: Sequence[str], optimizer: str) -> None:
    """Refuse methods that make no sense together or with the optimizer.

    Raises
    ------
    InputError
        Names the two methods and the reason.
    """
    for name in names:
        card = MITIGATIONS[name]
        for other in names:
            reason = card.excludes.get(other)
            if reason is not None:
                raise InputError(
                    f"mitigation: {name!r} and {other!r} do not go together: {reason}. Keep one of the two."
                )
        if card.optimizers and optimizer not in card.optimizers:
            raise InputError(
                f"mitigation: {name!r} is meant for {' and '.join(sorted(card.optimizers))}, the recipe's optimizer is "
                f"{optimizer!r}. Leave the method out or change recipe.optimizer."
            )


def check_options(names: Sequence[str], options: Options) -> None:
    """Refuse options of methods that are not used, unknown options and values out of bounds.

    Raises
    ------
    InputError
        Names the option, the value and what is allowed.
    """
    for method, values in options.items():
        if method not in names:
            used = ", ".join(names) or "none"
            raise InputError(
                f"mitigation_options.{method}: the job does not use this method (it uses {used}). "
                "Leave it out or name it under mitigation."
            )
        known = MITIGATIONS[method].options
        for name, value in values.items():
            if name not in known:
                hint = nearest(name, known) if known else "It has none."
                raise InputError(f"mitigation_options.{method}.{name}: unknown. {hint}")
            bounds = known[name]
            if not bounds.low <= value <= bounds.high:
                raise InputError(
                    f"mitigation_options.{method}.{name}: {value:g} is out of bounds, {bounds.meaning} is from "
                    f"{bounds.low:g} to {bounds.high:g}. The default is {bounds.default:g}."
                )
            if bounds.whole and value != int(value):
                raise InputError(
                    f"mitigation_options.{method}.{name}: {value:g} is not a whole number, {bounds.meaning} is one. "
                    f"The default is {bounds.default:g}."
                )
        _check_rising(method, options)


def _check_rising(method: str, options: Options) -> None:
    complete_options, names = options_of(method, options), MITIGATIONS[method].rising
    for lower, upper in itertools.pairwise(names):
        if complete_options[lower] >= complete_options[upper]:
            raise InputError(
                f"mitigation_options.{method}.{lower}: {complete_options[lower]:g} is not below {upper}, "
                f"{complete_options[upper]:g}. Lower it, or raise {upper}."
            )


def options_of(name: str, given: Options) -> dict[str, float]:
    """Return all options of a method: its card's defaults, overridden by those given."""
    defaults = {option: bounds.default for option, bounds in MITIGATIONS[name].options.items()}
    return {**defaults, **given.get(name, {})}


def complete(names: Sequence[str], given: Options) -> dict[str, dict[str, float]]:
    """Return all options of several methods, by name."""
    return {name: options_of(name, given) for name in names}


def effects_of(found: Packages) -> dict[str, MitigationEffect]:
    """Return what is known of the methods of packages that the pilots did not train with, by their names.

    That is what their cards say, refined by what outcomes taught where `taught` added it. A job that names its methods
    itself has none: its pilots trained by its own rule of the rate, not by the one that the cards are relative to.
    """
    cards = {name: MITIGATIONS[name].effect for name in found.names if name not in found.pilots}
    known = {name: effect for name, effect in cards.items() if effect is not None} if found.several else {}
    return {name: found.learnt[name].refine() if name in found.learnt else effect for name, effect in known.items()}


def taught(found: Packages, learnt: Mapping[str, MethodCorrection]) -> Packages:
    """Return packages with what outcomes taught of their methods.

    What was learnt beside another card than today's is left out: the card may hold the same evidence by now.
    """
    known = effects_of(found)
    return replace(found, learnt={name: each for name, each in learnt.items() if known.get(name) == each.card})


def step_cost(names: Sequence[str], given: Options) -> float:
    """Return the computation of a step with these methods over that of a plain one, the product of their cards'."""
    return math.prod(_step_cost(name, given) for name in names)


def _step_cost(name: str, given: Options) -> float:
    card = MITIGATIONS[name]
    return card.step_cost * (1.0 if card.cost_option is None else options_of(name, given)[card.cost_option])


def kept_copies(recipe: Recipe) -> dict[str, float]:
    """Return what each method keeps in memory beside a plain step of the recipe, in copies of trained parameters.

    An optimizer that a method brings takes the place of the recipe's, whose state a plain step holds already.
    """
    from tula_core.models.memory.state import optimizer_slots

    own = optimizer_slots(recipe)
    return {
        name: card.parameter_copies + card.slots.get(recipe.optimizer, own) - own for name, card in MITIGATIONS.items()
    }


def make(names: Sequence[str], setting: Setting, given: Options) -> Methods:
    """Return the hooks of one run.

    Parameters
    ----------
    names
        Methods that go together, in order; those without a hook act through the learning rate alone.
    setting
        The run; its ``options`` are replaced by each method's own.
    given
        Options by method and name.
    """
    from tula_core.mitigations.compose import Methods

    made = []
    for name in names:
        entry = MITIGATIONS[name].entry
        if entry is not None:
            module, _, kind = entry.partition(":")
            method = getattr(importlib.import_module(module), kind)
            made.append((name, method(replace(setting, options=options_of(name, given)))))
    return Methods(made)
