"""The emulated link: trains over it where the machine allows one, and says what is missing where it does not."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.benchmarks import network_link, slow_link, slow_link_runs
from tests.benchmarks.generalization_jobs import FULL
from tests.benchmarks.slow_link import chosen_rows, described, link_gbps, report
from tests.benchmarks.slow_link_choice import Weighed, asked_job, choose, ends_on_both, placed_for, probe, weigh
from tests.benchmarks.slow_link_runs import Row, Setting
from tests.factories import make_job, make_profile
from tula_core import profiling
from tula_core.errors import InputError
from tula_core.job import Job, Recipe
from tula_core.mitigations.batches.stages import Course, begun_alone, processes_of, staged
from tula_core.records import Candidate, Interval, Profile
from tula_core.records import Row as Forecast

SETTING = Setting(scale=FULL, bench=FULL.jobs["mlp-20k"], rate=0.05)
COURSE = Course(recipe=Recipe(batch_size=32, epochs=10), train_samples=16_000, options={})
SPREAD = Candidate(nodes=2, processes_per_node=1, local_batch=256, mitigation=("growth",))


def weighed(nodes: int, local_batch: int, time_s: float, chance: float | None) -> Weighed:
    candidate = Candidate(nodes=nodes, processes_per_node=1, local_batch=local_batch, mitigation=("linear-lr",))
    forecast = {"time_to_train_s": Interval(value=time_s, low=time_s, high=time_s)}
    row = Forecast(candidate=candidate, feasible=True, infeasible_because=None, measured=True, forecast=forecast)
    return Weighed(row=row, chance=chance)


def test_the_benchmark_runs_or_says_in_one_line_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    lacking = network_link.missing_for_link()
    code = slow_link.main(["--quick", "--epochs", "1"])
    out, err = capsys.readouterr()
    if lacking is not None:
        assert code == 2 and out == "" and err == f"slow_link: {lacking}\n"
        return
    assert code == 0
    starts = ["of", "auto", "both", "link", "small", "auto", "both", "auto:", "auto:", "both:", "both:"]
    assert [line.split()[0] for line in out.splitlines()] == starts
    assert float(out.split("gbit: ")[1].split()[0]) < 1.0  # the emulation acts: loopback shows many times that
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert network_link.Link("1gbit").names[0] not in left


def test_missing_tools_and_rights_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda tool: "/sbin/ip" if tool == "ip" else None)
    assert slow_link.main(["--quick"]) == 2
    assert capsys.readouterr().err == "slow_link: tc not found; install iproute2\n"
    monkeypatch.setattr(shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "root" in str(network_link.missing_for_link())


def test_the_probe_sees_one_core_and_the_link_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = []

    def profile(job: Job, reprofile: bool) -> tuple[Job, Profile, bool]:
        cores.append(len(os.sched_getaffinity(0)))
        return job, make_profile(), False

    monkeypatch.setattr(profiling, "profile", profile)
    before = os.sched_getaffinity(0)
    job, _ = probe(asked_job(FULL, FULL.jobs["mlp-20k"], 0.05, link_gbps("250mbit")))
    assert cores == [1] and os.sched_getaffinity(0) == before
    assert (job.cluster.nodes, job.cluster.link_gbps, job.mitigation) == (2, 0.25, "auto")
    assert job.name.endswith(".tune")  # what is looked at is not what is judged on
    with pytest.raises(InputError, match="--rate: 'fast' is no rate"):
        link_gbps("fast")


def test_candidates_are_those_of_a_plan_and_a_small_batch_is_sure_to_keep_its_accuracy() -> None:
    job = make_job(target=None, cluster={"nodes": 2, "processes_per_node": 1, "link_gbps": 1.0})
    found = weigh(job, make_profile())
    first = found[0].candidate
    assert (first.processes, first.global_batch, found[0].chance) == (1, job.recipe.batch_size, 1.0)
    assert {item.candidate.processes for item in found} == {1, 2}
    assert any(item.candidate.stages and processes_of(item.candidate.stages[0]) == 1 for item in found)
    spread = next(i for i in found if ends_on_both(i.candidate) and i.candidate.global_batch == first.global_batch)
    assert spread.time_s > found[0].time_s  # each of its steps goes over the link


def test_the_fastest_that_is_sure_enough_is_taken_and_one_of_both_beside_it() -> None:
    items = [weighed(1, 64, 9.0, 1.0), weighed(1, 128, 7.0, 0.7), weighed(2, 32, 40.0, 1.0), weighed(2, 64, 30.0, 0.6)]
    assert choose(items, 0.8) is items[0] and choose(items, 0.7) is items[1]
    assert choose(items[1:2], 0.8) is items[1]  # the surest where none is sure
    assert choose([weighed(1, 64, 9.0, None)], 0.8).chance is None
    small, auto, both = chosen_rows(items, 0.8, 64)
    assert (small.candidate.local_batch, small.candidate.nodes, small.chosen) == (32, 2, None)
    assert auto.chosen is items[0] and both.chosen is items[3]


def test_stages_are_laid_out_anew_for_the_run_and_begin_alone_where_they_were_chosen_to() -> None:
    whole = staged(SPREAD, COURSE)
    alone = begun_alone(whole, COURSE)
    assert alone is not None
    longer = Course(recipe=COURSE.recipe, train_samples=20_000, options={})
    again = placed_for(alone, longer)
    assert again.stages and [processes_of(stage) for stage in again.stages] == [1, 1, 1, 1, 2]
    assert again.stages[-1].from_samples == pytest.approx(0.8 * 200_000, abs=512)
    assert placed_for(whole, longer).stages != whole.stages
    assert all(processes_of(stage) == 2 for stage in placed_for(whole, longer).stages or ())
    assert (
        described(alone) == "global batch 32 on 1, then 64 on 1, then 128 on 1, then 256 on 1, then 512 on 2 (growth)"
    )
    plain = Candidate(nodes=2, processes_per_node=1, local_batch=32)
    assert placed_for(plain, longer) is plain and described(plain) == "global batch 64 on 2 (no method)"


def test_each_part_of_a_run_is_told_its_stages_and_where_the_next_takes_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(slow_link_runs, "sizes", lambda scale, bench, split: (20_000, 10_000))
    alone = begun_alone(staged(SPREAD, COURSE), COURSE)
    assert alone is not None
    small, *none = SETTING.payloads(
        Row(name="small", candidate=Candidate(nodes=2, processes_per_node=1, local_batch=16)), 0, tmp_path
    )
    first, second = SETTING.payloads(Row(name="both", candidate=alone), 0, tmp_path)
    assert not none and small["job"]["recipe"] == first["job"]["recipe"] and small["mitigation"] == []
    assert [stage["nodes"] for stage in (*first["stages"], *second["stages"])] == [1, 1, 1, 1, 2]
    assert (first["resume"], second["resume"]) == (False, True)
    assert first["until_samples"] == second["stages"][0]["from_samples"] and first["global_batch"] == 512


def test_the_bars_are_judged_by_seeds() -> None:
    rows = [
        Row(name="small", candidate=Candidate(nodes=2, processes_per_node=1, local_batch=32)),
        Row(name="auto", candidate=Candidate(nodes=1, processes_per_node=1, local_batch=64, mitigation=("linear-lr",))),
    ]
    results = [
        {"row": row, "seed": seed, "seconds": seconds, "steps": 100, "accuracy": accuracy + seed / 100}
        for row, seconds, accuracy in (("small", 40.0, 0.87), ("auto", 10.0, 0.865))
        for seed in range(3)
    ]
    lines = report(rows, results)
    assert "40.0 +- 0.00 s" in lines[0] and "(no method)" in lines[0] and "64 on 1 (linear-lr)" in lines[1]
    assert lines[2] == "auto: 4.00 times faster (bar: at least 4): kept"
    assert lines[3] == "auto: 0.50 +- 0.00 points below, by seeds (bar: at most 0.4): MISSED"
