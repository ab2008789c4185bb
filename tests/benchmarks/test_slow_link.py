"""The emulated link: trains over it where the machine allows one, and says what is missing where it does not."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.benchmarks import network_link, slow_link
from tests.benchmarks.generalization_jobs import FULL
from tests.benchmarks.slow_link import Row, payload_of, report

SMALL = Row(name="small", methods=(), batch=64, options={})
AUTO = Row(name="auto", methods=("growth",), batch=2048, options={"growth": {"until": 0.4}})


def test_the_benchmark_runs_or_says_in_one_line_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    lacking = network_link.missing_for_link()
    code = slow_link.main(["--quick", "--epochs", "1"])
    out, err = capsys.readouterr()
    if lacking is not None:
        assert code == 2 and out == "" and err == f"slow_link: {lacking}\n"
        return
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["link", "small", "auto"]
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


def test_both_rows_train_the_same_recipe_and_the_second_in_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_link, "sizes", lambda scale, bench, split: (20_000, 10_000))
    small, auto = (payload_of(FULL, row, 64, 10, 0) for row in (SMALL, AUTO))
    assert small["job"]["recipe"] == auto["job"]["recipe"] and small["job"]["recipe"]["batch_size"] == 64
    assert small["stages"] is None and small["local_batch"] == 32
    assert [stage["local_batch"] for stage in auto["stages"]] == [32, 64, 128, 256, 512, 1024]
    assert auto["stages"][-1]["from_samples"] == pytest.approx(0.4 * 200_000, abs=2048)


def test_the_bars_are_judged_by_seeds() -> None:
    results = [
        {"row": row, "seed": seed, "seconds": seconds, "steps": 100, "accuracy": accuracy + seed / 100}
        for row, seconds, accuracy in (("small", 40.0, 0.87), ("auto", 10.0, 0.865))
        for seed in range(3)
    ]
    lines = report((SMALL, AUTO), results)
    assert "40.0 +- 0.00 s" in lines[0] and "(no method)" in lines[0] and "(growth)" in lines[1]
    assert lines[2] == "4.00 times faster (bar: at least 4): kept"
    assert lines[3] == "0.50 +- 0.00 points below, by seeds (bar: at most 0.4): MISSED"
