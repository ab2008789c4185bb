"""How well datasheets carry step times from one accelerator to another, on measured pairs, and what that teaches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize

from tula_core.bench.device_facts import DEVICES
from tula_core.models.hardware.transfer import TransferPriors, log_time_ratio
from tula_core.models.inference.fitting import Z90

Array = NDArray[np.float64]

START = TransferPriors(
    memory_share=0.6, memory_share_sd=0.3, fact_sd=0.15, distance_sd=0.15, floor_exponent=0.1, floor_sd=0.6
)
"""Figures towards which learning is drawn; only the share and the spread between equal devices are learnt.

A handful of tuned networks that keep their devices busy cannot tell how far other networks lie, nor what the floor of a
step does. Those figures were set by hand, one of three widths that were tried, so that 90 % intervals held about 90 %
of the same networks' step times on other clusters and of the same trainings' energy on another accelerator.
"""

_DRAWN_SD = 0.5  # of a logit or a logarithm
_FREEDOM = 4.0
_FEW = 16  # accelerators of one node


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two accelerators in one round of one benchmark, and ln(seconds of a sample on the second / on the first)."""

    bench: str
    first: str
    second: str
    log_ratio: float


def device_pairs(runs: pd.DataFrame) -> list[Pair]:
    """Return every ordered pair whose datasheets are known, from runs on one node at each family's largest batch."""
    return list(_pairs(runs))


def _pairs(runs: pd.DataFrame) -> Iterator[Pair]:
    single = runs[(runs["nodes"] == 1) & (runs["n_accel"] <= _FEW) & runs["accel"].isin(list(DEVICES))]
    largest = single.sort_values(["local_batch", "time_per_step_s"]).groupby("family").tail(1)
    season = largest["family"].str.split("|").str[1]
    sample_s = largest["time_per_step_s"] / largest["local_batch"]
    for (bench, _), group in sample_s.groupby([largest["bench"], season]):
        typical = group.groupby(largest.loc[group.index, "accel"]).median()
        for first, second in permutations(typical.index, 2):
            ratio = float(np.log(typical[second] / typical[first]))
            yield Pair(bench=str(bench), first=str(first), second=str(second), log_ratio=ratio)


def learn_transfer(given: Sequence[Pair]) -> TransferPriors:
    """Return the priors under which the measured ratios are most likely, by Student's t, drawn towards `START`."""

    def loss(move: Array) -> float:
        errors, sd = _errors(given, _moved(move))
        density = -np.log(sd) - (_FREEDOM + 1) / 2 * np.log1p((errors / sd) ** 2 / _FREEDOM)
        return float(0.5 * np.sum((move / _DRAWN_SD) ** 2) - np.sum(density))

    found = minimize(loss, np.zeros(2), method="Powell", options={"xtol": 1e-3, "ftol": 1e-6})
    return _moved(np.asarray(found.x))


def transfer_tables(given: Sequence[Pair]) -> pd.DataFrame:
    """Return, by accelerator, error and coverage of carrying over to it with priors learnt without it."""
    found: dict[str, tuple[Array, Array]] = {}
    for name in sorted({pair.second for pair in given}):
        rest = [pair for pair in given if name not in (pair.first, pair.second)]
        found[name] = _errors([pair for pair in given if pair.second == name], learn_transfer(rest) if rest else START)
    every = [np.concatenate(parts) for parts in zip(*found.values(), strict=True)]
    found["all"] = (every[0], every[1])
    error = {name: 100 * np.abs(np.expm1(errors)) for name, (errors, _) in found.items()}
    return pd.DataFrame(
        {
            "to": list(found),
            "pairs": [len(values) for values in error.values()],
            "mean error %": [float(values.mean()) for values in error.values()],
            "median %": [float(np.median(values)) for values in error.values()],
            "inside 90 % interval": [100 * float((np.abs(e) <= Z90 * sd).mean()) for e, sd in found.values()],
            "interval +%": [100 * float(np.expm1(Z90 * sd.mean())) for _, sd in found.values()],
        }
    )


def _errors(given: Sequence[Pair], priors: TransferPriors) -> tuple[Array, Array]:
    """Return ln(forecast/measured) and the forecasts' standard deviations."""
    found = [log_time_ratio(DEVICES[pair.first], DEVICES[pair.second], priors) for pair in given]
    ratio, sd = (np.array(column) for column in zip(*found, strict=True))
    return ratio - np.array([pair.log_ratio for pair in given]), sd


def _moved(move: Array) -> TransferPriors:
    share, spread = move.tolist()
    odds = START.memory_share / (1 - START.memory_share) * np.exp(share)
    return dataclasses.replace(
        START,
        memory_share=float(odds / (1 + odds)),
        fact_sd=float(START.fact_sd * np.exp(spread)),
    )
