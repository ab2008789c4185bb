import io
from pathlib import Path

import flows_samples as samples
import pytest
from flows_fakes import FakeCore
from rich.console import Console

from flows import live
from flows.live import Screen, line
from tula_core.progress import Event
from tula_core.records import Plan, load


def screen(*, terminal: bool, **named) -> tuple[Screen, io.StringIO, io.StringIO]:  # type: ignore[no-untyped-def]
    out, err = io.StringIO(), io.StringIO()
    consoles = {
        "results": Console(file=out, width=80),
        "remarks": Console(file=err, width=80, force_terminal=terminal, color_system=None),
    }
    return Screen(**consoles, **named), out, err


def training(fraction: float, **data: float) -> Event:
    return Event(stage="train", message="epoch 1", fraction=fraction, data={"images_per_s": 5210.0, **data})


def test_training_figures_in_one_line() -> None:
    shown = line(training(0.5, loss=0.31, metric=0.912, seconds_left=75.0), "accuracy")
    assert shown == "loss 0.310, accuracy 0.912, 5,210 images/s, 75.0 s left"


def test_unknown_figures_are_left_out() -> None:
    event = Event(stage="train", message="", data={"images_per_s": 10.0, "loss": float("nan"), "seconds_left": None})
    assert line(event) == "10.0 images/s"


def test_without_a_terminal_lines_come_at_a_measured_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    shown, out, err = screen(terminal=False)
    for step in range(101):
        now[0] = step / 10  # 10 s of training
        shown.event(training(step / 100, loss=1.0))
    lines = err.getvalue().splitlines()
    assert [text.split()[1] for text in lines] == ["0", "50", "100"]
    assert out.getvalue() == ""


def test_warnings_always_stay() -> None:
    shown, _, err = screen(terminal=False)
    shown.event(training(0.1))
    shown.event(Event(stage="train", message="learning rate lowered", level="warning"))
    assert "warning: learning rate lowered" in err.getvalue()


def test_a_terminal_gets_a_bar_for_each_stage() -> None:
    shown, _, err = screen(terminal=True)
    with shown:
        for stage in ("profile", "search"):
            shown.event(Event(stage=stage, message="working", fraction=1.0))
    assert "profile" in err.getvalue()
    assert "search" in err.getvalue()
    assert "100%" in err.getvalue()


def test_a_bar_at_80_columns_hides_no_figure() -> None:
    shown, _, err = screen(terminal=True)
    with shown:
        shown.event(training(0.5, loss=0.31, metric=0.912, seconds_left=7500.0))
    text = " ".join(err.getvalue().split())
    for figure in ("loss 0.310", "metric 0.912", "5,210 images/s", "2.08 h left", "50%"):
        assert figure in text
    assert "…" not in text


def test_the_last_word_of_a_stage_stays_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (False, True):
        shown, _, err = screen(terminal=terminal)
        with shown:
            shown.event(Event(stage="profile", message="working", fraction=0.5))
            shown.event(Event(stage="profile", message="measured in 20 s", fraction=1.0, level="info"))
        assert "measured in 20 s" in err.getvalue()
        assert "100" in err.getvalue()


def test_the_plan_goes_to_stdout_and_to_its_file(tmp_path: Path, core: FakeCore) -> None:
    shown, out, err = screen(terminal=False, plan_file=tmp_path / "p.json")
    shown.planned(samples.plan())
    assert "Choice: row 1" in out.getvalue()
    assert err.getvalue() == ""
    assert load(Plan, tmp_path / "p.json").to_json() == samples.plan().to_json()
