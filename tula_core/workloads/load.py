"""From a job to its `Workload`: built in, by import path, or a network and a data set by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from tula_core.errors import InputError, nearest
from tula_core.job import Job, Recipe, Target
from tula_core.seeding import derive_seed
from tula_core.workloads.builtin import WORKLOADS
from tula_core.workloads.imports import call, import_object, is_import_path
from tula_core.workloads.measures import LOSSES, METRICS
from tula_core.workloads.named import named_workload
from tula_core.workloads.randomness import fixed_randomness
from tula_core.workloads.types import Loss, Metric, Workload


def load_workload(job: Job, *, search_path: Sequence[str] = ()) -> Workload:
    """Return the workload a job names; no data is read yet.

    The user's code runs with generators seeded by the job's seed. ``samples`` gives the length of a training set that
    has none; a training set that has one is cut to the first ``samples`` of a permutation that depends on the job's
    seed. ``loss`` and ``metric`` go before the workload's own.

    Parameters
    ----------
    job
        With ``workload``, a built-in name or ``package.module:function`` (called with no argument or, if it takes one,
        with the job), or with ``network`` and ``dataset``.
    search_path
        More folders to import from, after ``sys.path`` and before the current folder.

    Raises
    ------
    InputError
        A name is unknown, an import fails, a field of the result is wrong, or the target does not fit the metric.
    """
    # The user's module may split or shuffle its data while it is imported or called: alike in every process.
    with fixed_randomness(derive_seed(job.seed, "workload")):
        workload = _named(job, search_path)
        changes: dict[str, Any] = {"data_seed": job.seed}
        if job.loss is not None:
            changes["loss"] = _loss(job.loss, search_path)
        if job.metric is not None:
            changes["metric"] = _metric(job.metric, search_path)
            if workload.target is not None and workload.target.metric != changes["metric"].name:
                changes["target"] = None
    if job.samples is not None:
        changes |= {"samples": job.samples, "sample_seed": job.seed}
    workload = dataclasses.replace(workload, **changes)
    _check_fields(workload)
    target = job.resolved(workload.recipe, workload.target).target
    if isinstance(target, Target):
        _check_target(target, workload.metric)
    return workload


def _named(job: Job, search_path: Sequence[str]) -> Workload:
    if job.workload is None:
        return named_workload(job, search_path)
    if job.workload in WORKLOADS:
        return WORKLOADS[job.workload].make()
    if not is_import_path(job.workload):
        raise InputError(
            f"workload: {job.workload!r} is unknown. {nearest(job.workload, WORKLOADS)} "
            "Or write package.module:function, or give network and dataset."
        )
    made = import_object("workload", job.workload, search_path)
    if callable(made) and not isinstance(made, Workload):
        made = call("workload", made, job)
    if not isinstance(made, Workload):
        raise InputError(
            f"workload: {job.workload} gave {type(made).__name__}. It must return a tula_core.workloads.Workload."
        )
    return made


def _loss(text: str, search_path: Sequence[str]) -> Loss:
    found: Loss = import_object("loss", text, search_path) if is_import_path(text) else LOSSES[text]
    return found


def _metric(text: str, search_path: Sequence[str]) -> Metric:
    found = import_object("metric", text, search_path) if is_import_path(text) else METRICS[text]
    made = call("metric", found) if callable(found) else found
    if not isinstance(made, Metric):
        raise InputError(f"metric: {text} is {type(made).__name__}. It must be a tula_core.workloads.Metric.")
    return made


def _is_data(value: Any) -> bool:
    return callable(value) or hasattr(value, "__getitem__") or hasattr(value, "__iter__")


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0)


_NETWORK = "a function that returns a new torch.nn.Module each time, not a module"
_DATA = "a torch.utils.data.Dataset or a function that returns one"
_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda value: isinstance(value, str) and bool(value), "text"),
    "network": (lambda value: callable(value) and not isinstance(value, nn.Module), _NETWORK),
    "train_data": (_is_data, _DATA),
    "eval_data": (_is_data, _DATA),
    "loss": (callable, "a function of output and target that returns a scalar"),
    "metric": (lambda value: isinstance(value, Metric), "a Metric, for example METRICS['accuracy']"),
    "recipe": (lambda value: isinstance(value, Recipe), "a tula_core.job.Recipe"),
    "target": (lambda value: value is None or isinstance(value, Target), "a tula_core.job.Target or None"),
    "samples": (_is_count, "a number above 0 or None"),
    "collate": (lambda value: value is None or callable(value), "a function of a list of items, or None"),
}


def _check_fields(workload: Workload) -> None:
    wrong = [
        f"{name} is {type(getattr(workload, name)).__name__}, must be {allowed}"
        for name, (fits, allowed) in _FIELDS.items()
        if not fits(getattr(workload, name))
    ]
    if wrong:
        raise InputError(f"workload: {'; '.join(wrong)}. Mend the function that makes the Workload.")


def _check_target(target: Target, metric: Metric) -> None:
    if target.metric != metric.name:
        raise InputError(
            f"target.metric: {target.metric!r} is not what the workload measures. "
            f"Write {metric.name!r}, set metric: {target.metric} beside it, or target: none."
        )
    if metric.ceiling is None:
        return
    beyond = target.value > metric.ceiling if metric.higher_is_better else target.value < metric.ceiling
    if beyond:
        bound = "at most" if metric.higher_is_better else "at least"
        raise InputError(
            f"target.value: {target.value:g} cannot be reached, {metric.name} is {bound} {metric.ceiling:g}. "
            "Write a fraction, for example 0.9 for 90 %."
        )
