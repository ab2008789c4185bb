from __future__ import annotations

from pathlib import Path

import pytest
from history_factories import make_outcome

from tula_core.history import sync
from tula_core.history.sync import latest
from tula_core.progress import Event
from tula_core.records import Outcome, save
from tula_core.tracking import flush, read, spool, store
from tula_core.tracking.runs import finish_operation


def record(*outcomes: Outcome) -> None:
    for outcome in outcomes:
        spool.append(finish_operation(outcome))
    assert flush().problem is None


def count_downloads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []
    real = read.artifact

    def counted(client: object, run_id: str, path: str) -> bytes:
        asked.append(run_id)
        return real(client, run_id, path)

    monkeypatch.setattr(read, "artifact", counted)
    return asked


def test_only_what_is_new_is_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = count_downloads(monkeypatch)
    first = make_outcome("one", finished_at="2026-03-01T10:00:00+00:00")
    record(first)
    assert sync() == [first] and len(asked) == 1
    assert sync() == [first] and len(asked) == 1
    older = make_outcome("two", finished_at="2026-02-01T10:00:00+00:00")  # waited in a spool for a month
    record(older)
    assert sync() == [older, first] and len(asked) == 2
    assert sync(full=True) == [older, first] and len(asked) == 4


def test_a_result_that_changed_is_read_again(home: Path) -> None:
    record(make_outcome("one", status="KILLED", failure="gone"))
    assert [outcome.status for outcome in sync()] == ["KILLED"]
    record(make_outcome("one"))
    assert [outcome.status for outcome in sync()] == ["FINISHED"]


def test_a_fresh_state_folder_has_no_history_and_gets_no_database(state: Path) -> None:
    assert sync() == []
    assert not (state / "mlflow.db").exists()


def test_local_and_waiting_outcomes_count_while_the_server_is_down(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(make_outcome("sent"))
    assert len(sync()) == 1
    save(make_outcome("local"), home / "runs" / "local" / "outcome.json")
    (home / "runs" / "damaged").mkdir()
    (home / "runs" / "damaged" / "outcome.json").write_text("{")
    spool.append(finish_operation(make_outcome("waiting")))

    def unreachable(*arguments: object, **named: object) -> bool:
        return False

    monkeypatch.setattr(store, "reachable", unreachable)
    events: list[Event] = []
    assert {outcome.job_id for outcome in sync(listener=events.append)} == {"sent", "local", "waiting"}
    assert [event.level for event in events] == ["warning"] and "cannot be reached" in events[0].message


def test_what_came_from_another_store_is_not_mixed_in(
    home: Path, tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(make_outcome("here"))
    assert len(sync()) == 1
    other = tmp_path / "other.db"
    other.write_bytes(empty_store.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{other}")
    assert sync() == []


def test_a_damaged_cache_is_read_again(home: Path) -> None:
    record(make_outcome("one"))
    sync()
    path = home / "history.jsonl"
    path.write_text(path.read_text()[:-40])
    assert [outcome.job_id for outcome in sync()] == ["one"]


def test_an_outcome_that_cannot_be_read_is_said_and_passed_over(home: Path) -> None:
    record(make_outcome("one"), make_outcome("two"))
    client = store.client()
    (entry,) = [found for found in read.recorded_outcomes() if found.outcome.job_id == "one"]
    client.log_text(entry.run_id, "{}", "outcome.json")
    events: list[Event] = []
    assert [outcome.job_id for outcome in sync(listener=events.append)] == ["two"]
    assert len(events) == 1 and "schema_version is None" in events[0].message


def test_more_than_a_page_of_runs_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {None: ["a", "b"], "next": ["c"]}

    class Page(list):
        token: str | None = None

    def search(token: str | None) -> Page:
        page = Page(pages[token])
        page.token = "next" if token is None else ""
        return page

    assert list(read._pages(search)) == ["a", "b", "c"]


def test_the_latest_attempt_counts_and_a_result_beats_a_supposed_death() -> None:
    killed, late = make_outcome("one", status="KILLED", failure="gone"), make_outcome("one")
    second = make_outcome("one", attempt=2, status="FAILED", failure="x")
    assert latest([late, killed]) == [late] == latest([killed, late])
    assert latest([second, late, killed]) == [second]
    assert len(latest([late, make_outcome("two")])) == 2
