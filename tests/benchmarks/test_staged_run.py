"""The staged run: trained and killed for real on a small network, its reckoning on events made up here."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from train_helpers import hand_made_plan

from tests.benchmarks import staged_run
from tests.benchmarks.staged_story import Launch, dealt, lost_to_kills, resumed_at, stage_seconds, told_launch
from tula_core.errors import RunError
from tula_core.records import Stage


def stage(from_samples: int, processes: int, local_batch: int) -> Stage:
    return Stage(
        from_samples=from_samples, nodes=1, processes_per_node=processes, local_batch=local_batch, accumulation=1
    )


@pytest.mark.timeout(900)
def test_a_staged_run_outlives_kills_in_both_parts(capsys: pytest.CaptureFixture[str], kept_signals: None) -> None:
    assert staged_run.main(["--quick"]) == 0
    told = capsys.readouterr().out
    titles = ["left alone:", "killed in part 1, its worker:", "killed in part 2, tula train itself:"]
    places = [told.index(title) for title in titles]
    assert places == sorted(places)
    for begin, end, resumed in zip(places, [*places[1:], len(told)], (0, 1, 1), strict=True):
        own = told[begin:end]
        assert "each once in every epoch: yes" in own and "those of the run left alone: yes" in own
        assert own.count("resumed at") == own.count("lost ") == resumed
        assert "  1 x 1, batch" in own and "  1 x 2, batch" in own
        assert own.count("forecast") == (2 if not resumed else 4)


def test_every_sample_is_dealt_once_where_stages_begin_where_steps_end() -> None:
    found = dealt((stage(0, 1, 8), stage(80, 1, 16), stage(304, 2, 16)), 203, 3, seed=0)
    # 10 steps of 8; 8 of 16 to the epoch's end and 7 beyond 304, to 315; what the last begins with was dealt before.
    assert found.steps[:2] == (10, 15) and {80, 203, 315, 609} <= found.ends
    assert not found.once_an_epoch and found.counts[1].max() == 2
    mended = dealt((stage(0, 1, 8), stage(80, 1, 16), stage(315, 2, 16)), 203, 3, seed=0)
    assert mended.once_an_epoch and mended.steps == (10, 15, 10)


def launch(attempt: int, ready: float, end: float, trained_s: float, samples: int = 0) -> Launch:
    return Launch(
        attempt=attempt,
        nodes=2,
        started_at_s=ready - 3.0,
        ready_at_s=ready,
        ended_at_s=end,
        from_samples=samples,
        from_trained_s=trained_s,
        changes=((ready + 1.0, samples + 50),),
    )


def test_what_was_trained_after_the_last_checkpoint_and_a_second_start_are_lost() -> None:
    stages = (stage(0, 1, 8), stage(50, 1, 16), stage(90, 2, 16))
    parts = (
        launch(1, 10.0, 20.0, 0.0),
        launch(2, 40.0, 47.0, 4.0, samples=40),
        launch(2, 60.0, 62.0, 11.0, samples=90),
    )
    lost = lost_to_kills(parts)
    assert (lost.in_vain_s, lost.start_up_s, lost.node_s) == (6.0, 3.0, 18.0)
    assert resumed_at(parts) == (40,)
    assert stage_seconds(stages, parts) == [1.0 + 1.0, 9.0, 6.0 + 2.0]


def test_a_launch_is_read_from_the_files_of_its_workers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"nodes": 3}))
    os.utime(tmp_path / "config.json", (100.0, 100.0))
    events = [
        {"kind": "resumed", "at_s": 102.0, "samples": 64, "elapsed_s": 1.5},
        {"kind": "ready", "at_s": 102.5},
        {"kind": "layout", "at_s": 103.0, "from_samples": 64},
        {"kind": "progress", "at_s": 104.0, "samples": 96},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + '{"kind": "prog')
    found = told_launch(tmp_path, 2)
    assert found is not None and (found.nodes, found.start_up_s, found.trained_s) == (3, 2.5, 1.5)
    assert (found.from_samples, found.from_trained_s, found.changes) == (64, 1.5, ((103.0, 64),))
    (tmp_path / "events.jsonl").write_text("")
    assert told_launch(tmp_path, 2) is None


def test_a_plan_that_does_not_widen_is_refused() -> None:
    with pytest.raises(RunError, match="does not go from 1 process to 2"):
        staged_run.starts_of(hand_made_plan("plain", processes=2))
