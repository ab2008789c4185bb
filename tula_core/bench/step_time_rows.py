"""The rows of recorded step times: reading them, and which of them a protocol knows and asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from tula_core.bench.tables import check_positive, check_seconds, check_whole, numbers, read_tables
from tula_core.errors import InputError
from tula_core.models.step.inference import Timings
from tula_core.models.step.time import Shapes

PROTOCOLS = ("p1", "p2")
PAIR = ("cluster", "model")

_COUNTS = ("nodes", "max_per_node", "min_per_node", "replicas")
_BATCHES = ("local_batch", "global_batch")
_NEEDED = ("row_id", *PAIR, *_COUNTS, *_BATCHES, "accum_steps", "step_time_s", "sync_time_s", "flag")


def read_rows(folder: Path) -> pd.DataFrame:
    """Return the rows of every CSV file in a folder that has a column ``split_p1``, in the order of the files' names.

    Raises
    ------
    InputError
        No file has the column, or one lacks another column, holds an impossible number, or has an impossible time in
        a row that is known.
    """
    found = []
    for name, frame in read_tables(folder, "*.csv", "split_p1").items():
        lacking = [column for column in (*_NEEDED, "split_p2") if column not in frame.columns]
        if lacking:
            raise InputError(f"--data: {name} lacks the column {', '.join(lacking)}. Give a file that has it.")
        _check(frame, name)
        found.append(_with_sound_parts(frame))
    rows = pd.concat(found, ignore_index=True)
    if rows["row_id"].duplicated().any():
        again = rows.loc[rows["row_id"].duplicated(), "row_id"].iloc[0]
        raise InputError(f"--data: row_id {again!r} occurs twice. Give each row a name of its own.")
    return rows


def _check(frame: pd.DataFrame, name: str) -> None:
    check_whole(frame, _COUNTS, name, 1)
    check_positive(frame, _BATCHES, name)
    check_whole(frame, ("accum_steps",), name, 0)
    for protocol in PROTOCOLS:
        check_seconds(frame[_is_known(frame, protocol)], ("step_time_s",), f"{name}, rows known to {protocol}")


def _with_sound_parts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows with a synchronisation that is a part of its step; nan, not measured, where it cannot be."""
    sync_s, step_s = numbers(frame["sync_time_s"]), numbers(frame["step_time_s"])
    counts = {column: numbers(frame[column]) for column in (*_COUNTS, *_BATCHES, "accum_steps")}
    return frame.assign(step_time_s=step_s, sync_time_s=sync_s.where((sync_s >= 0.0) & (sync_s <= step_s)), **counts)


def _is_known(frame: pd.DataFrame, protocol: str) -> pd.Series:
    return (frame[f"split_{protocol}"] == "profile") & frame["flag"].isna()


def pairs(rows: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield (cluster, network, rows) for every pair, sorted."""
    for (cluster, network), group in rows.groupby(list(PAIR), sort=True):
        yield str(cluster), str(network), group


def asked(group: pd.DataFrame, protocol: str) -> pd.DataFrame:
    """Return the rows that a protocol asks for."""
    return group[group[f"split_{protocol}"].astype(str).str.startswith("test")]


def known(group: pd.DataFrame, protocol: str) -> pd.DataFrame:
    """Return the rows of one pair that a protocol lets be known; flagged ones are not."""
    return group[_is_known(group, protocol)]


def in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows in an order of their own, so that the file's changes no digit of what is fitted to them."""
    return rows.sort_values([*_COUNTS, *_BATCHES, "accum_steps", "step_time_s", "sync_time_s", "row_id"])


def shapes_of(rows: pd.DataFrame) -> Shapes:
    """Return the configurations of rows."""
    return Shapes(
        nodes=rows["nodes"].to_numpy(float),
        processes_per_node=rows["max_per_node"].to_numpy(float),
        fewest_per_node=rows["min_per_node"].to_numpy(float),
        local_batch=rows["local_batch"].to_numpy(float),
        accumulation=rows["accum_steps"].to_numpy(float) + 1.0,
    )


def timings_of(rows: pd.DataFrame) -> Timings:
    """Return rows as measurements; their synchronisation time is what communication was not hidden."""
    sent = rows["sync_time_s"].to_numpy(float)
    return Timings(
        shapes=shapes_of(rows),
        time_s=rows["step_time_s"].to_numpy(float),
        relative_error=np.zeros(len(rows)),
        parts_s={"communication": sent},
    )
