"""Learns what is usual of the law of work by batch size, and how far off it is for a benchmark it has not seen.

Empirical Bayes: the prior's values are those that make the answers of the tasks most likely, under weak hyperpriors
around what is known of the law (hyperbola, a few per cent of noise).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize

from tula_core.bench.epochs import answered, coverage_table, error_table, forecast, tasks_of
from tula_core.bench.kind import Table
from tula_core.errors import InputError
from tula_core.models.learning.work import WorkPrior
from tula_core.models.learning.work_fit import WorkQuestion, answer, critical_of

Array = NDArray[np.float64]

_HYPERPRIORS: dict[str, tuple[float, float]] = {
    "range_share": (0.7, 0.3),
    "log_critical": (0.3, 0.7),
    "log_critical_sd": (math.log(0.9), 0.5),
    "log_sharpness": (0.2, 0.4),
    "log_sharpness_sd": (math.log(0.4), 0.4),
    "noise_sd": (math.log(0.025), 0.4),
    "misfit_sd": (math.log(0.05), 0.5),
}
"""Mean and standard deviation of each value that is learnt, of its ln where the name ends in ``_sd``."""

_START = WorkPrior(
    range_share=0.7,
    log_critical=0.3,
    log_critical_sd=0.9,
    log_range=2.0,
    log_range_sd=1.0,
    log_sharpness=0.2,
    log_sharpness_sd=0.4,
    log_growth_sd=0.15,
    noise_sd=0.025,
    misfit_sd=0.05,
    misfit_length=1.0,
    freedom=5.0,
)
_EVIDENCE = (
    3.0  # independent answers that one benchmark is worth: its tasks ask for the same few points again and again
)
_STEPS_LEARN, _STEPS_LEFT_OUT = 12, 6
_PLACES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """A question with its answer, ln of the work, and what it counts."""

    protocol: str
    benchmark: str
    question: WorkQuestion
    log_truth: float


def learn(folder: Path) -> dict[str, object]:
    """Return the prior learnt from ``rcp_tasks.csv`` and ``rcp_truth.csv``."""
    found = learn_prior(_answered(folder), start=_START, steps=_STEPS_LEARN)
    return {name: round(value, _PLACES) for name, value in found.to_dict().items()}


def leave_out(folder: Path) -> list[Table]:
    """Return errors and coverage with each benchmark predicted by a prior that was learnt without it."""
    frame, cases = _frame(folder), _answered(folder)
    priors = {
        name: learn_prior([case for case in cases if case.benchmark != name], start=_START, steps=_STEPS_LEFT_OUT)
        for name in sorted({case.benchmark for case in cases})
    }
    rows = np.array([forecast(case.question, priors[case.benchmark]) for case in cases])
    left = frame.assign(pred=rows[:, 0], low=rows[:, 1], high=rows[:, 2])
    errors = error_table(left, {"Tula, benchmark left out": rows[:, 0]})
    return [
        Table(title="Work to target, benchmark left out: macro MAPE %", frame=errors, note=_LEFT_OUT),
        Table(title="Work to target, benchmark left out: inside the 90 % interval, %", frame=coverage_table(left)),
    ]


_LEFT_OUT = "Each benchmark is predicted by a prior learnt from the other benchmarks' tasks only."


def learn_prior(cases: Sequence[Answered], *, start: WorkPrior, steps: int) -> WorkPrior:
    """Return the prior under which the answers are most likely, each protocol and each benchmark counting alike.

    Parameters
    ----------
    cases
        At least one.
    start
        Where to begin; gives the values that are not learnt.
    steps
        Of the quasi-Newton search.
    """
    low, high = _ranges(cases)
    base = replace(start, log_range=float(np.mean(high - low)), log_range_sd=float(np.std(high - low)))
    weights = _weights(cases)
    objective = _objective(cases, weights, base)
    begin = _units(base)
    bounds = [(-3.0, 3.0)] * len(begin)
    found = minimize(objective, begin, method="L-BFGS-B", bounds=bounds, options={"maxiter": steps})
    return _prior(found.x, base)


def _objective(cases: Sequence[Answered], weights: Array, base: WorkPrior) -> Callable[[Array], float]:
    merged: dict[tuple[bytes, ...], tuple[Answered, float]] = {}
    for case, weight in zip(cases, weights.tolist(), strict=True):
        asked = case.question
        key = (asked.known.tobytes(), asked.work.tobytes(), asked.asked.tobytes())
        merged[key] = (case, weight + merged.get(key, (case, 0.0))[1])  # protocols ask some things twice
    different = [case for case, _ in merged.values()]
    counts = np.array([weight for _, weight in merged.values()])

    def objective(units: Array) -> float:
        prior = _prior(units, base)
        logs = [
            answer(case.question, prior, critical_of(case.question, prior)).log_density(0, case.log_truth)
            for case in different
        ]
        return float(0.5 * units @ units - counts @ logs)

    return objective


def _weights(cases: Sequence[Answered]) -> Array:
    """Return what each task counts: protocols alike, benchmarks of a protocol alike, tasks of a benchmark alike."""
    frame = pd.DataFrame({"protocol": [c.protocol for c in cases], "benchmark": [c.benchmark for c in cases]})
    tasks = frame.groupby(["protocol", "benchmark"])["benchmark"].transform("size")
    benchmarks = frame.groupby("protocol")["benchmark"].transform("nunique")
    total = _EVIDENCE * frame["benchmark"].nunique() / frame["protocol"].nunique()
    return np.asarray(total / (tasks * benchmarks), dtype=float)


def _ranges(cases: Sequence[Answered]) -> tuple[Array, Array]:
    """Return ln of the smallest and the largest batch of each benchmark."""
    seen: dict[str, list[float]] = {}
    for case in cases:
        seen.setdefault(case.benchmark, []).extend([*case.question.known.tolist(), *case.question.asked.tolist()])
    return np.array([min(b) for b in seen.values()]), np.array([max(b) for b in seen.values()])


def _units(prior: WorkPrior) -> Array:
    values = prior.to_dict()
    return np.array([(_forward(name, values[name]) - mean) / sd for name, (mean, sd) in _HYPERPRIORS.items()])


def _prior(units: Array, base: WorkPrior) -> WorkPrior:
    values = {
        name: mean + sd * unit for (name, (mean, sd)), unit in zip(_HYPERPRIORS.items(), units.tolist(), strict=True)
    }
    return replace(base, **{name: math.exp(v) if name.endswith("_sd") else v for name, v in values.items()})


def _forward(name: str, value: float) -> float:
    return math.log(value) if name.endswith("_sd") else value


def _frame(folder: Path) -> pd.DataFrame:
    frame = answered(folder)
    if frame is None:
        raise InputError(f"--data: {str(folder)!r} holds no rcp_truth.csv. Give a folder with the answers.")
    return frame


def _answered(folder: Path) -> list[Answered]:
    frame = _frame(folder)
    rows = zip(frame["protocol"], frame["benchmark"], tasks_of(frame), frame["truth"], strict=True)
    return [
        Answered(protocol=str(protocol), benchmark=str(benchmark), question=task.question(), log_truth=math.log(truth))
        for protocol, benchmark, task, truth in rows
    ]
