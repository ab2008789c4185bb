"""Workloads: what is trained. Networks, data sets and whole workloads by name, and the user's own by import path.

A user's function returns a `Workload`; `load_workload` finds it, `validate` tries it on a few samples, `describe`
states what a profile needs to know of it.
"""

from tula_core.workloads.builtin import WORKLOADS
from tula_core.workloads.datasets import DATASETS
from tula_core.workloads.describe import describe
from tula_core.workloads.images import InMemoryImages
from tula_core.workloads.load import load_workload
from tula_core.workloads.measures import LOSSES, METRICS
from tula_core.workloads.networks import NETWORKS
from tula_core.workloads.sizing import StreamDataset
from tula_core.workloads.types import Entry, Metric, Workload
from tula_core.workloads.validate import validate
from tula_core.workloads.weighted import WeightedLoss

__all__ = [
    "DATASETS",
    "LOSSES",
    "METRICS",
    "NETWORKS",
    "WORKLOADS",
    "Entry",
    "InMemoryImages",
    "Metric",
    "StreamDataset",
    "WeightedLoss",
    "Workload",
    "describe",
    "load_workload",
    "validate",
]
