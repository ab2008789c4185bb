"""The rows of recorded step times: reading them, and which of them a protocol knows and asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from tula_core.bench.tables import check_positive, read_tables
from tula_core.errors import InputError
from tula_core.models.step.inference import Timings
from tula_core.models.step.time import Shapes

PROTOCOLS = ("p1", "p2")
PAIR = ("cluster", "model")

_SHAPE = ("nodes", "max_per_node", "min_per_node", "local_batch")
_NEEDED = ("row_id", *PAIR, "replicas", "global_batch", *_SHAPE, "accum_steps", "step_time_s", "sync_time_s", "flag")


def read_rows(folder: Path) -> pd.DataFrame:
    """Return the rows of every CSV file in a folder that has a column ``split_p1``, in the order of the files' names.

    Raises
    ------
    InputError
        No file has the column, or one lacks another column or holds an impossible number.
    """
    found = []
    for name, frame in read_tables(folder, "*.csv").items():
        if "split_p1" not in frame.columns:
            continue
        lacking = [column for column in (*_NEEDED, "split_p2") if column not in frame.columns]
        if lacking:
            raise InputError(f"--data: {name} lacks the column {', '.join(lacking)}. Give a file that has it.")
        check_positive(frame, (*_SHAPE, "replicas", "global_batch"), name)
        found.append(frame)
    if not found:
        raise InputError(
            f"--data: no file in {str(folder)!r} has a column split_p1. Give the folder of measured steps."
        )
    rows = pd.concat(found, ignore_index=True)
    if rows["row_id"].duplicated().any():
        again = rows.loc[rows["row_id"].duplicated(), "row_id"].iloc[0]
        raise InputError(f"--data: row_id {again!r} occurs twice. Give each row a name of its own.")
    return rows


def pairs(rows: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield (cluster, network, rows) for every pair, sorted."""
    for (cluster, network), group in rows.groupby(list(PAIR), sort=True):
        yield str(cluster), str(network), group


def asked(group: pd.DataFrame, protocol: str) -> pd.DataFrame:
    """Return the rows that a protocol asks for."""
    return group[group[f"split_{protocol}"].astype(str).str.startswith("test")]


def known(group: pd.DataFrame, protocol: str) -> pd.DataFrame:
    """Return the rows of one pair that a protocol lets be known.

    Raises
    ------
    InputError
        There is none that is not flagged, or a time in one of them is impossible.
    """
    profile = group[(group[f"split_{protocol}"] == "profile") & group["flag"].isna()]
    if profile.empty:
        cluster, network = group["cluster"].iloc[0], group["model"].iloc[0]
        raise InputError(
            f"--data: {cluster} {network} has no row with split_{protocol} 'profile'. Mark at least one as known."
        )
    check_positive(profile, ("step_time_s",), f"profile rows of {protocol}")
    return profile


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
        parts_s={"communication": np.where(sent >= 0.0, sent, np.nan)},
    )
