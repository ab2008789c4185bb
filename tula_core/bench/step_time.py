"""Step times of recorded clusters: interpolation (p1) and extrapolation from two nodes (p2).

Each CSV file with a column ``split_p1`` holds measured steps of (cluster, network) pairs. For a pair and a protocol the
law of `tula_core.models.step` is fitted to the rows whose split is ``profile``, with the priors that the package
carries, and predicts those whose split begins with ``test``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tula_core.bench.kind import PAIR_COLUMNS, Kind, Table
from tula_core.bench.step_time_widening import widening
from tula_core.bench.tables import check_positive, read_tables
from tula_core.errors import InputError
from tula_core.models.inference.fitting import Z90
from tula_core.models.step.inference import Fitted, Timings, fit_law
from tula_core.models.step.learning import learn_population
from tula_core.models.step.population import Population, load_population, prior_of
from tula_core.models.step.time import Shapes

Array = NDArray[np.float64]
Populations = Callable[[str, str], Population]

PROTOCOLS = ("p1", "p2")
PAIR = ("cluster", "model")
COLUMNS = ("row_id", "protocol", "pred_step_time_s", "low", "high")

_SHAPE = ("nodes", "max_per_node", "min_per_node", "local_batch")
_NEEDED = ("row_id", *PAIR, "replicas", "global_batch", *_SHAPE, "accum_steps", "step_time_s", "sync_time_s", "flag")
_MOST_SHIFT_SD = 0.6  # beyond it a log standard deviation says no more about the point forecast
_LEARNING_ROWS = 150  # of one pair, evenly taken


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
    return Timings(
        shapes=shapes_of(rows),
        time_s=rows["step_time_s"].to_numpy(float),
        relative_error=np.zeros(len(rows)),
        parts_s={"communication": rows["sync_time_s"].to_numpy(float)},
    )


def least_relative_error(log_mean: Array, log_sd: Array) -> Array:
    """Return the forecast with the least expected |forecast/time - 1| where time is log-normal: exp(m - s^2).

    The minimum is the median of the distribution weighted by 1/time (Gneiting 2011, J. American Statistical
    Association 106, section 3.3, eq. 20, beta = -1); weighting a log-normal by 1/time moves its log mean by -s^2.
    """
    return np.asarray(np.exp(log_mean - np.minimum(log_sd, _MOST_SHIFT_SD) ** 2))


def forecast(fitted: Fitted, rows: pd.DataFrame, widening: float) -> pd.DataFrame:
    """Return the columns ``pred_step_time_s``, ``low`` and ``high`` (90 %) for rows, with their index."""
    log_mean, variance = fitted.predict(shapes_of(rows))
    log_sd = np.sqrt(variance + fitted.noise_variance)
    reach = Z90 * widening * log_sd
    return pd.DataFrame(
        {
            "pred_step_time_s": least_relative_error(log_mean, log_sd),
            "low": np.exp(log_mean - reach),
            "high": np.exp(log_mean + reach),
        },
        index=rows.index,
    )


def one_thread() -> threadpool_limits:
    """Return a context in which linear algebra keeps to one thread: these matrices are too small to share."""
    return threadpool_limits(limits=1)


def predict_with(rows: pd.DataFrame, populations: Populations) -> pd.DataFrame:
    """Return predictions of every asked row, with the priors that ``populations`` gives for (cluster, network)."""
    found = []
    for protocol in PROTOCOLS:
        for cluster, network, group in pairs(rows):
            wanted = asked(group, protocol)
            if wanted.empty:
                continue
            population, timings = populations(cluster, network), timings_of(known(group, protocol))
            with one_thread():
                fitted = fit_law(timings, prior_of(population, timings))
                each = forecast(fitted, wanted, population.widening)
            found.append(each.assign(row_id=wanted["row_id"], protocol=protocol).loc[:, list(COLUMNS)])
    if not found:
        raise InputError("--data: no row has a split that begins with 'test'. Mark the rows to predict.")
    return pd.concat(found, ignore_index=True)


def predict(folder: Path) -> pd.DataFrame:
    """Return predictions of every asked row of a folder with the package's priors; see `Kind`."""
    population = load_population()
    return predict_with(read_rows(folder), lambda cluster, network: population)


def jobs(rows: pd.DataFrame) -> dict[tuple[str, str], Timings]:
    """Return measurements of every pair to learn from: its unflagged rows, at most so many, evenly taken."""
    found = {}
    for cluster, network, group in pairs(rows[rows["flag"].isna()]):
        check_positive(group, ("step_time_s",), f"rows of {cluster} {network}")
        places = np.linspace(0, len(group) - 1, min(len(group), _LEARNING_ROWS)).round().astype(int)
        found[cluster, network] = timings_of(group.iloc[np.unique(places)])
    return found


def learn(folder: Path) -> dict[str, object]:
    """Return what all pairs of a folder have in common, as the priors file holds it.

    Intervals are widened by what those of clusters that were left out need, where there is more than one cluster.
    """
    rows = read_rows(folder)
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


def score(folder: Path, predictions: pd.DataFrame) -> list[Table] | None:
    """Return tables of errors and coverage beside plain laws; see `tula_core.bench.step_time_tables`."""
    from tula_core.bench.step_time_tables import score_tables

    return score_tables(read_rows(folder), predictions)


def leave_out(folder: Path) -> list[Table]:
    """Return tables of errors with priors learnt without the cluster, and without the network, that is predicted."""
    from tula_core.bench.step_time_tables import leave_out_tables

    return leave_out_tables(read_rows(folder))


def backtest_pairs(folder: Path, predictions: pd.DataFrame) -> pd.DataFrame | None:
    """Return predictions beside what was measured, grouped by protocol, in the columns of `PAIR_COLUMNS`."""
    joined = predictions.merge(read_rows(folder)[["row_id", "step_time_s"]], on="row_id", validate="many_to_one")
    if not (pd.to_numeric(joined["step_time_s"], errors="coerce") > 0).all():
        return None
    names = {"protocol": "group", "step_time_s": "actual", "pred_step_time_s": "predicted"}
    return joined.rename(columns=names).assign(quantity="step_time_s").loc[:, list(PAIR_COLUMNS)]


KIND = Kind(
    name="step-time",
    summary="step time of data-parallel training from a part of the configurations",
    columns=COLUMNS,
    source="petuum/adaptdl (Apache-2.0) and siasosp23/artifacts (no licence named)",
    predict=predict,
    score=score,
    leave_out=leave_out,
    learn=learn,
    priors="models/step/priors.json",
    pairs=backtest_pairs,
)
