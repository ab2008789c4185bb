"""A probe leaves no trace: what is trained afterwards is what would have been trained without it.

Elsewhere a search for the batch size leaves other weights, an advanced epoch counter, a network in the wrong mode or a
moved random state behind. Here measuring happens in processes of its own on networks of its own, and inside a process
an evaluation and a reading of the gradient noise put back every flag and every generator they touch.
"""

import hashlib
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from case_helpers import attempt, case_plan, find_support
from case_workloads import Frozen, Net, frozen_part, noted, workload
from torch import nn

from tula_core import api, workloads
from tula_core.engine.assemble import Trainee
from tula_core.engine.context import WorkerContext
from tula_core.engine.evaluate import evaluate
from tula_core.errors import InputError
from tula_core.job import Job
from tula_core.profiling.noise import PilotNoise
from tula_core.profiling.rig import Rig, StepFeed
from tula_core.progress import silent
from tula_core.training.run import run_attempt


@pytest.fixture
def rig(tmp_path: Path, kept_signals: None) -> Iterator[Rig]:
    """A measuring worker in this very process, on a network with a frozen part and dropout."""
    request = Job(workload="case_workloads:frozen_part")
    job = request.resolved(frozen_part().recipe, None)
    context = WorkerContext({"nodes": 1, "processes_per_node": 1, "rendezvous": ""}, tmp_path)
    task = {"job": job.to_dict(), "seconds": 60, "launched_at_s": time.time(), "share": 1.0, "later_starts": 0}
    yield Rig(context, task)
    context.close()


def digest(trainee: Trainee) -> str:
    """Return a hash of weights, buffers, optimizer state, modes and the random states of all three generators."""
    parts: list[Any] = [module.training for module in trainee.network.modules()]
    parts += [tensor.numpy().tobytes() for tensor in trainee.network.state_dict().values()]
    parts += [str(trainee.optimizer.state_dict())]
    return hashlib.sha256(repr([*parts, random_states()]).encode()).hexdigest()


def random_states() -> tuple[Any, ...]:
    """Return the states of python's, numpy's and torch's generators."""
    return random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()


def test_an_evaluation_changes_nothing(rig: Rig) -> None:
    """Elsewhere the network stays in evaluation mode, and random draws shift all later ones (P07, P08)."""
    before = digest(rig.trainee)
    assert evaluate(rig.trainee, 100).samples == 500
    assert digest(rig.trainee) == before


@pytest.mark.parametrize("workers", [0, 1])
def test_a_reading_of_the_noise_changes_nothing(rig: Rig, workers: int) -> None:
    """Elsewhere a measurement in the midst of training moves running statistics and random states (P08)."""
    rig.job = rig.job.model_copy(update={"recipe": rig.job.recipe.model_copy(update={"loader_workers": workers})})
    noise = PilotNoise(rig, rig.trainee, rig.layout(32), steps=16)
    step = StepFeed(rig, rig.layout(32)).next()
    observe = noise.observer(step)
    assert observe is not None
    before = digest(rig.trainee)
    Frozen.modes.clear()
    observe()
    assert noise.result() is not None
    assert digest(rig.trainee) == before
    assert Frozen.modes and not any(Frozen.modes)  # nor does the copy it reads from train its frozen part


def test_a_part_frozen_in_evaluation_mode_stays_so() -> None:
    """Elsewhere every module is switched to training after a probe, frozen batch norm with it (P07)."""
    made: list[Frozen] = []

    def network() -> nn.Module:
        made.append(Frozen())
        return made[-1]

    workloads.validate(workload(network, samples=64))
    flags = {(net.training, net.first.training, net.rest.training) for net in made}
    assert flags <= {(True, True, True), (False, False, False)}
    assert not any(net.norm.training for net in made)


def test_a_network_that_comes_in_evaluation_mode_is_refused() -> None:
    """Elsewhere it is trained without dropout and with frozen statistics, and nobody hears of it."""
    with pytest.raises(InputError, match="network: Net comes in evaluation mode"):
        workloads.validate(workload(lambda: Net().eval(), samples=64))


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any, Path]]:
    """Two runs of one plan, the second after a probe of the same job, with what the second evaluated."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        find_support(patch, folder / "home")
        plan = case_plan("frozen_part", (1, 32, 1))
        without, _ = run_attempt(attempt(plan, folder / "without"), silent, lambda samples, figures: None)
        states = random_states()
        job = Job(workload="case_workloads:frozen_part", probe={"seconds": 4}, cluster={"threads_per_process": 1})
        api.profile(job)
        assert states == (
            random.getstate(),
            np.random.get_state()[1].tobytes(),
            torch.get_rng_state().numpy().tobytes(),
        )
        log = folder / "log"
        log.mkdir()
        patch.setenv("CASES_LOG", str(log))
        after, _ = run_attempt(attempt(plan, folder / "after"), silent, lambda samples, figures: None)
    yield without, after, folder


def test_a_run_after_a_probe_is_the_run_without_one_bit_for_bit(two_runs: tuple[Any, Any, Path]) -> None:
    """Elsewhere the losses differ, because the probe drew random numbers or took steps (P08)."""
    without, after, folder = two_runs
    assert [(p.train_loss, p.metric) for p in without.curve] == [(p.train_loss, p.metric) for p in after.curve]
    states = [torch.load(folder / name / "checkpoint.pt", weights_only=True) for name in ("without", "after")]
    assert all(torch.equal(value, states[1]["network"][name]) for name, value in states[0]["network"].items())


def test_a_run_after_a_probe_evaluates_every_sample(two_runs: tuple[Any, Any, Path]) -> None:
    """Elsewhere the evaluation goes on to use the few batches of the probe (P06)."""
    _, after, folder = two_runs
    assert len(after.curve) == 2
    assert sum(int(str(entry["size"])) for entry in noted(folder / "log") if not entry["training"]) == 2 * 500
