"""Learning what is usual of step times at scale: the priors under which larger runs are forecast best from smaller."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize

from tula_core.bench.scaling_data import as_runs
from tula_core.models.hardware.fleet import FleetRuns, fit_fleet
from tula_core.models.hardware.fleet_priors import FleetPriors, Spread

Array = NDArray[np.float64]

START = FleetPriors(
    level=Spread(benchmark=3.0, accelerator=0.5, family=0.2),
    half_batch=Spread(benchmark=0.6, accelerator=0.3, family=0.2),
    growth=Spread(benchmark=0.8, accelerator=0.4, family=0.3),
    crossing=Spread(benchmark=0.1, accelerator=0.03, family=0.05),
    smooth=Spread(benchmark=0.0, accelerator=0.03, family=0.03),
    log_floor=math.log(0.006),
    log_batch_ratio=math.log(13.0),
    floor_share=0.3,
    log_growth=math.log(0.05),
    crossing_mean=0.05,
    noise_sd=0.03,
    rough_noise_sd=0.2,
    interval_factor=2.0,
)
"""Round figures from which learning begins and towards which it is drawn: what large clusters usually show."""

_DRAWN_SD = 0.5  # of a logarithm (a mean's move in its own unit) around where learning begins
_CROSSING_UNIT = 0.1
_FREEDOM = 4.0  # outliers have heavy tails: Student's t
_LEAST_SD = 0.02
_EVALUATIONS = 250
_MOVES = 17  # nine spreads of the law, three beside it, noise, four means
_SMALLEST_BATCH = 1.0  # below it several accelerators share a sample: another way to train


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """What was measured below some number of accelerators, and the larger runs asked with their ln(time)."""

    runs: FleetRuns
    time_s: Array
    asked: FleetRuns
    log_time: Array


def lessons(runs: pd.DataFrame) -> list[Lesson]:
    """Return, for each benchmark and number of accelerators, what was smaller and what a family grew to."""
    found = []
    whole = runs[runs["local_batch"] >= _SMALLEST_BATCH]
    for _, bench in whole.groupby("bench"):
        grown = bench[bench.groupby("family")["n_accel"].transform("nunique") > 1]
        least = grown.groupby("family")["n_accel"].transform("min")
        for count, asked in grown[grown["n_accel"] > least].groupby("n_accel"):
            asked = asked.drop_duplicates(["family", "local_batch"])
            smaller = grown[grown["n_accel"] < count]
            lesson = Lesson(
                runs=as_runs(smaller),
                time_s=smaller["time_per_step_s"].to_numpy(dtype=float),
                asked=as_runs(asked),
                log_time=np.log(asked["time_per_step_s"].to_numpy(dtype=float)),
            )
            found.append(lesson)
    return found


def learn_priors(given: Sequence[Lesson], *, evaluations: int = _EVALUATIONS) -> FleetPriors:
    """Return the priors that make the larger runs of all lessons most likely, drawn towards `START`.

    Maximises the predictive density of what was left out (Rasmussen and Williams 2006, section 5.4.2, with Student's t)
    by Powell's method. The interval factor is then the 90 % quantile of the standardised errors.
    """

    def loss(move: Array) -> float:
        try:
            errors, log_sd = _errors(given, _moved(move))
        except np.linalg.LinAlgError:
            return 1e9
        sd = np.maximum(log_sd, _LEAST_SD)
        density = -np.log(sd) - (_FREEDOM + 1) / 2 * np.log1p((errors / sd) ** 2 / _FREEDOM)
        value = float(0.5 * np.sum((move / _DRAWN_SD) ** 2) - np.sum(density))
        return value if math.isfinite(value) else 1e9

    found = minimize(
        loss, np.zeros(_MOVES), method="Powell", options={"maxfev": evaluations, "xtol": 0.05, "ftol": 1e-3}
    )
    priors = _moved(np.asarray(found.x))
    errors, log_sd = _errors(given, priors)
    factor = float(np.quantile(np.abs(errors) / log_sd, 0.9))
    return dataclasses.replace(priors, interval_factor=factor)


def _errors(given: Sequence[Lesson], priors: FleetPriors) -> tuple[Array, Array]:
    """Return ln(measured/forecast) of everything asked, and the forecasts' standard deviations."""
    errors, spreads = [], []
    for lesson in given:
        time_s, log_sd = fit_fleet(lesson.runs, lesson.time_s, priors).predict(lesson.asked)
        errors.append(lesson.log_time - np.log(time_s))
        spreads.append(log_sd)
    return np.concatenate(errors), np.concatenate(spreads)


def _moved(move: Array) -> FleetPriors:
    """Return `START` with its spreads multiplied by e^move and its means moved."""
    steps = iter(move.tolist())

    def scaled(value: float) -> float:
        return value * math.exp(next(steps))

    def spread(start: Spread) -> Spread:
        benchmark, accelerator, family = (scaled(sd) for sd in (start.benchmark, start.accelerator, start.family))
        return Spread(benchmark=benchmark, accelerator=accelerator, family=family)

    return dataclasses.replace(
        START,
        half_batch=spread(START.half_batch),
        growth=spread(START.growth),
        crossing=spread(START.crossing),
        level=dataclasses.replace(START.level, family=scaled(START.level.family)),
        smooth=Spread(benchmark=0.0, accelerator=scaled(START.smooth.accelerator), family=scaled(START.smooth.family)),
        noise_sd=scaled(START.noise_sd),
        log_floor=START.log_floor + next(steps),
        log_batch_ratio=START.log_batch_ratio + next(steps),
        log_growth=START.log_growth + next(steps),
        crossing_mean=START.crossing_mean + _CROSSING_UNIT * next(steps),
    )
