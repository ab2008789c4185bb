import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.clean import is_running, select
from flows.cli import app

DAY_S = 86400.0


def tula(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def write(path: Path, *, age_days: float, size: int = 1000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    then = time.time() - age_days * DAY_S
    os.utime(path, (then, then))
    for folder in (path.parent, path.parent.parent):
        os.utime(folder, (then, then))
    return path


def attempt(run: Path, status: str, pid: int, **more: object) -> None:
    file = write(run / "attempt-1.json", age_days=90)
    file.write_text(json.dumps({"status": status, "pid": pid, **more}))


@pytest.fixture
def state(home: Path) -> Path:
    for kept in ("mlflow.db", "spool/1.json", "champion.json", "predictors/2.json", "history.jsonl", "other/thing"):
        write(home / kept, age_days=400)
    write(home / "mlartifacts/1/plan.json", age_days=400)
    write(home / "runs/old/checkpoint.pt", age_days=90, size=5000)
    write(home / "runs/old/outcome.json", age_days=90)
    write(home / "runs/new/checkpoint.pt", age_days=2, size=7000)
    write(home / "cache/profiles/old.json", age_days=90)
    write(home / "cache/profiles/new.json", age_days=2)
    write(home / "prefect/storage/abc", age_days=90)
    return home


def names(home: Path, **limits: float) -> set[str]:
    return {str(item.path.relative_to(home)) for item in select(home, **limits)}  # type: ignore[arg-type]


def test_by_age(state: Path) -> None:
    assert names(state, older_than_s=30 * DAY_S) == {"runs/old", "cache/profiles/old.json", "prefect/storage/abc"}


def test_by_size_the_oldest_go_first(state: Path) -> None:
    everything = sum(file.stat().st_size for file in state.rglob("*") if file.is_file())
    within = names(state, older_than_s=365 * DAY_S, max_bytes=everything - 6500)
    assert "runs/old" in within
    assert "runs/new" not in within
    assert names(state, older_than_s=365 * DAY_S, max_bytes=everything) == set()
    assert "runs/new" in names(state, older_than_s=365 * DAY_S, max_bytes=0)


def test_only_said_without_yes_and_done_with_it(state: Path) -> None:
    before = {path for path in state.rglob("*") if path.is_file()}
    answer = tula("clean")
    assert answer.exit_code == 0
    assert "would free" in answer.stdout
    assert "--yes" in answer.stdout
    assert {path for path in state.rglob("*") if path.is_file()} == before
    assert tula("clean", "--yes").exit_code == 0
    gone = before - {path for path in state.rglob("*") if path.is_file()}
    assert gone == {state / "runs/old/checkpoint.pt", state / "cache/profiles/old.json", state / "prefect/storage/abc"}
    assert "Nothing to free." in tula("clean").stdout


def test_what_is_known_is_kept_whatever_its_age(state: Path) -> None:
    tula("clean", "--older-than", "0s", "--max-size", "0B", "--yes")
    left = {str(path.relative_to(state)) for path in state.rglob("*") if path.is_file()}
    assert left >= {
        "mlflow.db",
        "mlartifacts/1/plan.json",
        "spool/1.json",
        "champion.json",
        "predictors/2.json",
        "history.jsonl",
        "other/thing",
        "runs/old/outcome.json",
    }
    assert "runs/new/checkpoint.pt" not in left


def test_a_run_that_is_under_way_is_never_freed(state: Path) -> None:
    attempt(state / "runs/old", "RUNNING", os.getpid())
    assert is_running(state / "runs/old")
    assert "runs/old" not in names(state, older_than_s=0)
    attempt(state / "runs/old", "RUNNING", 1, host="another-host")
    assert is_running(state / "runs/old")
    attempt(state / "runs/old", "KILLED", os.getpid())
    assert not is_running(state / "runs/old")
    ended = subprocess.Popen(["true"])
    ended.wait()
    attempt(state / "runs/old", "RUNNING", ended.pid)
    assert not is_running(state / "runs/old")


def test_prefect_home_in_use_is_left_alone(state: Path) -> None:
    write(state / "prefect/prefect.db", age_days=0)
    assert "prefect" not in names(state, older_than_s=0)
    write(state / "prefect/prefect.db", age_days=90)
    assert "prefect" in names(state, older_than_s=30 * DAY_S)


@pytest.mark.parametrize("arguments", [["--older-than", "soon"], ["--older-than=-1d"], ["--max-size", "5 parsecs"]])
def test_amounts_that_are_not_understood_are_exit_2(arguments: list[str]) -> None:
    answer = tula("clean", *arguments)
    assert answer.exit_code == 2
    assert arguments[0].split("=")[0] in answer.stderr
