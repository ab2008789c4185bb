"""Learns what is usual of the chance to reach a target, and how good it is for a network it has not seen.

Empirical Bayes: the values under which what runs did at each batch size is most likely, given the runs at the others,
under hyperpriors that a few networks can move but not overrule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from tula_core.bench.kind import Table
from tula_core.bench.reach import Network, brier_table, chances, networks_of
from tula_core.models.learning.reach import ReachPrior, reach_chances

Array = NDArray[np.float64]

_HYPERPRIORS: dict[str, tuple[float, float]] = {
    "slowing": (math.log(0.5), 0.3),
    "relative_sd": (math.log(0.5), 0.3),
    "log_run_sd": (math.log(0.2), 0.4),
    "log_swing": (0.0, 0.4),
    "length": (math.log(2.0), 0.3),
}
"""Mean and standard deviation of the ln of each value that is learnt."""

_START = ReachPrior(
    slowing=0.5,
    relative_sd=0.5,
    least_sd=0.1,
    log_run_sd=math.log(0.2),
    log_run_sd_sd=0.8,
    log_swing=0.0,
    log_swing_sd=0.8,
    length=2.0,
    slope=0.3,
    level_sd=1.0,
)
_EVIDENCE = 10.0  # independent answers that one network is worth
_STEPS_LEARN, _STEPS_LEFT_OUT = 5, 2
_PLACES = 4
_LEAST_CHANCE = 0.01  # no single surprise decides what is usual


def learn(folder: Path) -> dict[str, object]:
    """Return the prior learnt from ``epochs_to_target.csv``."""
    found = learn_prior(networks_of(folder), start=_START, steps=_STEPS_LEARN)
    return {name: round(value, _PLACES) for name, value in found.to_dict().items()}


def leave_out(folder: Path) -> list[Table]:
    """Return Brier scores with each network predicted by a prior that was learnt without it."""
    networks = networks_of(folder)
    priors = {
        (left.dataset, left.network): learn_prior(
            [network for network in networks if network is not left], start=_START, steps=_STEPS_LEFT_OUT
        )
        for left in networks
    }
    table = brier_table(folder, chances(networks, priors), "Tula, network left out")
    if table is None:
        return []
    note = "Each network is predicted by a prior learnt from the other networks only."
    return [Table(title="Chance to reach a target, network left out: Brier score", frame=table, note=note)]


def learn_prior(networks: Sequence[Network], *, start: ReachPrior, steps: int) -> ReachPrior:
    """Return the prior under which what runs did is most likely, each network counting alike.

    Parameters
    ----------
    networks
        May be none: the hyperpriors' middle is returned.
    start
        Gives the values that are not learnt.
    steps
        Of the quasi-Newton search.
    """
    if not networks:
        return start

    def objective(units: Array) -> float:
        prior = _prior(units, start)
        return float(0.5 * units @ units + _EVIDENCE * sum(_log_loss(network, prior) for network in networks))

    begin = np.zeros(len(_HYPERPRIORS))
    bounds = [(-3.0, 3.0)] * len(begin)
    found = minimize(objective, begin, method="L-BFGS-B", bounds=bounds, options={"maxiter": steps})
    return _prior(found.x, start)


def _log_loss(network: Network, prior: ReachPrior) -> float:
    """Return the mean of -ln of the chance given to what each run did, over levels that not all runs agree on."""
    contested = _contested(network)
    losses: list[float] = []
    for batch, levels in network.asked.items():
        asked, runs = np.intersect1d(levels, contested), network.others(batch)
        if not len(asked) or not runs:
            continue
        chance = dict(zip(asked.tolist(), reach_chances(runs, batch, asked, prior=prior).tolist(), strict=True))
        for run in network.runs:
            if run.batch == batch:
                for level, epoch in zip(run.levels.tolist(), run.epochs.tolist(), strict=True):
                    if level in chance:
                        given = 1.0 - chance[level] if math.isnan(epoch) else chance[level]
                        losses.append(-math.log(max(given, _LEAST_CHANCE)))
    return float(np.mean(losses)) if losses else 0.0


def _contested(network: Network) -> Array:
    """Return the levels that some runs meet and some do not."""
    met = {
        (level, not math.isnan(epoch))
        for run in network.runs
        for level, epoch in zip(run.levels.tolist(), run.epochs.tolist(), strict=True)
    }
    return np.array(sorted(level for level, reached in met if reached and (level, False) in met))


def _prior(units: Array, base: ReachPrior) -> ReachPrior:
    values = {
        name: mean + sd * unit for (name, (mean, sd)), unit in zip(_HYPERPRIORS.items(), units.tolist(), strict=True)
    }
    return replace(base, **{name: v if name.startswith("log_") else math.exp(v) for name, v in values.items()})
