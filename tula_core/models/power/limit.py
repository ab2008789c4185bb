"""What a power limit does to a step of a device that was measured without it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.inference.fitting import standard_draws
from tula_core.models.power.law import DEVICE_NAMES, WORK_NAMES, Work, device_of, epoch_time_power
from tula_core.models.power.priors import Priors, learnt

Array = NDArray[np.float64]

_DRAWS = 128
_MOST_STATIC = 0.8  # of what a busy device draws
_SWING = WORK_NAMES.index("swing")
_LEAST_SHARE = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitEffect:
    """Factors on time and on the accelerator's power under a limit, with their log standard deviations."""

    time_factor: float
    time_log_sd: float
    power_factor: float
    power_log_sd: float
    demand_w: float  # of one accelerator without the limit


def limit_effect(
    limit_w: float, top_w: float, demand_w: float | None, host_share: float, priors: Priors | None = None
) -> LimitEffect:
    """Return what a limit does to time and power, by `tula_core.models.power.law` over draws of its priors.

    Parameters
    ----------
    limit_w, top_w
        The limit asked, and the one that holds without it.
    demand_w
        Mean power of one accelerator as measured under ``top_w``, None where it is not known.
    host_share
        Share of a step in which the accelerator waits for the host.
    """
    known = learnt() if priors is None else priors
    normal = standard_draws(_DRAWS, len(DEVICE_NAMES) + 1, seed=6)
    device = device_of(known.device_mean + known.device_sd * normal[:, :-1], top_w)
    busy = float(np.clip(1 - host_share, _LEAST_SHARE, 1.0))
    swing_w = top_w * np.exp(known.work_mean[_SWING] + known.work_sd[_SWING] * normal[:, -1:])
    if demand_w is not None:
        static_w = np.minimum(device.static_w, _MOST_STATIC * demand_w)
        device = device_of(known.device_mean + known.device_sd * normal[:, :-1], top_w, static_w)
        swing_w = (demand_w - static_w) / busy
    work = Work(
        host_s=np.full_like(swing_w, 1 - busy),
        latency_s=np.zeros_like(swing_w),
        busy_s=np.full_like(swing_w, busy),
        serial_s=np.zeros_like(swing_w),
        norm=np.ones_like(swing_w),
        swing_w=swing_w,
    )
    free_s, free_w = epoch_time_power(device, work, np.full_like(swing_w, top_w))
    held_s, held_w = epoch_time_power(device, work, np.full_like(swing_w, min(limit_w, top_w)))
    slower, draws_less = np.log(held_s / free_s), np.log(held_w / free_w)
    return LimitEffect(
        time_factor=max(1.0, float(np.exp(np.median(slower)))),
        time_log_sd=float(np.std(slower)),
        power_factor=min(1.0, float(np.exp(np.median(draws_less)))),
        power_log_sd=float(np.std(draws_less)),
        demand_w=float(np.median(free_w)) if demand_w is None else demand_w,
    )
