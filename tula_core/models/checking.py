"""Refuses a profile whose numbers cannot be true, before any model is fitted to them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tula_core.errors import InputError
from tula_core.records.profile import Profile

_REMEDY = "Measure again (tula profile --reprofile) or remove that entry"
_MOST, _LEAST = 1e18, 1e-12  # what is beyond is no measurement, and would overflow in a model
_LEAST_MEMORY = 2**20  # bytes; no machine that trains has less
_SHAPE = ("nodes", "processes_per_node")

_POSITIVE = {
    "steps": (*_SHAPE, "local_batch", "accumulation", "steps", "step_time_s"),
    "communication": (*_SHAPE, "message_bytes", "time_s"),
    "memory": (*_SHAPE, "local_batch"),
    "start_up": _SHAPE,
    "evaluation": (*_SHAPE, "samples", "seconds"),
    "pilots": ("global_batch", "planned_samples"),
    "power": (*_SHAPE, "local_batch", "node_w"),
}
_NOT_NEGATIVE = {
    "steps": (
        "step_time_median_s",
        "step_time_error_s",
        "first_step_s",
        "loader_s",
        "compute_s",
        "communication_s",
        "optimizer_s",
    ),
    "start_up": ("seconds",),
}


def check_profile(profile: Profile) -> None:
    """Check every number that a model reads.

    Raises
    ------
    InputError
        Names the first field that is not finite, negative, or zero where it must not be; or says that no step was
        timed.
    """
    for group, names in _POSITIVE.items():
        _check_all(group, getattr(profile, group), names, low=0.0, open_end=True)
    for group, names in _NOT_NEGATIVE.items():
        _check_all(group, getattr(profile, group), names, low=0.0)
    for index, use in enumerate(profile.memory):
        if use.outcome in ("ok", "over_limit"):
            _check(f"memory[{index}].peak_bytes", use.peak_bytes, low=0.0, open_end=True)
    for name in ("memory_bytes", "device_memory_bytes"):
        if getattr(profile.hardware, name) is not None:
            _check(f"hardware.{name}", getattr(profile.hardware, name), low=_LEAST_MEMORY)
    _check_beside(profile)
    for index, row in enumerate(profile.steps):
        if row.block_scatter is not None:
            _check(f"steps[{index}].block_scatter", row.block_scatter, low=0.0)
    for index, drawn in enumerate(profile.power):
        for name in ("accelerator_w", "limit_w"):
            if getattr(drawn, name) is not None:
                _check(f"power[{index}].{name}", getattr(drawn, name), low=0.0, open_end=True)
    _check_facts(profile)
    _check_pilots(profile)
    if profile.checkpoint_s is not None:
        _check("checkpoint_s", profile.checkpoint_s, low=0.0)
    if profile.noise is not None and profile.noise.noise_scale_samples is not None:
        _check("noise.noise_scale_samples", profile.noise.noise_scale_samples, low=0.0, open_end=True)
    if not profile.steps:
        raise InputError(
            "profile.steps: is empty, at least one timed configuration is needed. "
            "Give the probe more time (probe.seconds) and measure again."
        )


def _check_beside(profile: Profile) -> None:
    """Check other precisions, and what samples and hosts need."""
    for index, timing in enumerate(profile.precisions):
        if timing.outcome == "ok":
            for name in ("local_batch", "compute_s", "reference_compute_s"):
                _check(f"precisions[{index}].{name}", getattr(timing, name), low=0.0, open_end=True)
        for name in ("ratio_error", "optimizer_s", "reference_optimizer_s", "peak_bytes", "reference_peak_bytes"):
            if getattr(timing, name) is not None:
                _check(f"precisions[{index}].{name}", getattr(timing, name), low=0.0)
    for index, use in enumerate(profile.memory):
        for name in ("base_bytes", "first_peak_bytes", "train_peak_bytes", "eval_peak_bytes", "eval_batch"):
            if getattr(use, name) is not None:
                _check(f"memory[{index}].{name}", getattr(use, name), low=0.0, open_end=True)
    if profile.content is not None:
        for name in ("samples", "mean_bytes", "sd_bytes", "worst_bytes"):
            _check(f"content.{name}", getattr(profile.content, name), low=0.0)
    if profile.host is not None:
        for name in ("process_bytes", "worker_bytes"):
            if getattr(profile.host, name) is not None:
                _check(f"host.{name}", getattr(profile.host, name), low=0.0)


def _check_facts(profile: Profile) -> None:
    facts = profile.facts
    _check("facts.train_samples", facts.train_samples, low=0.0, open_end=True)
    _check("facts.gradient_bytes", facts.gradient_bytes, low=0.0)
    _check("facts.eval_samples", facts.eval_samples, low=0.0)
    for name in ("metric_ceiling", "chance"):
        value = getattr(facts, name)
        if value is not None:
            _check(f"facts.{name}", value)


def _check_pilots(profile: Profile) -> None:
    best = profile.facts.metric_ceiling
    slack = 1e-6 * max(1.0, abs(best or 0.0))
    limits = (
        {} if best is None else ({"high": best + slack} if profile.facts.higher_is_better else {"low": best - slack})
    )
    for number, pilot in enumerate(profile.pilots):
        if pilot.diverged:  # a diverged pilot may hold anything; its points are not read
            continue
        group = f"pilots[{number}].points"
        _check_all(group, pilot.points, ("samples",), low=0.0)
        _check_all(group, pilot.points, ("eval_samples",), low=0.0, open_end=True)
        _check_all(group, pilot.points, ("metric",), **limits)
        _check_all(group, pilot.points, ("schedule_fraction", "annealing"), low=0.0, high=1.0)


def _check_all(group: str, rows: Iterable[Any], names: tuple[str, ...], **limits: Any) -> None:
    for index, row in enumerate(rows):
        for name in names:
            _check(f"{group}[{index}].{name}", getattr(row, name), **limits)


def _check(field: str, value: Any, *, low: float = -math.inf, high: float = math.inf, open_end: bool = False) -> None:
    # The bound also keeps whole numbers that no float can hold away from arithmetic; NaN is within nothing.
    number = isinstance(value, int | float) and not isinstance(value, bool) and -_MOST <= value <= _MOST
    if number and low <= value <= high and not (open_end and value < low + _LEAST):
        return
    above = "" if low == -math.inf else (f" above {low:g}" if open_end else f" of at least {low:g}")
    below = "" if high == math.inf else f" and at most {high:g}"
    raise InputError(f"profile.{field}: a finite number{above}{below} is needed, got {value!r}. {_REMEDY}.")
