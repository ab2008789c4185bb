"""Learning the priors of time and power by empirical Bayes, and what they are worth where they were not learnt."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tula_core.bench.energy_data import ANSWERS, ASKED, GROUP, measured_of, read_epochs, rows_of, works
from tula_core.errors import InputError
from tula_core.models.inference.fitting import Z90
from tula_core.models.power.fit import PowerFit, fit_power
from tula_core.models.power.law import DEVICE_NAMES, WORK_NAMES
from tula_core.models.power.model import PowerForecast, PowerModel, fit_model
from tula_core.models.power.priors import BROAD, Priors

Array = NDArray[np.float64]

_ROUNDS = 4  # of expectation and maximisation; the means move little after the third
_DOUBTS = ["time_log_sd", "power_log_sd", "energy_log_sd"]
_STRENGTH = 2.0  # devices, and works, that the broad prior counts for: two devices say little of all
_DEVICE, _WORK = len(DEVICE_NAMES), len(WORK_NAMES)


def learn(folder: Path) -> dict[str, object]:
    """Return the priors learnt from every row of a folder, as plain values."""
    return learn_priors(read_epochs(folder)).to_dict()


def learn_priors(frame: pd.DataFrame) -> Priors:
    """Return the priors learnt from measured rows, intervals widened to hold 90 % of devices that were left out."""
    devices = [device for _, device in frame.groupby("gpu", sort=True)]
    misses = []
    for number, left_out in enumerate(devices):
        others = devices[:number] + devices[number + 1 :]
        misses.append(_standardised_misses(left_out, _without_widening(others or [left_out])))
    wide = np.quantile(np.abs(np.concatenate(misses, axis=1)), 0.9, axis=1) / Z90
    time, power, energy = (float(max(factor, 0.5)) for factor in wide)
    return dataclasses.replace(
        _without_widening(devices), time_widening=time, power_widening=power, energy_widening=energy
    )


def forecast_frame(frame: pd.DataFrame, priors: Priors | None = None) -> pd.DataFrame:
    """Return the forecast of every row from the known ones, each gpu by itself, on the frame's index."""
    parts = []
    # In an order of its own, so that the order of rows in the files changes no digit.
    for _, device in frame.sort_values([*ASKED, *ANSWERS]).groupby("gpu", sort=True):
        known, work = device.known.to_numpy(), works(device)
        if not known.any():
            raise InputError(_nothing_known(device))
        seen, measured_work = np.unique(work[known], return_inverse=True)
        model = fit_model(measured_of(device[known], measured_work), priors)
        told = np.isin(work, seen)
        mine = device[told]
        parts.append(_columns(model.forecast(rows_of(mine, np.searchsorted(seen, work[told]))), mine.index))
        if not told.all():
            parts.append(_like_the_others(model, device[~told], len(seen)))
    return pd.concat(parts).loc[frame.index]


def _nothing_known(device: pd.DataFrame) -> str:
    first = device.iloc[0]
    group = ", ".join(str(first[name]) for name in GROUP)
    return (
        f"--data: no row may be known for {group}: at the lowest or highest power_limit its smallest, middle and "
        "largest batch_size are missing. Give at least one of these rows."
    )


def _columns(forecast: PowerForecast, index: pd.Index) -> pd.DataFrame:
    return pd.DataFrame({field.name: getattr(forecast, field.name) for field in dataclasses.fields(forecast)}, index)


def _like_the_others(model: PowerModel, rows: pd.DataFrame, works: int) -> pd.DataFrame:
    """Return the forecast of a work without a known row: the geometric mean of the accelerator's other works there.

    Empirical; as uncertain as works differ, and never less than by a factor e.
    """
    logs, doubts = [], []
    for number in range(works):
        each = _columns(model.forecast(rows_of(rows, np.full(len(rows), number))), rows.index)
        logs.append(np.log(each[["time_s", "power_w", "energy_j"]].to_numpy()))
        doubts.append(each[_DOUBTS].to_numpy())
    spread = np.sqrt(np.var(logs, axis=0) + np.mean(np.square(doubts), axis=0) + 1.0)
    time, power, _ = np.mean(logs, axis=0).T
    found = pd.DataFrame({"time_s": np.exp(time), "power_w": np.exp(power), "energy_j": np.exp(time + power)})
    return found.set_index(rows.index).assign(**dict(zip(_DOUBTS, spread.T, strict=True)))


def _standardised_misses(device: pd.DataFrame, priors: Priors) -> Array:
    """Return log errors over their standard deviations of asked rows, shape (time, power, energy; rows)."""
    asked = device[~device.known]
    found = forecast_frame(device, priors).loc[asked.index]
    time = np.log(asked.time_per_epoch / found.time_s)
    power = np.log(asked.average_power / found.power_w)
    return np.stack([time / found.time_log_sd, power / found.power_log_sd, (time + power) / found.energy_log_sd])


def _without_widening(devices: Sequence[pd.DataFrame]) -> Priors:
    """Return priors by expectation and maximisation over the devices, all their rows known."""
    priors = BROAD
    for _ in range(_ROUNDS):
        fits = [fit_power(measured_of(device, works(device)), priors) for device in devices]
        priors = _from_fits(fits, devices, priors)
    return priors


def _from_fits(fits: Sequence[PowerFit], devices: Sequence[pd.DataFrame], before: Priors) -> Priors:
    """Return means and spreads of the fitted parameters; their uncertainty counts as spread (Dempster et al. 1977)."""
    device = np.stack([fit.vector[:_DEVICE] for fit in fits])
    device_variance = np.stack([np.diag(fit.covariance)[:_DEVICE] for fit in fits])
    work = np.concatenate([fit.vector[_DEVICE:].reshape(-1, _WORK) - fit.anchors for fit in fits])
    work_variance = np.concatenate([np.diag(fit.covariance)[_DEVICE:].reshape(-1, _WORK) for fit in fits])
    device_mean, device_sd = _moments(device, device_variance, BROAD.device_mean, BROAD.device_sd)
    work_mean, work_sd = _moments(work, work_variance, BROAD.work_mean, BROAD.work_sd)
    off = np.concatenate([_misfits(fit, rows) for fit, rows in zip(fits, devices, strict=True)], axis=1)
    time, power = 1.4826 * np.median(np.abs(off), axis=1)  # a robust standard deviation: half the rows lie within it
    return dataclasses.replace(
        before,
        device_mean=device_mean,
        device_sd=device_sd,
        work_mean=work_mean,
        work_sd=work_sd,
        time_misfit=float(max(time, 0.01)),
        power_misfit=float(max(power, 0.01)),
    )


def _moments(values: Array, variances: Array, mean: Array, sd: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation of values of shape (n, k), shrunk to broad ones that count for a few."""
    count = len(values) + _STRENGTH
    centre = (values.sum(axis=0) + _STRENGTH * mean) / count
    spread = ((values - centre) ** 2 + variances).sum(axis=0) + _STRENGTH * sd**2
    return centre, np.sqrt(spread / count)


def _misfits(fit: PowerFit, device: pd.DataFrame) -> Array:
    measured = measured_of(device, works(device))
    return np.log(np.stack([measured.time_s, measured.power_w])) - fit.law(measured.asked)
