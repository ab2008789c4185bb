"""Tables of the step-time backtest: errors, coverage and regret by pair, beside AdaptDL's model and a linear law."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tula_core.bench.kind import Table
from tula_core.bench.laws_step_time import fit_goodput, fit_linear, goodput_step_s, linear_terms
from tula_core.bench.step_time import Populations, predict_with
from tula_core.bench.step_time_learning import without
from tula_core.bench.step_time_rows import PROTOCOLS, asked, known, pairs
from tula_core.models.step.population import load_population

Array = NDArray[np.float64]

_BUCKETS_PER_OCTAVE = 2.0
LAWS = ("adaptdl", "linear")
_LEAST_CHOICES = 4  # a bucket with fewer configurations offers no choice
_LEAST_GAIN = 0.05  # percentage points: a smaller difference is no better


def score_tables(rows: pd.DataFrame, predictions: pd.DataFrame) -> list[Table] | None:
    """Return tables by protocol and by pair, None where an asked row has no measured time."""
    errors = _errors(rows, predictions)
    if errors is None:
        return None
    errors = errors.merge(_plain_laws(rows), on=["row_id", "protocol"], validate="one_to_one")
    by_pair = pd.DataFrame([_figures(group, *key) for key, group in _by_pair(errors)])
    return [
        Table(title="Step time by protocol", frame=_summary(by_pair), note="Means over pairs, per cent. " + _COLUMNS),
        Table(title="Step time by pair", frame=by_pair, note="Per cent, over the asked rows of a pair. " + _COLUMNS),
    ]


_COLUMNS = (
    "mape, median, p90: of the absolute relative error. inside: rows within the 90 % interval; width: its high/low. "
    "regret: how much longer a sample takes at the configuration predicted fastest, among those of one global batch. "
    "adaptdl, linear: mean errors of AdaptDL's goodput model and of a linear law, fitted in this run to the same rows."
)


def leave_out_tables(rows: pd.DataFrame) -> list[Table]:
    """Return tables with priors learnt without the cluster, and without the network, that is predicted."""
    found = []
    for title, column in (("cluster", "cluster"), ("network", "model")):
        predictions = predict_with(rows, _widened(without(rows, column)))
        errors = _errors(rows, predictions)
        if errors is None:
            continue
        frame = pd.DataFrame([_figures(group, *key) for key, group in _by_pair(errors)])
        note = f"Priors learnt from the pairs of every other {title}; intervals as wide as the package has them."
        found.append(Table(title=f"Step time by protocol, {title} left out", frame=_summary(frame), note=note))
        found.append(Table(title=f"Step time by pair, {title} left out", frame=frame, note=note))
    return found


def _widened(populations: Populations) -> Populations:
    """Return populations with the one factor on the width of intervals that the package carries."""
    factor = load_population().widening
    return lambda *pair: dataclasses.replace(populations(*pair), widening=factor)


def _errors(rows: pd.DataFrame, predictions: pd.DataFrame) -> pd.DataFrame | None:
    """Return the predictions beside their rows with the relative error, None where an answer is missing."""
    joined = predictions.merge(rows, on="row_id", validate="many_to_one")
    time_s = pd.to_numeric(joined["step_time_s"], errors="coerce")
    if not (time_s > 0).all():
        return None
    return joined.assign(error=100 * (joined["pred_step_time_s"] / time_s - 1).abs())


def _by_pair(errors: pd.DataFrame) -> list[tuple[tuple[str, str, str], pd.DataFrame]]:
    keys = ["protocol", "cluster", "model"]
    return [((str(p), str(c), str(m)), group) for (p, c, m), group in errors.groupby(keys, sort=True)]


def _figures(group: pd.DataFrame, protocol: str, cluster: str, network: str) -> dict[str, object]:
    inside = (group["low"] <= group["step_time_s"]) & (group["step_time_s"] <= group["high"])
    found: dict[str, object] = {
        "protocol": protocol,
        "cluster": cluster,
        "network": network,
        "rows": len(group),
        "mape": group["error"].mean(),
        "median": group["error"].median(),
        "p90": group["error"].quantile(0.9),
        "inside": 100 * inside.mean(),
        "width": (group["high"] / group["low"]).median(),
        "regret": time_regret(group),
    }
    return found | {law: group[law].mean() for law in LAWS if law in group}


def time_regret(group: pd.DataFrame) -> float:
    """Return the mean excess of time per sample at the configuration predicted fastest, per cent; nan without a choice.

    Among configurations with equally filled nodes, within half an octave of global batch.
    """
    even = group[group["max_per_node"] - group["min_per_node"] <= 1]
    names = ["nodes", "replicas", "local_batch"]
    columns = {"step_time_s": "mean", "pred_step_time_s": "mean", "global_batch": "first"}
    each = even.groupby(names, as_index=False).agg(columns)
    bucket = (_BUCKETS_PER_OCTAVE * np.log2(each["global_batch"])).round()
    excess = []
    for _, choices in each.groupby(bucket):
        if len(choices) < _LEAST_CHOICES:
            continue
        actual = (choices["step_time_s"] / choices["global_batch"]).to_numpy()
        chosen = (choices["pred_step_time_s"] / choices["global_batch"]).to_numpy().argmin()
        excess.append(actual[chosen] / actual.min() - 1)
    return 100 * float(np.mean(excess)) if excess else float("nan")


def _plain_laws(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the errors of both laws on every asked row."""
    found = []
    for protocol in PROTOCOLS:
        for _, _, group in pairs(rows):
            wanted = asked(group, protocol)
            if wanted.empty:
                continue
            frame = wanted[["row_id"]].assign(protocol=protocol)
            profile = known(group, protocol)
            laws = _law_times(profile, wanted) if len(profile) else dict.fromkeys(LAWS, np.full(len(wanted), np.nan))
            for name, predicted in laws.items():
                frame[name] = 100 * np.abs(predicted / wanted["step_time_s"] - 1)
            found.append(frame)
    return pd.concat(found, ignore_index=True)


def _columns(frame: pd.DataFrame) -> tuple[Array, Array, Array]:
    nodes, processes, local_batch = (frame[name].to_numpy(float) for name in ("nodes", "replicas", "local_batch"))
    return nodes, processes, local_batch


def _law_times(profile: pd.DataFrame, wanted: pd.DataFrame) -> dict[str, Array]:
    seen, there = _columns(profile), _columns(wanted)
    time_s = profile["step_time_s"].to_numpy(float)
    grad_s = np.maximum(time_s - np.nan_to_num(profile["sync_time_s"].to_numpy(float)), 0.01 * time_s)
    return {
        "adaptdl": goodput_step_s(fit_goodput(*seen, time_s, grad_s), *there)[1],
        "linear": linear_terms(*there) @ fit_linear(*seen, time_s),
    }


def _summary(by_pair: pd.DataFrame) -> pd.DataFrame:
    found = []
    for protocol, group in by_pair.groupby("protocol", sort=True):
        row: dict[str, object] = {"protocol": protocol, "pairs": len(group)}
        row |= {"mape_mean": group["mape"].mean(), "mape_median": group["mape"].median(), "p90": group["p90"].mean()}
        row |= {"regret": group["regret"].mean(), "inside": group["inside"].mean()}
        row |= {"inside_worst_pair": group["inside"].min(), "width": group["width"].median()}
        for law in LAWS:
            if law in group:
                row |= {f"{law}_mean": group[law].mean(), f"{law}_median": group[law].median()}
                row |= {f"better_than_{law}": int((group["mape"] < group[law] - _LEAST_GAIN).sum())}
                row |= {f"worst_against_{law}": (group["mape"] / group[law]).max()}
        found.append(row)
    return pd.DataFrame(found)
