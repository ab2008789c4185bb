"""Real readings of child processes: forecasts at sizes left out, and samples that need more than others."""

from pathlib import Path

import memory_workloads
import numpy as np
import pytest

from tula_core.engine.launch import WorkerTask, launch
from tula_core.job import Job
from tula_core.models.memory import ContentMargin, fit_memory, state_bytes
from tula_core.records import ContentMemory, MemoryUse
from tula_core.workloads import describe

HELD_OUT = (48, 128)
SUPPORT = Path(memory_workloads.__file__).parent


def read(folder, name, sizes, content_s=0.0):
    made = getattr(memory_workloads, name)()
    job = Job(workload=f"memory_workloads:{name}").resolved(made.recipe, None)
    return job, describe(made, job), launched(folder, "readings", job, sizes=sizes, content_s=content_s)


def launched(folder, entry, job, **payload):
    payload["job"] = job.to_dict()
    task = WorkerTask(entry=f"memory_workloads:{entry}", payload=payload, folder=folder, timeout_s=200)
    return launch(task, lambda event: None).unwrap()


@pytest.fixture(scope="module")
def conv(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SUPPORT))
        job, facts, found = read(tmp_path_factory.mktemp("conv") / "task", "small_conv", [8, 24, 48, 96, 128])
    rows = [MemoryUse(nodes=1, processes_per_node=1, outcome="ok", **reading) for reading in found["memory"]]
    return job, facts, rows


def forecast(job, facts, rows, local_batch):
    state = state_bytes(facts, job.recipe)
    model = fit_memory(rows, gradient_bytes=facts.gradient_bytes, state=state, sample_bytes=facts.sample_bytes)
    return [float(part[0]) for part in model.predict(np.array([float(local_batch)]), np.ones(1))]


@pytest.mark.parametrize("held_out", HELD_OUT)
def test_a_small_networks_memory_lies_in_the_interval_at_sizes_left_out(conv, held_out):
    """Counting layers by hand misses temporaries, the runtime and what an allocator keeps."""
    job, facts, rows = conv
    known = [row for row in rows if row.local_batch not in HELD_OUT]
    actual = next(row.peak_bytes for row in rows if row.local_batch == held_out)
    value, low, high = forecast(job, facts, known, held_out)
    assert low <= actual <= high
    assert abs(value / actual - 1) < 0.1


def test_one_reading_bounds_the_others(conv):
    job, facts, rows = conv
    only = next(row for row in rows if row.local_batch == 24)
    for row in rows:
        value, low, high = forecast(job, facts, [only], row.local_batch)
        assert low <= row.peak_bytes <= high
        assert high < only.peak_bytes * max(1.0, row.local_batch / 24) * 1.15


def test_phases_are_read_apart(conv):
    _, facts, rows = conv
    large = rows[-1]
    assert large.peak_bytes == max(large.train_peak_bytes, large.eval_peak_bytes)
    assert large.base_bytes < large.train_peak_bytes
    assert large.train_peak_bytes - rows[0].train_peak_bytes > 100 * facts.sample_bytes


def test_a_sample_in_fifty_that_needs_ten_times_as_much_is_found(tmp_path):
    """A size that fits empty images dies on a crowded one some epochs later."""
    _, _, found = read(tmp_path / "task", "crowded", [8], content_s=30.0)
    content = ContentMemory(**found["content"])
    margin = ContentMargin.of(content)
    assert content.samples == 300
    assert margin.depends
    assert 5 < margin.worst < 10.5


def test_no_graph_outlives_its_pass(tmp_path):
    """A graph that is kept holds its activations: of a look at three hundred samples, more than the largest batch."""
    job = Job(workload="memory_workloads:marked").resolved(memory_workloads.marked().recipe, None)
    found = launched(tmp_path / "task", "graphs_left", job)
    assert found == {"in_steps": 0, "content": 0, "samples": 100}
