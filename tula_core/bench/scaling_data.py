"""Reading scaling tasks and measured runs, and which of the runs a task may know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tula_core.bench.tables import SECONDS, check_positive, numbers, read_table, read_tables
from tula_core.errors import InputError
from tula_core.models.hardware.fleet import FleetRuns

_TASK_COLUMNS = ("submission_id", "family", "known", "bench", "accel", "nodes", "n_accel", "local_batch")
_RUN_COLUMNS = (
    *("round", "submitter", "accel", "accelerators_per_node", "nodes", "n_accel"),
    *("local_batch", "status", "time_per_step_s", "time_method"),
)
_KNOWN_FIELDS = ("nodes", "n_accel", "local_batch", "time_per_step_s")
_SHAPE = ["bench", "family", "submitter", "accel", "nodes", "n_accel", "local_batch", "time_method"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One task: what is asked, shape (1,), and the rows that may be known."""

    submission_id: str
    bench: str
    asked: FleetRuns
    known: pd.DataFrame


def read_runs(folder: Path) -> pd.DataFrame:
    """Return the runs of every ``results_*.csv``, one row for each configuration of a submission with its median time.

    Runs that failed are left out, and times that are not above zero: both say nothing of a step. A file without a
    column ``bench`` is of the benchmark in its name.
    """
    if not any(folder.glob("results_*.csv")):  # then the tasks tell all that is known
        return pd.DataFrame(columns=[*_SHAPE, "time_per_step_s"])
    frames = []
    for name, frame in read_tables(folder, "results_*.csv").items():
        lacking = [column for column in _RUN_COLUMNS if column not in frame.columns]
        if lacking:
            raise InputError(f"--data: {name} lacks the column {', '.join(lacking)}. Give a file that has it.")
        bench = name.removeprefix("results_").removesuffix(".csv")
        named = frame if "bench" in frame.columns else frame.assign(bench=bench)
        coerced = {field: numbers(named[field]) for field in _KNOWN_FIELDS}
        frames.append(named.assign(**coerced)[["bench", *_RUN_COLUMNS]].astype({"time_method": object}))
    runs = pd.concat(frames, ignore_index=True)
    runs["family"] = _family(runs)
    sound = (runs["status"] == "success") & _usable(runs)
    grouped = runs[sound].groupby(_SHAPE, dropna=False)["time_per_step_s"]
    return grouped.median().reset_index()


def read_questions(folder: Path, runs: pd.DataFrame, *, strange: bool = False) -> list[Question]:
    """Return the tasks of ``scaling_tasks.csv`` with what each may know: fewer accelerators of the same benchmark.

    Parameters
    ----------
    runs
        As `read_runs` gives them.
    strange
        Whether everything of the asked submitter is left out but what the task itself gives.
    """
    tasks = read_table(folder / "scaling_tasks.csv", _TASK_COLUMNS)
    check_positive(tasks, ["nodes", "n_accel", "local_batch"], "scaling_tasks.csv")
    return [_question(task, runs, strange) for task in tasks.to_dict("records")]


def as_runs(rows: pd.DataFrame) -> FleetRuns:
    """Return rows with the columns of `read_runs` as the model takes them."""
    return FleetRuns(
        accelerator=rows["accel"].to_numpy(dtype=str),
        family=rows["family"].to_numpy(dtype=str),
        nodes=rows["nodes"].to_numpy(dtype=float),
        accelerators=rows["n_accel"].to_numpy(dtype=float),
        local_batch=rows["local_batch"].to_numpy(dtype=float),
        rough=(rows["time_method"] == "wall").to_numpy(),
    )


def telling(rows: pd.DataFrame, family: str) -> pd.DataFrame:
    """Return the rows of a family and of those that were measured at two sizes or more.

    A family at one size tells how fast its systems are, not how time bends; and families at one size differ in batch
    because their systems do, which would be taken for the effect of the batch. All rows where ``family`` has none.
    """
    own = rows["family"] == family
    if not own.any():
        return rows
    return rows[own | (rows.groupby("family")["n_accel"].transform("nunique") > 1)]


def _question(task: Mapping[Any, Any], runs: pd.DataFrame, strange: bool) -> Question:
    known = _known(task)
    fewer = runs[(runs["bench"] == task["bench"]) & (runs["n_accel"] < task["n_accel"])]
    if len(known):
        fewer = fewer[fewer["family"] != task["family"]]
    if strange:
        fewer = fewer[fewer["submitter"] != _submitter(task["family"])]
    rows = pd.concat([frame for frame in (known, fewer) if len(frame)]) if len(known) or len(fewer) else fewer
    asked = pd.DataFrame([{**{str(name): value for name, value in task.items()}, "time_method": ""}])
    return Question(
        submission_id=str(task["submission_id"]),
        bench=str(task["bench"]),
        asked=as_runs(asked),
        known=telling(rows, str(task["family"])),
    )


def _family(runs: pd.DataFrame) -> pd.Series[str]:
    """Return ``benchmark|round|submitter|accelerator|xN``, N accelerators a node: what one stack runs on."""
    each = runs["accelerators_per_node"].astype(str).str.removesuffix(".0")
    family = runs["bench"].astype(str)
    for part in (runs["round"].astype(str), runs["submitter"].astype(str), runs["accel"].astype(str), "x" + each):
        family = family + "|" + part
    return family


def _submitter(family: str) -> str:
    """Return the third part of ``benchmark|round|submitter|...``, empty where there is none."""
    return [*family.split("|"), "", "", ""][2]


def _known(task: Mapping[Any, Any]) -> pd.DataFrame:
    """Return the task's own measurements with times above zero, as `read_runs` has rows."""
    try:
        given = json.loads(task["known"])
        if not isinstance(given, list):
            raise TypeError(given)
        cells = [[float(each[field]) for field in _KNOWN_FIELDS] for each in given]
        known = pd.DataFrame(cells, columns=list(_KNOWN_FIELDS), dtype=float)
    except (TypeError, ValueError, KeyError):
        raise InputError(
            f"--data: scaling_tasks.csv: known of {task['submission_id']!r} must be a JSON list of objects with the "
            f"numbers {', '.join(_KNOWN_FIELDS)}. Mend that row or leave it out."
        ) from None
    sound = _usable(known) & (known["n_accel"] < task["n_accel"])
    facts = {name: str(task[name]) for name in ("bench", "family", "accel")}
    return pd.DataFrame(known[sound]).assign(submitter=_submitter(facts["family"]), time_method="", **facts)


def _usable(rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Return where all numbers of a measurement are finite and above zero, and its time can be one, shape (n,)."""
    values = rows[list(_KNOWN_FIELDS)].to_numpy(dtype=float)
    sound = ((values > 0) & np.isfinite(values)).all(axis=1)
    return np.asarray(sound & rows["time_per_step_s"].between(*SECONDS).to_numpy())
