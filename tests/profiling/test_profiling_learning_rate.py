"""The range test in the measuring worker: what it finds and costs, what it leaves behind, when it is refused."""

import dataclasses
import random
import re
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from profiling_facts import make_facts, make_hardware, make_job

from tests.factories import make_profile
from tula_core import profiling
from tula_core.engine.context import WorkerContext
from tula_core.errors import InputError
from tula_core.job import Job, Probe, Recipe
from tula_core.models.assumptions import assumptions
from tula_core.models.step.communication import fit_links
from tula_core.profiling import learning_rate, measure
from tula_core.profiling.collector import Collector
from tula_core.profiling.describe import _note_of_rate
from tula_core.profiling.learning_rate import measure_rate, settle_rate
from tula_core.profiling.rate_rules import least_test_s, runs_of, shares_of_runs
from tula_core.profiling.rig import Rig
from tula_core.progress import silent
from tula_core.records import LearningRateTest, Profile, from_json, to_json
from tula_core.workloads.load import load_workload

HERE = Path(__file__).parent
SLOW_S = 50.0  # a step that is taken to be this slow has few steps in a run, and time never ends it


@pytest.fixture(autouse=True)
def _workers_find_the_workloads(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def rig_of(tmp_path, kept_signals):
    """Make a measuring worker in this very process."""
    made, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)  # as a worker's launcher does

    def make(workload, seconds=1e6, own=None, **recipe):
        job = Job(workload=workload, recipe={"range_test": True, **recipe})
        loaded = load_workload(job)
        context = WorkerContext({"nodes": 1, "processes_per_node": 1, "rendezvous": ""}, tmp_path)
        made.append(context)
        task = {"job": job.resolved(loaded.recipe, loaded.target).to_dict(), "seconds": seconds}
        share = {"share": 1.0, "later_starts": 0} if own is None else {"share": own / seconds, "later_starts": 1}
        return Rig(context, task | {"launched_at_s": time.time(), **share})

    yield make
    for context in made:
        context.close()
    torch.set_num_threads(threads)


def short_test(rig, steps=32):
    """Test with runs of ``steps`` steps and three seeds."""
    batch = rig.job.recipe.batch_size
    run = SimpleNamespace(local_batch=batch, estimate_s=SLOW_S)
    return measure_rate(rig, [run], 22 * SLOW_S * (steps + 2 + 200 / batch))


def test_the_rate_of_a_tuned_recipe_is_found_again(rig_of):
    """The digits' recipe says 0.05."""
    found = short_test(rig_of("digits-cnn"))
    assert found.found and found.steps == 32 and found.seeds == 3 and found.held_out == 200
    assert 0.05 / 4 <= found.used <= 0.05 * 4
    assert found.low <= found.used <= found.high <= 10 * found.low
    assert f"learning rate {found.used:.2g} (" in found.summary and "3 seeds) from a range test of" in found.summary


def test_the_same_test_gives_the_same_runs(rig_of):
    first, second = (short_test(rig_of("profiling_workloads:tiny"), steps=16) for _ in range(2))
    assert dataclasses.replace(first, seconds=0) == dataclasses.replace(second, seconds=0)
    assert [trial.learning_rate for trial in first.trials] == sorted(trial.learning_rate for trial in first.trials)


def test_adaptive_optimizers_are_tried_at_rates_of_their_own(rig_of):
    adam = short_test(rig_of("profiling_workloads:tiny", optimizer="adam"), steps=16)
    sgd = short_test(rig_of("profiling_workloads:tiny", momentum=0.0, weight_decay=0.0), steps=16)
    assert adam.trials[0].learning_rate == 1e-4 < sgd.trials[0].learning_rate == 1e-3


def states(rig):
    """Return the random states and all that a rig's own network holds."""
    network = [tensor.numpy().tobytes() for tensor in rig.trainee.network.state_dict().values()]
    flags = [module.training for module in rig.trainee.network.modules()]
    generators = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()
    kept = rig.trainee.optimizer.state_dict()
    groups = [{name: value for name, value in group.items() if name != "lr"} for group in kept["param_groups"]]
    return generators, network, flags, str((kept["state"], groups))


def test_nothing_is_left_behind_but_the_rate(rig_of, tmp_path):
    rig = rig_of("digits-cnn")
    before, files = states(rig), sorted(tmp_path.iterdir())
    settle_rate(rig, [SimpleNamespace(local_batch=32, estimate_s=SLOW_S)], 22 * SLOW_S * 26)
    assert states(rig) == before
    assert sorted(tmp_path.iterdir()) == files
    assert rig.job.recipe.learning_rate != 0.05
    assert {group["lr"] for group in rig.trainee.optimizer.param_groups} == {rig.job.recipe.learning_rate}
    assert rig.job.at_learning_rate(0.05).to_dict()["recipe"] == rig.job.to_dict()["recipe"] | {"learning_rate": 0.05}


def test_the_evaluation_set_is_never_read(rig_of, monkeypatch):
    rig = rig_of("profiling_workloads:tiny")
    opened = rig.workload._opened["eval"]
    monkeypatch.setitem(rig.workload._opened, "eval", None)
    assert short_test(rig, steps=16).trials
    assert opened is not None


def test_no_run_trains_on_what_judges_it(rig_of, monkeypatch):
    rig = rig_of("profiling_workloads:tiny")
    seen = []
    own = learning_rate.part_of
    monkeypatch.setattr(learning_rate, "part_of", lambda data, indices: seen.append(set(indices)) or own(data, indices))
    short_test(rig, steps=16)
    assert len(seen) == 2 * 3  # for each of three seeds
    for train, held in zip(seen[::2], seen[1::2], strict=True):
        assert not train & held and train | held == set(range(512)) and len(held) == 128
    assert len({frozenset(held) for held in seen[1::2]}) == 3


def test_a_step_slower_than_was_thought_makes_the_runs_shorter(rig_of, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(learning_rate, "time", SimpleNamespace(monotonic=lambda: clock.now))
    own = learning_rate.run_step

    def slow(*arguments):
        clock.now += 4 * SLOW_S
        return own(*arguments)

    monkeypatch.setattr(learning_rate, "run_step", slow)
    found = short_test(rig_of("profiling_workloads:tiny"), steps=128)
    assert found.steps == 16 and found.seeds == 3 and found.trials  # what the first run took is gone


def two_seeds_s(steps):
    """The seconds that a test with two seeds and runs of ``steps`` steps of 32 samples is planned for."""
    return 14 * SLOW_S * (steps + 128 / 32)


def test_a_test_with_little_time_takes_fewer_seeds_and_rates_before_it_is_refused(rig_of):
    rig = rig_of("profiling_workloads:tiny", seconds=1.3 * two_seeds_s(16))
    found = measure_rate(rig, [SimpleNamespace(local_batch=32, estimate_s=SLOW_S)], 1.3 * two_seeds_s(16))
    assert found.seeds == 2 and found.steps == 16 and found.trials


def test_time_that_was_kept_for_later_workers_is_taken_before_a_test_is_refused(rig_of):
    rig = rig_of("profiling_workloads:tiny", seconds=2.2 * two_seeds_s(16), own=0.5 * two_seeds_s(16))
    found = measure_rate(rig, [SimpleNamespace(local_batch=32, estimate_s=SLOW_S)], 0.4 * rig.left_s())
    assert found.seeds == 2 and found.steps == 16 and found.trials


def test_a_test_that_has_no_time_is_refused_and_what_it_advises_is_enough(rig_of):
    run = SimpleNamespace(local_batch=32, estimate_s=SLOW_S)
    rig = rig_of("profiling_workloads:tiny", seconds=60.0)
    found = measure_rate(rig, [run], 0.4 * rig.left_s())
    assert not found.found and found.used == 0.1 and not found.trials
    assert "its runs would have 0 steps, and 16 are the fewest that tell" in found.refused
    advised = float(re.search(r"Give probe\.seconds (\d+) or more$", found.refused).group(1))
    assert advised < 4 * two_seeds_s(16)
    followed = rig_of("profiling_workloads:tiny", seconds=advised)
    assert measure_rate(followed, [run], 0.4 * followed.left_s()).trials


def test_advice_does_not_grow_with_what_the_first_looks_took(rig_of, monkeypatch):
    """What is missing is a sum of seconds; as a share of what was left it had no bound."""
    run = SimpleNamespace(local_batch=32, estimate_s=SLOW_S)
    advised = []
    for left_s in (20.0, 1.0, 0.0):
        rig = rig_of("profiling_workloads:tiny", seconds=60.0)
        monkeypatch.setattr(rig, "left_s", lambda left_s=left_s: left_s)
        monkeypatch.setattr(rig, "most_left_s", lambda left_s=left_s: left_s)
        refused = measure_rate(rig, [run], 0.4 * left_s).refused
        advised.append(float(re.search(r"Give probe\.seconds (\d+) or more$", refused).group(1)))
    assert advised[0] <= advised[1] <= advised[2] <= advised[0] + 2 * 20 + 5


def test_advice_of_a_test_whose_first_run_was_slow_is_by_what_it_took(rig_of, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(learning_rate, "time", SimpleNamespace(monotonic=lambda: clock.now))
    own, run = learning_rate.run_step, SimpleNamespace(local_batch=32, estimate_s=1.0)

    def slow(*arguments):
        clock.now += 5.0
        return own(*arguments)

    monkeypatch.setattr(learning_rate, "run_step", slow)

    def tested(seconds):
        rig = rig_of("profiling_workloads:tiny", seconds=seconds)
        begun = rig.left_s()
        monkeypatch.setattr(rig, "left_s", lambda: begun - clock.now)
        monkeypatch.setattr(rig, "most_left_s", lambda: begun - clock.now)
        clock.now, rig.job = 0.0, rig.job.model_copy(update={"probe": Probe(seconds=seconds)})
        return measure_rate(rig, [run], 0.4 * begun)

    refused = tested(700.0)
    assert "16 are the fewest that tell" in refused.refused and refused.seeds == 0
    advised = float(re.search(r"Give probe\.seconds (\d+) or more$", refused.refused).group(1))
    assert 700 < advised < 4000
    assert tested(advised).trials


def test_time_that_ends_in_the_midst_keeps_what_is_complete(rig_of, monkeypatch):
    rig = rig_of("profiling_workloads:tiny")
    left = SimpleNamespace(calls=0)

    def left_s():
        left.calls += 1
        return 1e6 if left.calls < 12 else -1e9

    monkeypatch.setattr(rig, "left_s", left_s)
    found = short_test(rig, steps=16)
    assert found.refused.startswith("there was not the time for two seeds at three rates")
    assert 1 <= sum(len(trial.losses) for trial in found.trials) < 12


def test_more_time_goes_into_longer_runs_first_and_into_more_seeds_then():
    found = shares_of_runs(220.0, 0.1, 32, 200)
    assert (found.seeds, found.run_s, found.held_out) == (3, 10.0, 200)
    assert found.steps == pytest.approx(100 - 200 / 32)
    assert shares_of_runs(2200.0, 0.1, 32, 200).seeds == 5 and shares_of_runs(45.0, 0.1, 32, 200).seeds == 2
    for seconds in (1.0, 10.0, 1e4):
        found = shares_of_runs(seconds, 0.1, 32, 1000)
        assert 200 <= found.held_out <= 1000 and found.seeds in (2, 3, 5)
        assert found.run_s * runs_of(found.seeds) == pytest.approx(seconds)
        assert found.steps >= 0


@pytest.mark.parametrize(("step_s", "batch", "held"), [(0.1, 32, 1000), (2.0, 8, 25), (1e-3, 256, 200)])
def test_the_least_time_of_a_test_is_just_enough(step_s, batch, held):
    least = least_test_s(step_s, batch, held, 16)
    assert shares_of_runs(1.01 * least, step_s, batch, held).steps >= 16
    assert shares_of_runs(0.99 * least, step_s, batch, held).steps < 16


def measured(tmp_path, workload, listener=silent, seconds=30, **recipe):
    job = Job(
        workload=f"profiling_workloads:{workload}", recipe={"range_test": True, **recipe}, probe={"seconds": seconds}
    )
    loaded = load_workload(job)
    return measure(job.resolved(loaded.recipe, None), make_facts(), make_hardware(), listener, folder=tmp_path / "own")


def test_a_profile_is_measured_at_the_rate_of_its_test(tmp_path):
    said = []
    found = measured(tmp_path, "tiny", said.append, seconds=30)
    test = found.learning_rate
    assert test is not None and (test.found or test.used == 0.1)  # a machine too busy for it keeps the stated rate
    assert found.job["recipe"]["learning_rate"] == test.used
    assert found.pilots[0].learning_rate == pytest.approx(test.used)
    assert [event.message for event in said if "range test" in event.message] == [test.summary]
    assert from_json(Profile, to_json(found), source="test") == found


def test_a_refused_test_leaves_the_stated_rate_and_warns(tmp_path):
    said = []
    found = measured(tmp_path, "learns_nothing", said.append, seconds=6)
    assert found.learning_rate.refused and found.learning_rate.used == 0.1
    assert found.job["recipe"]["learning_rate"] == 0.1
    (warning,) = [event.message for event in said if event.level == "warning" and "range test" in event.message]
    assert warning in found.warnings
    assert "Instead 0.1 is used, which may be far from the best" in warning


def test_a_refused_test_without_a_stated_rate_is_an_error_that_names_the_field(tmp_path):
    with pytest.raises(InputError, match=r"recipe.learning_rate: auto has found none, and the workload states none"):
        measured(tmp_path, "learns_nothing_unstated", seconds=6)


def test_a_rate_that_nobody_states_is_measured_unasked_and_said():
    reference = Recipe(batch_size=32)
    asked = Job(workload="x")
    assert "Nobody states a learning rate for sgd" in _note_of_rate(asked, asked.resolved(reference, None))[0]
    for job in (Job(workload="x", recipe={"learning_rate": "auto"}), Job(workload="x", recipe={"learning_rate": 0.1})):
        assert not _note_of_rate(job, job.resolved(reference, None))


def found_at(rate):
    return LearningRateTest(
        used=rate, low=rate / 2, high=2 * rate, refused="", batch_size=32, seeds=3, steps=32, held_out=128, seconds=14.2
    )


def test_a_cached_profile_gives_its_rate_to_the_job(monkeypatch, tmp_path):
    job = make_job({"recipe": {"learning_rate": 0.1, "batch_size": 32, "epochs": 8, "range_test": True}})
    facts, hardware = make_facts(), make_hardware()
    monkeypatch.setattr(profiling, "describe", lambda asked, listener: (job, facts, hardware))
    kept = dataclasses.replace(
        make_profile(), fingerprint=profiling.fingerprint(job, facts, hardware), learning_rate=found_at(0.03)
    )
    profiling.keep_profile(kept)
    resolved, found, cached = profiling.profile(job)
    assert cached and found.learning_rate == kept.learning_rate
    assert resolved.recipe.learning_rate == found.job["recipe"]["learning_rate"] == 0.03


def test_a_profile_given_by_hand_gives_its_rate_too():
    job = make_job({"recipe": {"learning_rate": 0.03, "batch_size": 32, "epochs": 8, "range_test": True}})
    profile = dataclasses.replace(
        make_profile(), job=job.to_dict(), hardware=make_hardware(), learning_rate=found_at(0.03)
    )
    asked = Job(workload=job.workload, recipe={"learning_rate": "auto"})
    assert profiling.complete(asked, profile).recipe.learning_rate == 0.03
    both = Job(workload=job.workload, recipe={"learning_rate": 0.5, "range_test": True})
    assert profiling.complete(both, profile).recipe.learning_rate == 0.03
    with pytest.raises(InputError, match=r"recipe.learning_rate: is 0.5, but the profile was measured with 0.03"):
        profiling.complete(Job(workload=job.workload, recipe={"learning_rate": 0.5}), profile)
    plain = dataclasses.replace(profile, learning_rate=None, job=make_job().to_dict())
    with pytest.raises(
        InputError, match=r"recipe.learning_rate: is auto, but the profile was measured with 0.1 and no"
    ):
        profiling.complete(asked, plain)


def test_a_plan_says_where_its_rate_is_from():
    profile = dataclasses.replace(make_profile(), learning_rate=found_at(0.04))
    said = assumptions(profile, make_job(), fit_links((), device="cpu", link_gbps=None), None, None)
    assert "learning rate 0.04 (0.02-0.08, 3 seeds) from a range test of 14 s" in said


def test_a_worker_that_never_came_to_it_is_spoken_of():
    said = []
    collector = Collector(said.append, 60)
    collector.hear({"kind": "learning_rate", "at_s": 0.0, **dataclasses.asdict(found_at(0.04))})
    assert collector.learning_rate == found_at(0.04)
    assert [event.level for event in said] == ["info"]


def test_a_profile_of_an_earlier_release_has_no_test():
    text = to_json(make_profile()).replace(',\n  "learning_rate": null', "")
    assert '"learning_rate": null' not in text
    assert from_json(Profile, text, source="old").learning_rate is None
