"""Time that was kept for later workers and is taken by the first, so that a longer probe never learns less."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from profiling_facts import make_job

from tula_core.engine.context import WorkerContext
from tula_core.job import Job
from tula_core.profiling.pilot import FEWEST_STEPS, Pilots
from tula_core.profiling.rig import Rig
from tula_core.profiling.sweep import PILOT_SHARE, claim_pilot
from tula_core.profiling.worlds import own_seconds
from tula_core.workloads.load import load_workload

HERE = Path(__file__).parent
Made = Callable[..., Rig]


@pytest.fixture
def rig_of(tmp_path: Path, kept_signals: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Make a worker of one process, in this very process, that was launched ``start_s`` ago."""
    monkeypatch.syspath_prepend(str(HERE))
    made, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)

    def make(seconds: float, start_s: float) -> Rig:
        job = Job(workload="profiling_workloads:tiny", probe={"seconds": seconds})
        job = job.resolved(load_workload(job).recipe, None)
        made.append(WorkerContext({"nodes": 1, "processes_per_node": 1, "rendezvous": ""}, tmp_path))
        times = {"seconds": seconds, "launched_at_s": time.time() - start_s, "share": 0.5, "later_starts": 1}
        return Rig(made[-1], {"job": job.to_dict(), **times})

    yield make
    torch.set_num_threads(threads)
    for context in made:
        context.close()


def test_a_probe_long_enough_for_another_start_leaves_the_first_worker_less() -> None:
    shorter, longer = (own_seconds(left, 9.0, share=0.5, later_starts=1) for left in (22.0, 24.0))
    assert longer < 0.2 * shorter


@pytest.mark.parametrize("seconds", [2200.0, 2400.0, 20000.0])
def test_what_is_claimed_is_taken_of_the_time_of_later_workers_and_never_of_more(rig_of: Made, seconds: float) -> None:
    rig = rig_of(seconds, 900.0)
    own, most = rig.left_s(), rig.most_left_s()
    assert most == pytest.approx(seconds - 900.0, abs=100.0) and own <= most
    rig.claim(own / 2)
    assert own - 100.0 < rig.left_s() <= own
    rig.claim(0.9 * most)
    assert 0.9 * most - 100.0 < rig.left_s() <= max(own, 0.9 * most)
    rig.claim(10 * most)
    assert most - 100.0 < rig.left_s() <= most


def test_a_pilot_claims_nothing_where_all_there_is_would_not_be_enough(rig_of: Made) -> None:
    """Later workers would have been measured with it, and no pilot runs all the same."""
    rig = rig_of(2400.0, 900.0)
    own, most = rig.left_s(), rig.most_left_s()
    claim_pilot(rig, 0.6 * most)
    assert rig.left_s() <= own
    claim_pilot(rig, 0.45 * most)
    assert rig.left_s() > 0.45 / PILOT_SHARE * most - 1.0


def test_several_processes_claim_nothing_as_all_would_have_to_agree(
    rig_of: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_of(2400.0, 900.0)
    own = rig.left_s()
    with monkeypatch.context() as patched:
        patched.setattr(rig.context, "processes", 2)
        rig.claim(1000.0)
    assert rig.left_s() <= own


def test_a_longer_probe_is_advised_by_what_the_worker_could_have_had(rig_of: Made) -> None:
    rig = rig_of(2400.0, 900.0)
    assert rig.probe_for(0.5) == rig.probe_for(1.0) == 2400.0
    assert rig.probe_for(2.0) == pytest.approx(2400.0 + 1500.0, abs=100.0)


@pytest.mark.parametrize("step_s", [1e-3, 0.05, 2.0])
@pytest.mark.parametrize("eval_sample_s", [1e-6, 1e-3, 0.02])
@pytest.mark.parametrize("noise", [False, True])
def test_the_least_time_of_a_pilot_is_enough_for_one(step_s: float, eval_sample_s: float, noise: bool) -> None:
    context = SimpleNamespace(processes=1, broadcast=lambda value: value, emit=lambda kind, **data: None)
    rig = SimpleNamespace(context=context, job=make_job(), samples=51200, smallest_batch=1)
    runs = [SimpleNamespace(local_batch=size, estimate_s=step_s) for size in (32, 64)]
    pilots = Pilots(rig, runs, [32], limit=2000, eval_sample_s=eval_sample_s, noise=noise)  # type: ignore[arg-type]
    plan = pilots._plan(pilots._layouts[0], 1.01 * pilots.least_s(), with_noise=noise)
    assert plan is not None and plan.steps >= FEWEST_STEPS
