"""Epochs that follow the law exactly, for tests."""

from __future__ import annotations

import numpy as np

from tula_core.models.power.law import device_of, epoch_time_power, work_of
from tula_core.models.power.rows import MeasuredRows, PowerRows

TOP_W = 300.0
DEVICE = np.array([np.log(0.2), 0.4, 0.0, np.log(3.0), 0.4])
WORKS = np.array(
    [
        [np.log(2000.0), np.log(9.0), np.log(0.2), np.log(0.4), 0.3, np.log(0.8), -2.0],
        [np.log(900.0), np.log(60.0), np.log(2.0), np.log(1.0), 0.3, np.log(1.2), -1.0],
        [np.log(4000.0), np.log(0.4), np.log(6.0), np.log(0.1), 0.3, np.log(0.5), -3.0],
    ]
)


def law_rows(batches: list[float], limits: list[float], works: int = 3) -> PowerRows:
    work, batch, limit = np.meshgrid(np.arange(works), batches, limits, indexing="ij")
    return PowerRows(work=work.ravel(), batch=batch.ravel(), limit_w=limit.ravel())


def law_values(rows: PowerRows, largest: float = 1024.0) -> tuple[np.ndarray, np.ndarray]:
    work = work_of(WORKS[rows.work], rows.batch, np.full_like(rows.batch, largest), TOP_W)
    return epoch_time_power(device_of(DEVICE, TOP_W), work, rows.limit_w)


def measured_law(rows: PowerRows, noise: float = 0.0, seed: int = 0) -> MeasuredRows:
    time_s, power_w = law_values(rows)
    scatter = np.exp(noise * np.random.default_rng(seed).normal(size=(2, len(time_s))))
    return MeasuredRows(asked=rows, time_s=time_s * scatter[0], power_w=power_w * scatter[1])
