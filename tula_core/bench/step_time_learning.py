"""Learning the step-time priors from a folder, all of it or without what is to be predicted."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from tula_core.bench.step_time import Populations, one_thread, predict_with
from tula_core.bench.step_time_rows import PAIR, pairs, timings_of
from tula_core.bench.tables import check_positive
from tula_core.errors import InputError
from tula_core.models.step.inference import Timings
from tula_core.models.step.learning import learn_population
from tula_core.models.step.population import Population

_LEARNING_ROWS = 150  # of one pair, evenly taken
_PROMISE = 0.9
_MOST = 3.0  # an interval so many times too narrow is a wrong law


def jobs(rows: pd.DataFrame) -> dict[tuple[str, str], Timings]:
    """Return measurements of every pair to learn from: its unflagged rows, at most so many, evenly taken."""
    found = {}
    for cluster, network, group in pairs(rows[rows["flag"].isna()]):
        check_positive(group, ("step_time_s",), f"rows of {cluster} {network}")
        places = np.linspace(0, len(group) - 1, min(len(group), _LEARNING_ROWS)).round().astype(int)
        found[cluster, network] = timings_of(group.iloc[np.unique(places)])
    return found


def learn_priors(rows: pd.DataFrame) -> dict[str, object]:
    """Return what all pairs have in common, as the priors file holds it.

    Intervals are widened by what those of clusters that were left out need, where there is more than one cluster.
    """
    measured = jobs(rows)
    with one_thread():
        population = learn_population(list(measured.values()))
    if len({cluster for cluster, _ in measured}) > 1:
        factor = widening(predict_with(rows, without(rows, "cluster")), rows)
        population = dataclasses.replace(population, widening=factor)
    return population.to_dict()


def without(rows: pd.DataFrame, name: str) -> Populations:
    """Return populations learnt without the pairs that share a pair's ``cluster``, or its ``model``."""
    measured = jobs(rows)
    place = PAIR.index(name)
    learnt: dict[str, Population] = {}

    def population(*pair: str) -> Population:
        left_out = pair[place]
        if left_out not in learnt:
            rest = [timings for key, timings in measured.items() if key[place] != left_out]
            if not rest:
                raise InputError(f"--leave-out: {left_out!r} is the only {name}. Give a folder with another one too.")
            with one_thread():
                learnt[left_out] = learn_population(rest)
        return learnt[left_out]

    return population


def widening(predictions: pd.DataFrame, rows: pd.DataFrame) -> float:
    """Return the factor on the log width of intervals with which they hold 90 % of the measured rows.

    The share is the mean over protocols and pairs, so that pairs with many rows count no more than others.

    Parameters
    ----------
    predictions
        Of pairs whose clusters were left out when the priors were learnt, with columns ``low`` and ``high``.
    rows
        What was measured.
    """
    joined = predictions.merge(rows, on="row_id", validate="many_to_one")
    low, high = np.log(joined["low"].to_numpy()), np.log(joined["high"].to_numpy())
    away = np.abs(np.log(joined["step_time_s"].to_numpy(float)) - 0.5 * (low + high)) / (0.5 * (high - low))
    groups = [away[places] for places in joined.groupby(["protocol", "cluster", "model"]).indices.values()]

    def excess(factor: float) -> float:
        # A ramp for a step: a row on the brink counts in part, so that the share has no jumps.
        inside = [np.clip((factor - group) / (0.1 * factor) + 0.5, 0.0, 1.0).mean() for group in groups]
        return float(np.mean(inside)) - _PROMISE

    if excess(1.0) >= 0.0 or excess(_MOST) <= 0.0:
        return 1.0 if excess(1.0) >= 0.0 else _MOST
    return float(brentq(excess, 1.0, _MOST, xtol=1e-4))
