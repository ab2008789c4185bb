"""Recorded step times as a choice among configurations, each of which can be measured by looking it up.

Configurations are those whose nodes use as many accelerators each, or one more or fewer, averaged over their runs. Only
global batches of which four or more configurations were recorded take part, in buckets of half an octave: within one
bucket everything but the step time is alike, so that the step time alone decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tula_core.bench.step_time_rows import pairs, read_rows
from tula_core.bench.tables import check_seconds, check_whole
from tula_core.models.decision.beliefs import log_steps
from tula_core.models.step.time import Shapes
from tula_core.records.profile import StepTiming

Array = NDArray[np.float64]

FEWEST_IN_BUCKET = 4
MOST_CANDIDATES = 1200
_ERROR = 0.01  # relative error of a recorded mean of 16 steps
_LEAST_COMPUTE = 0.02  # of a step, where the recorded synchronisation is almost all of it
_SHAPE = ["nodes", "replicas", "local_batch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What is to be chosen: the candidate with the least ln(step time) + ``log_weight`` in each of ``groups``."""

    name: str
    log_weight: Array
    groups: tuple[NDArray[np.intp], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """One network on one cluster: its configurations, how cheap each is to have, and what may be chosen."""

    cluster: str
    network: str
    timings: tuple[StepTiming, ...]
    known_first: NDArray[np.bool_]  # what a cheap profile of two nodes would measure
    choices: tuple[Choice, ...]

    @property
    def shapes(self) -> Shapes:
        """The configurations as columns."""
        return Shapes.of(self.timings)

    def log_values(self, choice: Choice) -> Array:
        """Return ln(recorded step time) + weight of each configuration."""
        return np.log([timing.step_time_s for timing in self.timings]) + choice.log_weight

    def regret(self, choice: Choice, log_times: Array) -> float:
        """Return the mean over groups of true(pick) / true(best) - 1, where picks follow forecast ``log_times``."""
        truth, forecast = self.log_values(choice), log_times + choice.log_weight
        lost = [truth[group[forecast[group].argmin()]] - truth[group].min() for group in choice.groups]
        return float(np.mean(np.expm1(lost)))


def read_pairs(folder: Path) -> list[Pair]:
    """Return the pairs of every CSV file with a ``split_p1`` column that leave something to choose.

    Raises
    ------
    InputError
        No such file, or one with an impossible number.
    """
    rows = read_rows(folder)
    rows = rows[rows["flag"].isna()].reset_index(drop=True)
    check_seconds(rows, ("step_time_s",), "rows without a flag")
    check_whole(rows, ("local_batch",), "rows without a flag", 1)
    found = [_pair(cluster, network, group) for cluster, network, group in pairs(rows)]
    return [pair for pair in found if pair is not None]


def _pair(cluster: str, network: str, rows: pd.DataFrame) -> Pair | None:
    balanced = rows[rows["max_per_node"] - rows["min_per_node"] <= 1]
    table = balanced.assign(first=balanced["split_p2"] == "profile").groupby(_SHAPE, as_index=False)
    columns = {"step_time_s": "mean", "sync_time_s": "mean", "max_per_node": "max", "global_batch": "first"}
    found = table.agg({**columns, "first": "any"})
    bucket = (2 * np.log2(found["global_batch"])).round()
    found = found.assign(bucket=bucket)[bucket.groupby(bucket).transform("size") >= FEWEST_IN_BUCKET]
    if found.empty:
        return None
    found = _fewer(found)
    batch = found["global_batch"].to_numpy(dtype=float)
    return Pair(
        cluster=cluster,
        network=network,
        timings=tuple(_timing(row) for _, row in found.iterrows()),
        known_first=found["first"].to_numpy(dtype=bool),
        choices=(_per_batch(batch, found["bucket"].to_numpy()), _one(batch)),
    )


def _fewer(found: pd.DataFrame) -> pd.DataFrame:
    """Return at most about `MOST_CANDIDATES` configurations, evenly from each bucket, no bucket left without a choice.

    Every measurement weighs every configuration anew, so that the time taken grows faster than their number.
    """
    share = -(-len(found) // MOST_CANDIDATES)
    place = found.groupby("bucket").cumcount()
    return found[(place % share == 0) | (place < FEWEST_IN_BUCKET)]


def _per_batch(batch: Array, bucket: Array) -> Choice:
    groups = tuple(np.flatnonzero(bucket == each) for each in np.unique(bucket))
    return Choice(name="each batch size", log_weight=-np.log(batch), groups=groups)


def _one(batch: Array) -> Choice:
    # No critical batch was recorded: the middle of the range makes neither end the answer beforehand.
    middle = float(np.sqrt(batch.min() * batch.max()))
    return Choice(name="one choice", log_weight=log_steps(batch, middle), groups=(np.arange(len(batch)),))


def _timing(row: pd.Series) -> StepTiming:
    step_s = float(row["step_time_s"])
    compute_s = min(max(step_s - float(np.nan_to_num(row["sync_time_s"])), _LEAST_COMPUTE * step_s), step_s)
    return StepTiming(
        nodes=int(row["nodes"]),
        processes_per_node=int(row["max_per_node"]),
        local_batch=int(row["local_batch"]),
        accumulation=1,
        steps=16,
        step_time_s=step_s,
        step_time_median_s=step_s,
        step_time_error_s=_ERROR * step_s,
        block_scatter=None,
        first_step_s=step_s,
        loader_s=0.0,
        compute_s=compute_s,
        communication_s=step_s - compute_s,
        optimizer_s=0.0,
        order=0,
    )


def cheapest_first(timings: Sequence[StepTiming]) -> list[int]:
    """Return the order by accelerators, then by local batch."""

    def size(index: int) -> tuple[int, int, int]:
        timing = timings[index]
        return (timing.nodes * timing.processes_per_node, timing.nodes, timing.local_batch)

    return sorted(range(len(timings)), key=size)
