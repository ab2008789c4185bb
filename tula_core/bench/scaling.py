"""`scaling`: seconds of a step on more accelerators, from smaller runs of the same benchmark."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from tula_core.bench.kind import Kind, Table
from tula_core.bench.scaling_data import Question, as_runs, read_questions, read_runs
from tula_core.bench.scaling_learn import learn_priors, lessons
from tula_core.bench.scaling_transfer import device_pairs, learn_transfer, transfer_tables
from tula_core.bench.tables import numbers, read_table
from tula_core.models.hardware.fleet import fit_fleet
from tula_core.models.hardware.fleet_priors import PRIORS_FILE, FleetPriors, load_fleet_priors
from tula_core.models.inference.fitting import Z90

_COLUMNS = ("submission_id", "time_per_step_s", "low", "high")
_UNKNOWN_S, _UNKNOWN_LOG_SD = 0.3, 2.0  # from 10 ms to 10 s
_ANSWERS = "submissions.csv"


def predict(folder: Path) -> pd.DataFrame:
    """Return the forecast of every task; of a benchmark without any smaller run a very wide one."""
    priors = load_fleet_priors()
    return _forecasts(read_questions(folder, read_runs(folder)), lambda _: priors)


def score(folder: Path, predictions: pd.DataFrame) -> list[Table] | None:
    """Return errors and coverage by benchmark, beside time in proportion to the local batch; None without answers."""
    if not (folder / _ANSWERS).exists():
        return None
    questions = read_questions(folder, read_runs(folder))
    note = (
        "Plain law: the time of the run with most accelerators among those given, times the ratio of local batches. "
        "A task without a forecast counts as 100 %."
    )
    table = _compare(folder, questions, {"Tula": predictions, "plain law": _plain_law(questions)})
    return [Table(title="Step time on more accelerators", frame=table, note=note)]


def leave_out(folder: Path) -> list[Table]:
    """Return the errors without the asked submitter's other runs, and with priors learnt without the benchmark."""
    runs = read_runs(folder)
    priors = load_fleet_priors()
    submitters = _forecasts(read_questions(folder, runs, strange=True), lambda _: priors)
    questions = read_questions(folder, runs)
    without = {
        bench: learn_priors(lessons(runs[runs["bench"] != bench]))
        for bench in dict.fromkeys(question.bench for question in questions)
        if set(runs["bench"]) - {bench}
    }
    benchmarks = _forecasts(questions, lambda bench: without.get(bench, priors))
    return [
        Table(
            title="Step time on more accelerators, submitter left out",
            frame=_compare(folder, questions, {"Tula": submitters}),
            note="Of the asked submitter only the measurements given with the task are known.",
        ),
        Table(
            title="Step time on more accelerators, benchmark left out",
            frame=_compare(folder, questions, {"Tula": benchmarks}),
            note="Priors are learnt from the other benchmarks alone.",
        ),
        *_carried(runs),
    ]


def _carried(runs: pd.DataFrame) -> list[Table]:
    given = device_pairs(runs)
    if not given:
        return []
    note = (
        "Seconds of a sample on one node, carried from each other accelerator of the same round by datasheet figures, "
        "with a spread learnt without the accelerator that is asked."
    )
    return [Table(title="Step time on another accelerator, from its facts", frame=transfer_tables(given), note=note)]


def learn(folder: Path) -> dict[str, object]:
    """Return the priors that fit all benchmarks of a folder: of scaling up, and of carrying times to other devices."""
    runs = read_runs(folder)
    carried = learn_transfer(device_pairs(runs))
    return {"fleet": learn_priors(lessons(runs)).to_dict(), "transfer": dataclasses.asdict(carried)}


def _forecasts(questions: Sequence[Question], priors_of: Callable[[str], FleetPriors]) -> pd.DataFrame:
    rows = [(question.submission_id, *_forecast(question, priors_of(question.bench))) for question in questions]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _forecast(question: Question, priors: FleetPriors) -> tuple[float, float, float]:
    known = question.known
    if known.empty:
        # Nothing of the benchmark was measured: any step of a network on any accelerators, empirical.
        reach = float(np.exp(Z90 * _UNKNOWN_LOG_SD))
        return _UNKNOWN_S, _UNKNOWN_S / reach, _UNKNOWN_S * reach
    model = fit_fleet(as_runs(known), known["time_per_step_s"].to_numpy(dtype=float), priors)
    time_s, log_sd = model.predict(question.asked)
    width = float(np.exp(priors.interval_factor * log_sd[0]))
    return float(time_s[0]), float(time_s[0]) / width, float(time_s[0]) * width


def _plain_law(questions: Sequence[Question]) -> pd.DataFrame:
    rows = []
    for question in questions:
        own = question.known[question.known["family"] == question.asked.family[0]]
        value = float("nan")
        if len(own):
            largest = own.loc[own["n_accel"] == own["n_accel"].max()].iloc[-1]
            value = float(largest["time_per_step_s"] * question.asked.local_batch[0] / largest["local_batch"])
        rows.append((question.submission_id, value, value, value))
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def pairs(folder: Path, predictions: pd.DataFrame) -> pd.DataFrame | None:
    """Return the forecast of each task beside the measured seconds of a step, by benchmark; None without answers."""
    if not (folder / _ANSWERS).exists():
        return None
    tasks = read_table(folder / "scaling_tasks.csv", ("submission_id", "bench"))
    group = tasks.drop_duplicates("submission_id").set_index("submission_id")["bench"]
    order = predictions["submission_id"]
    frame = pd.DataFrame(
        {
            "quantity": "step time, s",
            "group": group.reindex(order).to_numpy(),
            "actual": _truth(folder).reindex(order).to_numpy(),
            "predicted": predictions["time_per_step_s"].to_numpy(),
            "low": predictions["low"].to_numpy(),
            "high": predictions["high"].to_numpy(),
        }
    )
    return frame.dropna(subset=["actual", "predicted"])


def _truth(folder: Path) -> pd.Series[float]:
    answers = read_table(folder / _ANSWERS, ("submission_id", "time_per_step_s"))
    seconds = numbers(answers["time_per_step_s"])
    sound = answers.assign(time_per_step_s=seconds.where((seconds > 0.0) & np.isfinite(seconds)))
    return sound.drop_duplicates("submission_id").set_index("submission_id")["time_per_step_s"]


def _compare(folder: Path, questions: Sequence[Question], found: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return, by benchmark and over all, mean and median error in per cent and the share inside the interval."""
    order = [question.submission_id for question in questions]
    bench = np.array([question.bench for question in questions])
    actual = _truth(folder).reindex(order).to_numpy(dtype=float)
    told = np.isfinite(actual)
    order, bench, actual = [name for name, has in zip(order, told, strict=True) if has], bench[told], actual[told]
    groups = {**{name: bench == name for name in sorted(set(bench))}, "all": np.full(len(bench), True)}
    columns: dict[str, list[float]] = {"tasks": [int(chosen.sum()) for chosen in groups.values()]}
    for label, predictions in found.items():
        values = predictions.drop_duplicates("submission_id").set_index("submission_id").reindex(order)
        error = 100 * np.abs(values["time_per_step_s"].to_numpy(dtype=float) / actual - 1)
        error = np.where(np.isfinite(error), error, 100.0)
        inside = (values["low"].to_numpy(dtype=float) <= actual) & (actual <= values["high"].to_numpy(dtype=float))
        columns[f"{label}: mean error %"] = [float(error[chosen].mean()) for chosen in groups.values()]
        columns[f"{label}: median %"] = [float(np.median(error[chosen])) for chosen in groups.values()]
        if (values["low"] < values["high"]).any():
            columns[f"{label}: inside 90 % interval"] = [100 * float(inside[c].mean()) for c in groups.values()]
    return pd.DataFrame(columns, index=pd.Index(list(groups), name="benchmark")).reset_index()


KIND = Kind(
    name="scaling",
    summary="seconds of a step on more accelerators, from smaller runs of the same benchmark",
    columns=_COLUMNS,
    source="mlcommons/training_results_*, Apache-2.0",
    predict=predict,
    score=score,
    leave_out=leave_out,
    learn=learn,
    priors=PRIORS_FILE,
    pairs=pairs,
)
