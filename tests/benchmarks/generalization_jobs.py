"""The jobs of the generalization benchmark, whole and cut down, and the workloads they train on.

Each job takes a fixed random part of a built-in data set. Rates are chosen on a fifth of that part, which is then not
trained on; what is reported is trained on the whole part and judged on the built-in test set.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tula_core.errors import InputError, nearest
from tula_core.job import Job
from tula_core.workloads import WORKLOADS, Workload
from tula_core.workloads.sizing import permutation

ENTRY = "tests.benchmarks.generalization_jobs:workload"
VALIDATION_SHARE = 0.2
TUNE, FINAL = "tune", "final"


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchJob:
    """A network, a part of a data set, a small and a large batch, and the epochs that both train.

    Attributes
    ----------
    workload
        Name of the built-in workload; its recipe's learning rate is the one the grids are laid around.
    samples, eval_samples
        Images of the training and of the test set that are used; None for all.
    seeds, tuning_seeds
        How often each row is trained, and how often each rate that is tried.
    reference_accuracy
        What the small batch reached in an earlier, independent measurement; None where there is none.
    averaged
        Whether the job counts in the means; the job that shows the gap at full training accuracy does not.
    """

    name: str
    workload: str
    samples: int | None
    eval_samples: int | None = None
    small_batch: int
    large_batch: int
    epochs: int
    seeds: int = 3
    tuning_seeds: int = 2
    reference_accuracy: float | None = None
    averaged: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """A set of jobs, and the rates that are tried: ``factors`` of each grid's middle, the same for all rows.

    ``probe_s`` is how long measuring may take before ``auto`` chooses.
    """

    name: str
    jobs: Mapping[str, BenchJob]
    factors: Sequence[float]
    probe_s: float


def _by_name(*jobs: BenchJob) -> dict[str, BenchJob]:
    return {job.name: job for job in jobs}


_MLP_20K = BenchJob(
    name="mlp-20k",
    workload="fashion-mlp",
    samples=20_000,
    small_batch=32,
    large_batch=2048,
    epochs=10,
    reference_accuracy=0.876,
)
_CNN_20K = BenchJob(
    name="cnn-20k",
    workload="fashion-cnn",
    samples=20_000,
    small_batch=64,
    large_batch=2048,
    epochs=5,
    reference_accuracy=0.888,
)
_MLP_60K = BenchJob(
    name="mlp-60k",
    workload="fashion-mlp",
    samples=60_000,
    small_batch=64,
    large_batch=4096,
    epochs=10,
    reference_accuracy=0.893,
)
_DIGITS = BenchJob(
    name="digits",
    workload="digits-cnn",
    samples=None,
    small_batch=32,
    large_batch=512,
    epochs=20,
    seeds=10,
    tuning_seeds=5,  # its validation split is small
    reference_accuracy=0.983,
)
# Long enough for the large batch at the small one's rate to fit all its images: it then lacks no steps.
_TRUE_GAP = BenchJob(
    name="true-gap",
    workload="fashion-mlp",
    samples=5_000,
    small_batch=32,
    large_batch=512,
    epochs=80,
    seeds=10,
    averaged=False,
)

FULL = Scale(
    name="full",
    jobs=_by_name(_MLP_20K, _CNN_20K, _MLP_60K, _DIGITS, _TRUE_GAP),
    factors=tuple(2.0**power for power in range(-3, 4)),
    probe_s=60.0,
)
_SHORT: dict[str, Any] = {"eval_samples": 1_000, "seeds": 2, "tuning_seeds": 1, "reference_accuracy": None}
# Fewer images, and large batches lowered alike, so that the large batch takes about as many steps as in the whole job.
QUICK = Scale(
    name="quick",
    jobs=_by_name(
        replace(_MLP_20K, samples=1_500, large_batch=160, **_SHORT),
        replace(_CNN_20K, samples=1_000, large_batch=128, **_SHORT),
        replace(_MLP_60K, samples=2_000, large_batch=192, **_SHORT),
        replace(_DIGITS, samples=480, large_batch=160, **_SHORT),
        replace(_TRUE_GAP, samples=640, large_batch=128, epochs=25, **_SHORT),
    ),
    factors=(0.25, 1.0, 4.0),
    probe_s=5.0,
)
SCALES = {scale.name: scale for scale in (FULL, QUICK)}


def job_name(scale: Scale, bench: BenchJob, split: str) -> str:
    """Return the name by which `workload` knows what to load."""
    return f"{scale.name}.{bench.name}.{split}"


def find_job(scale: Scale, name: str) -> BenchJob:
    """Return a job of a scale by its name.

    Raises
    ------
    InputError
        There is no such job.
    """
    if name not in scale.jobs:
        raise InputError(f"--jobs: {name!r} is unknown. {nearest(name, scale.jobs)}")
    return scale.jobs[name]


@functools.cache
def sizes(scale: str, bench: str, split: str) -> tuple[int, int]:
    """Return the samples that are trained on and those that are evaluated, by the names of scale and job."""
    name = job_name(SCALES[scale], SCALES[scale].jobs[bench], split)
    loaded = workload(Job(name=name, workload=ENTRY))
    return len(loaded.train_data), len(loaded.eval_data)  # type: ignore[arg-type]


def workload(job: Job) -> Workload:
    """Return the workload of a job whose name is from `job_name`."""
    scale, name, split = job.name.split(".")
    bench = SCALES[scale].jobs[name]
    whole = _whole(bench.workload)
    train, test = whole.train_set(), whole.eval_set()
    order = permutation(len(train), 0, "benchmark part")[: bench.samples]  # type: ignore[arg-type]
    held = round(VALIDATION_SHARE * len(order))
    if split == TUNE:
        train_part, eval_part = _part(train, order[held:]), _part(train, order[:held])
    else:
        chosen = permutation(len(test), 0, "benchmark test part")[: bench.eval_samples]  # type: ignore[arg-type]
        train_part, eval_part = _part(train, order), _part(test, chosen)
    return replace(whole, name=job.name, train_data=train_part, eval_data=eval_part, target=None)


@functools.lru_cache(maxsize=4)
def _whole(name: str) -> Workload:
    """Return a built-in workload whose data stays open: one worker trains hundreds of runs on it."""
    return WORKLOADS[name].make()


def _part(images: Any, indices: Sequence[int]) -> Any:
    """Return some images of an in-memory set, as quick to read as the whole."""
    part = copy.copy(images)
    part.images, part.targets = images.images[list(indices)], images.targets[list(indices)]
    return part
