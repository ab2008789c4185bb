"""The rows of the generalization benchmark: which batch, which methods, and where the learning rate comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks.generalization_jobs import BenchJob
from tula_core.errors import InputError, nearest
from tula_core.job import Recipe
from tula_core.mitigations.batches.growth import BatchStage, growing
from tula_core.mitigations.batches.hooks import seesaw_stages
from tula_core.mitigations.method import Setting
from tula_core.workloads import WORKLOADS

SMALL, LARGE, CONTROL, CHOSEN = "small", "large", "control", "chosen"
TUNED, GIVEN = "tuned", "given"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """How one row of the table is trained.

    Attributes
    ----------
    batch
        ``small``, ``large``, ``chosen`` with the methods, or ``control``: the fixed batch that takes as many steps as
        the row ``control_of`` took.
    names
        Methods; None for those that ``mitigation: auto`` chooses, see `tests.benchmarks.generalization_choice`.
    options
        Of the methods, where they are not the defaults of their cards.
    rate
        ``tuned`` on the validation split, or ``given``: the rate chosen for the small batch.
    by_batch
        Whether the middle of the grid follows the batch, by its square root, or is the recipe's rate as it is.
    """

    name: str
    title: str
    batch: str
    names: tuple[str, ...] | None = ()
    rate: str = TUNED
    by_batch: bool = False
    control_of: str | None = None
    options: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


_ROWS = (
    Row(name="small", title="small batch", batch=SMALL),
    Row(name="plain", title="large batch, the small batch's rate", batch=LARGE, rate=GIVEN),
    Row(name="sqrt", title="large batch, square-root rate", batch=LARGE, names=("sqrt-lr",), rate=GIVEN),
    Row(name="tuned", title="large batch, best tuned rate", batch=LARGE, by_batch=True),
    Row(name="lars", title="LARS", batch=LARGE, names=("lars",)),
    Row(name="lamb", title="LAMB", batch=LARGE, names=("lamb",), by_batch=True),
    Row(name="adascale", title="AdaScale", batch=LARGE, names=("adascale",)),
    Row(
        name="growth",
        title="growing batch, until 0.6 of the run",
        batch=LARGE,
        names=("growth",),
        options={"growth": {"until": 0.6, "factor": 2.0}},
    ),
    Row(name="auto-large", title="auto at the large batch", batch=LARGE, names=None, rate=GIVEN),
    Row(name="auto", title="auto, batch and methods", batch=CHOSEN, names=None, rate=GIVEN),
    Row(
        name="growth-control",
        title="fixed batch, steps as growing batch",
        batch=CONTROL,
        by_batch=True,
        control_of="growth",
    ),
    Row(name="auto-control", title="fixed batch, steps as auto", batch=CONTROL, by_batch=True, control_of="auto"),
)
ROWS = {row.name: row for row in _ROWS}
REFERENCE, PLAIN, BEST_FIXED, AUTO, AUTO_CONTROL = "small", "plain", "tuned", "auto", "auto-control"


def chosen_rows(names: Sequence[str] | None) -> list[Row]:
    """Return the rows asked for, in the table's order, with the small batch that the others are held against.

    Raises
    ------
    InputError
        A name is unknown, or a control is asked for without the row whose steps it takes.
    """
    if names is None:
        return list(ROWS.values())
    for name in names:
        if name not in ROWS:
            raise InputError(f"--methods: {name!r} is unknown. {nearest(name, ROWS)}")
        needed = ROWS[name].control_of
        if needed is not None and needed not in names:
            raise InputError(f"--methods: {name!r} takes the steps that {needed!r} took. Add {needed!r}.")
    return [row for row in ROWS.values() if row.name in names or row.name == REFERENCE]


def recipe_of(bench: BenchJob, rate: float) -> Recipe:
    """Return the workload's recipe at the small batch as reference, with the job's epochs and a learning rate."""
    own = WORKLOADS[bench.workload].make().recipe
    changes = {"learning_rate": rate, "batch_size": bench.small_batch, "epochs": bench.epochs}
    return Recipe(**{**own.model_dump(), **changes})


def middle_rate(row: Row, bench: BenchJob, batch: int) -> float:
    """Return the middle of a row's grid of learning rates."""
    rate = WORKLOADS[bench.workload].make().recipe.learning_rate
    return float(rate * (batch / bench.small_batch) ** 0.5) if row.by_batch else rate


def stages_of(
    options: Mapping[str, Mapping[str, float]], recipe: Recipe, batch: int, train_samples: int
) -> list[dict[str, Any]] | None:
    """Return the stages of a run whose batch grows on a schedule to ``batch``; None where it does not.

    Parameters
    ----------
    options
        All options of its methods, by name.
    """
    total = recipe.epochs * train_samples
    if "growth" in options:
        stages: list[BatchStage] = growing(recipe.batch_size, batch, **options["growth"])
    elif "seesaw" in options:
        setting = Setting(
            recipe=recipe,
            processes=1,
            rank=0,
            local_batch=batch,
            accumulation=1,
            train_samples=train_samples,
            total_samples=total,
            seed=0,
            options=options["seesaw"],
        )
        stages = seesaw_stages(setting)
    else:
        return None
    return [
        {"from_samples": round(stage.from_fraction * total), "local_batch": stage.batch, "accumulation": 1}
        for stage in stages
    ]


def control_batch(bench: BenchJob, train_samples: int, steps: float) -> int:
    """Return the fixed batch whose steps over the job's epochs come nearest to ``steps``.

    >>> from tests.benchmarks.generalization_jobs import FULL
    >>> control_batch(FULL.jobs["mlp-20k"], 20_000, 1000.0), control_batch(FULL.jobs["mlp-20k"], 20_000, 100.0)
    (200, 2048)
    """
    wanted = max(1, round(steps / bench.epochs))
    same_as_large = wanted == -(-train_samples // bench.large_batch)
    return bench.large_batch if same_as_large else -(-train_samples // wanted)
