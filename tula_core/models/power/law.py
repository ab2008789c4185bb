"""Time and mean power of an epoch on one accelerator, by batch size and power limit.

An epoch is host work and device work side by side, and serial work that overlaps with neither. The device's clock
follows the power limit (`tula_core.models.power.clock`), the host's does not: what waits for the host loses nothing to
a low limit. Parameters are vectors of real numbers so that a Gaussian prior fits them; `device_of` and `work_of` say
what each means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.power.clock import clock_within, dynamic_share, power_budget_w

Array = NDArray[np.float64]

DEVICE_NAMES = ("static", "voltage_floor", "limit", "sharpness", "latency_power")
WORK_NAMES = ("small", "busy", "loader", "serial", "norm", "swing", "latency")


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """An accelerator; all arrays broadcast over rows.

    Attributes
    ----------
    top_w
        Its highest power limit.
    static_w
        Drawn whatever the clock does.
    voltage_floor
        See `tula_core.models.power.clock.dynamic_share`.
    limit_share
        Mean power over the limit while the limit holds.
    sharpness
        See `tula_core.models.power.clock.power_budget_w`.
    latency_power
        Dynamic power of kernels too small to fill the device, relative to full ones, in (0, 1).
    """

    top_w: float
    static_w: Array
    voltage_floor: Array
    limit_share: Array
    sharpness: Array
    latency_power: Array


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """The work of one epoch; all arrays broadcast over rows.

    Attributes
    ----------
    host_s
        Host seconds per epoch at this batch size: what each step costs, and the loader.
    latency_s, busy_s
        Device seconds per epoch at the full clock: kernels that do not fill the device, and those that do.
    serial_s
        Seconds in which the device waits for what cannot overlap: the first batch of an epoch, padding and collation.
    norm
        p >= 1 of the overlap of host and device: 1 is one after the other, infinite is perfect overlap.
    swing_w
        Dynamic power of the busy device at the full clock.
    """

    host_s: Array
    latency_s: Array
    busy_s: Array
    serial_s: Array
    norm: Array
    swing_w: Array


def device_of(vector: Array, top_w: float, static_w: Array | None = None) -> Device:
    """Return the device of a parameter vector of shape (..., 5), with a last axis of one for the rows.

    ln(static / top), logit(voltage floor), ln(limit share), ln(sharpness), logit(latency power); ``static_w`` replaces
    the first where it is known.
    """
    static, floor, share, sharpness, latency = (vector[..., i, None] for i in range(len(DEVICE_NAMES)))
    return Device(
        top_w=top_w,
        static_w=np.exp(static) * top_w if static_w is None else static_w,
        voltage_floor=_logistic(floor),
        limit_share=np.exp(share),
        sharpness=np.exp(sharpness),
        latency_power=_logistic(latency),
    )


def work_of(vector: Array, batch: Array, largest_batch: Array, top_w: float) -> Work:
    """Return the work of parameter vectors of shape (..., n, 7), one for each row.

    a, g, l, c, p, d, q: work per step gives a/B, of which a share q runs on the device; busy device g; loader l; serial
    c B / B_max; overlap p; dynamic power d x top. Time per epoch is then ||(host, device)||_p + serial, with host =
    (1-q) a/B + l and device = q a/B + g. ln(a), ln(g), ln(l), ln(c), ln(p - 1), ln(d), logit(q). Empirical.
    """
    small, busy, loader, serial, norm, swing, latency = (vector[..., i] for i in range(len(WORK_NAMES)))
    per_step_s = np.exp(small) / batch
    on_device = _logistic(latency)
    return Work(
        host_s=(1 - on_device) * per_step_s + np.exp(loader),
        latency_s=on_device * per_step_s,
        busy_s=np.exp(busy),
        serial_s=np.exp(serial) * batch / largest_batch,
        norm=1 + np.exp(norm),
        swing_w=np.exp(swing) * top_w,
    )


def epoch_time_power(device: Device, work: Work, limit_w: Array) -> tuple[Array, Array]:
    """Return seconds and mean watts of an epoch under a power limit, each of the rows' shape.

    The clock is the highest whose mean power while host and device work keeps the budget. Mean power is
    static + swing x share of time that the device is busy x `dynamic_share`, weighted with the serial time, in which
    only the static power is drawn: peaks longer than the controller's window are cut even where the mean is below the
    limit.
    """
    _, demand_w = _overlapped(device, work, np.ones_like(work.host_s))
    budget_w = power_budget_w(device.limit_share * limit_w, demand_w, device.static_w, device.sharpness, device.top_w)
    clock = clock_within(lambda trial: _overlapped(device, work, trial)[1], budget_w)
    together_s, power_w = _overlapped(device, work, clock)
    total_s = together_s + work.serial_s
    return total_s, (power_w * together_s + device.static_w * work.serial_s) / total_s


def _overlapped(device: Device, work: Work, clock: Array) -> tuple[Array, Array]:
    """Return seconds and mean watts of the part in which host and device work side by side."""
    device_s = (work.latency_s + work.busy_s) / clock
    longer_s = np.maximum(work.host_s, device_s)
    ratio_s = (work.host_s / longer_s) ** work.norm + (device_s / longer_s) ** work.norm
    together_s = longer_s * ratio_s ** (1 / work.norm)
    full_s = (work.busy_s + device.latency_power * work.latency_s) / clock
    return together_s, device.static_w + work.swing_w * full_s / together_s * dynamic_share(clock, device.voltage_floor)


def _logistic(value: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(value, -30.0, 30.0))))
