"""Ways to keep a small batch's accuracy at a large batch: each a pure function and a thin hook, its card the docstring.

What ``mitigation: auto`` means today: the learning-rate rule of the optimizer's family, with a per-step warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass

from tula_core.errors import InputError
from tula_core.job import Job
from tula_core.registry import Registry


@dataclass(frozen=True, kw_only=True, slots=True)
class MitigationCard:
    """What `tula list` says of a method, and which others it cannot be combined with."""

    summary: str
    source: str
    excludes: frozenset[str] = frozenset()


MITIGATIONS: Registry[MitigationCard] = Registry(
    "mitigation",
    (
        "linear-lr",
        MitigationCard(
            summary="learning rate times B/B0; for SGD",
            source="Goyal et al. 2017, arXiv 1706.02677",
            excludes=frozenset({"sqrt-lr"}),
        ),
    ),
    (
        "sqrt-lr",
        MitigationCard(
            summary="learning rate times sqrt(B/B0); for Adam and its relatives",
            source="Krizhevsky 2014, arXiv 1404.5997",
            excludes=frozenset({"linear-lr"}),
        ),
    ),
    (
        "warmup",
        MitigationCard(
            summary="learning rate rises per step from the reference rate over the first tenth of the run",
            source="Goyal et al. 2017, arXiv 1706.02677, section 2.2",
        ),
    ),
)


def resolve(job: Job) -> tuple[str, ...]:
    """Return the names of the methods that the job's ``mitigation`` stands for.

    Raises
    ------
    InputError
        A name is unknown or two methods exclude each other.
    """
    if job.mitigation == "none":
        return ()
    if job.mitigation == "auto":
        return ("linear-lr" if job.recipe.optimizer == "sgd" else "sqrt-lr", "warmup")
    names = (job.mitigation,) if isinstance(job.mitigation, str) else tuple(dict.fromkeys(job.mitigation))
    for name in names:
        clash = MITIGATIONS[name].excludes & set(names)
        if clash:
            raise InputError(
                f"mitigation: {name!r} and {min(clash)!r} both set the learning rate. Keep one of the two."
            )
    return names
