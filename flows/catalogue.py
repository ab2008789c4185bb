"""What ``tula list`` shows: everything that has a name, each with a line."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from tula_core.job import Job, builtin_names

Entries = list[tuple[str, str]]


def catalogue() -> list[tuple[str, Entries]]:
    """Return ``(kind, [(name, line), ...])`` for jobs and every registry."""
    from tula_core.mitigations import MITIGATIONS
    from tula_core.workloads import DATASETS, NETWORKS, WORKLOADS

    registries: dict[str, Mapping[str, Any]] = {
        "Workloads": WORKLOADS,
        "Networks (and every network of torchvision, by its name there)": NETWORKS,
        "Data sets (and torchvision's by name, an image folder by path)": DATASETS,
        "Mitigations": MITIGATIONS,
    }
    jobs = [(name, _job_line(Job.builtin(name))) for name in builtin_names()]
    return [("Built-in jobs", jobs), *((kind, entries(registry)) for kind, registry in registries.items())]


def entries(registry: Mapping[str, Any]) -> Entries:
    """Return the names of a registry with a line each: its description or summary, else the first line of its docs."""
    return [(name, _line(entry)) for name, entry in registry.items()]


def _line(entry: Any) -> str:
    for name in ("description", "summary"):
        text = getattr(entry, name, None)
        if isinstance(text, str):
            source = getattr(entry, "source", None)
            return f"{text} ({source})" if isinstance(source, str) else text
    return (inspect.getdoc(entry) or "").split("\n")[0]


def _job_line(job: Job) -> str:
    cluster = job.cluster
    most = f"at most {cluster.nodes} x {cluster.processes_per_node} processes"
    return f"workload {job.workload or job.network}, {most}, probe {job.probe.seconds:g} s"
