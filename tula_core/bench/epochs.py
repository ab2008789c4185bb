"""Work to a target by batch size, from the work at other batch sizes of the same benchmark.

Each task is answered from its own row alone: an average over laws (a gentle bend, the hyperbola of McCandlish et al.
2018, a floor with a corner), each weighed by how well it fits the known points, with a Gaussian process for what the
law misses. What is usual of the laws' parameters was learnt from public convergence points by empirical Bayes: the
values that make the true work most likely given the known points, each protocol and each benchmark counting alike.
No name of a benchmark is read. The number predicted is the one of least expected relative error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls

from tula_core.bench.kind import Kind, Table
from tula_core.bench.tables import check_positive, numbers, read_table
from tula_core.errors import InputError
from tula_core.models.learning.work import WorkPrior, work_prior
from tula_core.models.learning.work_fit import WorkQuestion, answer, critical_of, work_question

Array = NDArray[np.float64]

_TASKS = ("task_id", "train_batch_sizes", "train_work", "test_batch_size")
_LOW, _HIGH = 0.05, 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One row: the work at some batch sizes, and the batch size asked."""

    batches: tuple[float, ...]
    work: tuple[float, ...]
    asked: float

    def question(self) -> WorkQuestion:
        """Return the question for the models."""
        return work_question(self.batches, self.work, [self.asked])


def predict(folder: Path) -> pd.DataFrame:
    """Return the work and its 90 % interval for every task of ``rcp_tasks.csv``."""
    frame = read_table(folder / "rcp_tasks.csv", _TASKS)
    rows = [forecast(task.question(), work_prior()) for task in tasks_of(frame)]
    return pd.DataFrame(rows, columns=["pred", "low", "high"]).assign(task_id=frame["task_id"])[list(KIND.columns)]


def forecast(question: WorkQuestion, prior: WorkPrior) -> tuple[float, float, float]:
    """Return the work of least expected relative error, kept inside its 90 % interval, and that interval."""
    found = answer(question, prior, critical_of(question, prior)).mixture(0)
    low, high = found.quantile(_LOW), found.quantile(_HIGH)
    return min(max(found.least_relative_error(), low), high), low, high


def tasks_of(frame: pd.DataFrame) -> list[Task]:
    """Return the tasks of a frame.

    Raises
    ------
    InputError
        A list holds something else than numbers above 0, or the two lists of a row differ in length.
    """
    check_positive(frame, ("test_batch_size",), "rcp_tasks.csv")
    tasks = []
    for number, (batches, work, asked) in enumerate(
        zip(frame["train_batch_sizes"], frame["train_work"], frame["test_batch_size"], strict=True), start=1
    ):
        task = Task(
            batches=_numbers(batches, "train_batch_sizes", number),
            work=_numbers(work, "train_work", number),
            asked=float(asked),
        )
        if len(task.batches) != len(task.work):
            raise InputError(
                f"--data: rcp_tasks.csv: train_work must have one number for each of train_batch_sizes, got "
                f"{len(task.work)} for {len(task.batches)} in data row {number}. Mend that row or leave it out."
            )
        tasks.append(task)
    return tasks


def _numbers(cell: object, column: str, number: int) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in str(cell).split())
    except ValueError:
        values = ()
    if not values or not all(0.0 < value < float("inf") for value in values):
        raise InputError(
            f"--data: rcp_tasks.csv: {column} must be numbers above 0 with spaces between, got {cell!r} in data row "
            f"{number}. Mend that row or leave it out."
        )
    return values


def linear_law(task: Task) -> float:
    """Return E_min + S_min B with both not negative and least relative squares; McCandlish et al. 2018, eq. 2.11."""
    batches, work = np.array(task.batches), np.array(task.work)
    columns = np.stack([np.ones_like(batches), batches], axis=1) / work[:, None]
    if len(set(task.batches)) == 1:
        return float(work.mean())  # a line through one point: the batch is taken not to matter
    scale = np.linalg.norm(columns, axis=0)
    least = nnls(columns / scale, np.ones_like(work))[0] / scale
    return float(least @ (1.0, task.asked))


def constant_law(task: Task) -> float:
    """Return the geometric mean of the known work."""
    return float(np.exp(np.mean(np.log(task.work))))


def nearest_law(task: Task) -> float:
    """Return the work at the known batch nearest in ratio."""
    return task.work[int(np.abs(np.log(np.array(task.batches) / task.asked)).argmin())]


PLAIN: dict[str, Callable[[Task], float]] = {
    "linear law": linear_law,
    "nearest batch": nearest_law,
    "constant": constant_law,
}
"""Plain laws to compare with."""


def answered(folder: Path) -> pd.DataFrame | None:
    """Return the tasks with their answers, column ``truth``, None where the folder holds no answers.

    An answer that is no number above 0 is none.
    """
    if not (folder / "rcp_truth.csv").is_file():
        return None
    truth = read_table(folder / "rcp_truth.csv", ("task_id", "truth"))
    value = numbers(truth["truth"])
    truth = truth.assign(truth=value)[(value > 0.0) & (value < float("inf"))]
    if truth.empty:
        return None
    tasks = read_table(folder / "rcp_tasks.csv", (*_TASKS, "protocol", "benchmark"))
    return tasks.merge(truth[["task_id", "truth"]], on="task_id", validate="one_to_one")


def score(folder: Path, predictions: pd.DataFrame) -> list[Table] | None:
    """Return errors and coverage by protocol beside plain laws, None where there are no answers."""
    frame = answered(folder)
    if frame is None:
        return None
    frame = frame.merge(predictions, on="task_id", validate="one_to_one")
    laws = {name: np.array([law(task) for task in tasks_of(frame)]) for name, law in PLAIN.items()}
    errors = error_table(frame, {"Tula": frame["pred"].to_numpy(dtype=float), **laws})
    return [
        Table(title="Work to target by batch size, macro MAPE %", frame=errors, note=_MACRO),
        Table(title="Work to target: inside the 90 % interval, %", frame=coverage_table(frame), note=_COVERED),
    ]


_MACRO = "Mean over benchmarks of each benchmark's mean absolute error relative to the true work."
_COVERED = "Share of the tasks, and the median of high/low."


def error_table(frame: pd.DataFrame, predicted: dict[str, Array]) -> pd.DataFrame:
    """Return macro MAPE in per cent by protocol, one column for each name in ``predicted``."""
    truth = frame["truth"].to_numpy(dtype=float)
    errors = pd.DataFrame({name: np.abs(values / truth - 1.0) * 100.0 for name, values in predicted.items()})
    errors[["protocol", "benchmark"]] = frame[["protocol", "benchmark"]].to_numpy()
    by_benchmark = errors.groupby(["protocol", "benchmark"])[list(predicted)].mean()
    table = by_benchmark.groupby("protocol").mean()
    table.insert(0, "benchmarks", by_benchmark.groupby("protocol").size())
    return table.reset_index()


def coverage_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the share of answers inside the intervals by protocol and over all."""
    inside = (frame["low"] <= frame["truth"]) & (frame["truth"] <= frame["high"])
    each = pd.DataFrame(
        {"protocol": frame["protocol"], "inside": 100.0 * inside, "width": frame["high"] / frame["low"]}
    )
    table = each.groupby("protocol").agg(tasks=("inside", "size"), inside=("inside", "mean"), width=("width", "median"))
    total = pd.DataFrame(
        {"tasks": [len(each)], "inside": [each["inside"].mean()], "width": [each["width"].median()]}, index=["all"]
    )
    return pd.concat([table, total]).rename_axis("protocol").reset_index()


def pairs(folder: Path, predictions: pd.DataFrame) -> pd.DataFrame | None:
    """Return predicted and true work for pictures, None where there are no answers."""
    frame = answered(folder)
    if frame is None:
        return None
    frame = frame.merge(predictions, on="task_id", validate="one_to_one")
    return pd.DataFrame(
        {
            "quantity": "work to target",
            "group": frame["protocol"],
            "actual": frame["truth"],
            "predicted": frame["pred"],
            "low": frame["low"],
            "high": frame["high"],
        }
    )


def _leave_out(folder: Path) -> list[Table]:
    from tula_core.bench.epochs_learn import leave_out

    return leave_out(folder)


def _learn(folder: Path) -> dict[str, object]:
    from tula_core.bench.epochs_learn import learn

    return learn(folder)


KIND = Kind(
    name="epochs",
    summary="Work to a target at one batch size, from the work at others.",
    columns=("task_id", "pred", "low", "high"),
    source="mlcommons/logging and mlcommons/training_results_v0.6 to v5.1, Apache-2.0 (derived, not verified by them).",
    predict=predict,
    score=score,
    leave_out=_leave_out,
    learn=_learn,
    priors="models/learning/work_priors.json",
    pairs=pairs,
)
