"""Step times of recorded clusters: interpolation (p1) and extrapolation from two nodes (p2).

Each CSV file with a column ``split_p1`` holds measured steps of (cluster, network) pairs. For a pair and a protocol the
law of `tula_core.models.step` is fitted to the rows whose split is ``profile``, with the priors that the package
carries, and predicts those whose split begins with ``test``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tula_core.bench.kind import PAIR_COLUMNS, Kind, Table
from tula_core.bench.step_time_rows import PROTOCOLS, asked, in_order, known, pairs, read_rows, shapes_of, timings_of
from tula_core.errors import InputError
from tula_core.models.inference.fitting import Z90
from tula_core.models.step.fitted import Fitted
from tula_core.models.step.inference import fit_law
from tula_core.models.step.population import Population, load_population, prior_of

Array = NDArray[np.float64]
Populations = Callable[[str, str], Population]

COLUMNS = ("row_id", "protocol", "pred_step_time_s", "low", "high")

_UNMEASURED_S, _UNMEASURED_LOG_SD = 0.3, 2.0  # a step of any network on any accelerator: from 10 ms to 10 s
_MOST_SHIFT_SD = 0.6  # beyond it a log standard deviation says no more about the point forecast


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


def unmeasured(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of `forecast` for rows of a pair of which nothing is known: what steps of networks may take.

    The law's priors are free of seconds, so that they say nothing here; the range is wide on purpose and empirical.
    """
    reach = np.exp(Z90 * _UNMEASURED_LOG_SD)
    middle, ones = _UNMEASURED_S * (1.0 + rows["accum_steps"].to_numpy(float)), np.ones(len(rows))
    found = {"pred_step_time_s": middle * ones, "low": middle / reach, "high": middle * reach}
    return pd.DataFrame(found, index=rows.index)


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
            profile = in_order(known(group, protocol))
            if profile.empty:
                each = unmeasured(wanted)
            else:
                population, timings = populations(cluster, network), timings_of(profile)
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


def learn(folder: Path) -> dict[str, object]:
    """Return the values of the priors file; see `tula_core.bench.step_time_learning`."""
    from tula_core.bench.step_time_learning import learn_priors

    return learn_priors(read_rows(folder))


def score(folder: Path, predictions: pd.DataFrame) -> list[Table] | None:
    """Return tables of errors and coverage beside plain laws; see `tula_core.bench.step_time_tables`."""
    from tula_core.bench.step_time_tables import score_tables

    return score_tables(read_rows(folder), predictions)


def leave_out(folder: Path) -> list[Table]:
    """Return tables of errors with priors learnt without the cluster, and without the network, that is predicted."""
    from tula_core.bench.step_time_tables import leave_out_tables

    return leave_out_tables(read_rows(folder))


def backtest_pairs(folder: Path, predictions: pd.DataFrame) -> pd.DataFrame | None:
    """Return predictions beside what was measured, by protocol and pair, in the columns of `PAIR_COLUMNS`."""
    rows = read_rows(folder)[["row_id", "step_time_s", "cluster", "model"]]
    joined = predictions.merge(rows, on="row_id", validate="many_to_one")
    if not (pd.to_numeric(joined["step_time_s"], errors="coerce") > 0).all():
        return None
    joined["quantity"] = "step_time_s, " + joined["protocol"].astype(str)
    joined["group"] = joined["cluster"].astype(str) + " " + joined["model"].astype(str)
    names = {"step_time_s": "actual", "pred_step_time_s": "predicted"}
    return joined.rename(columns=names).loc[:, list(PAIR_COLUMNS)]


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
