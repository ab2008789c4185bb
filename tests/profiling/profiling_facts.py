"""Facts, machines and jobs for tests of the profiling."""

import dataclasses

from tula_core.engine.hardware import with_fingerprint
from tula_core.job import Job
from tula_core.records import Hardware, WorkloadFacts


def make_facts(**changes):
    facts = WorkloadFacts(
        name="blobs",
        parameters=58,
        gradient_bytes=232,
        train_samples=512,
        eval_samples=512,
        sample_shape=(4,),
        sample_bytes=16,
        metric="accuracy",
        higher_is_better=True,
        metric_ceiling=1.0,
        chance=0.5,
        has_batch_norm=False,
        code_fingerprint="0" * 64,
        notes=(),
    )
    return dataclasses.replace(facts, **changes)


def make_hardware(**changes):
    hardware = Hardware(
        fingerprint="",
        device="cpu",
        device_name="processor",
        devices=2,
        cores=2,
        memory_bytes=8 * 2**30,
        device_memory_bytes=None,
        threads_per_process=1,
        versions={"python": "3.11.7", "torch": "2.14.1", "numpy": "2.4.6", "tula": "0.1.0"},
    )
    return with_fingerprint(dataclasses.replace(hardware, **changes), "processor")


def make_job(changes=None):
    """A resolved job on the tiny workload, one process."""
    data = {
        "workload": "profiling_workloads:tiny",
        "recipe": {"learning_rate": 0.1, "batch_size": 32, "epochs": 8},
        "probe": {"seconds": 120},
    }
    for key, value in (changes or {}).items():
        data[key] = {**data[key], **value} if isinstance(data.get(key), dict) else value
    job = Job.from_mapping(data)
    return job.resolved(job.recipe, None)
