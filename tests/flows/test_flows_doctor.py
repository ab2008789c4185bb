import datetime
import http.server
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows import doctor
from flows.cli import app
from flows.doctor import Check


@pytest.fixture
def server() -> Iterator[str]:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802 - the name that http.server looks for
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}"
        finally:
            running.shutdown()
            thread.join()


def test_a_sound_machine_passes() -> None:
    answer = CliRunner().invoke(app, ["doctor"])
    assert answer.exit_code == 0, answer.output
    for name in ("python", "torch", "devices", "gloo", "MLflow", "Prefect", "clock", "state folder", "disk"):
        assert f"ok    {name}: " in answer.stdout or f"warn  {name}: " in answer.stdout


def test_a_failed_check_is_exit_4_and_says_how_to_fix_it(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Check(name="disk", status="fail", found="12 MiB free", remedy="Free some with tula clean.")
    monkeypatch.setattr(doctor, "examine", lambda: iter([failed]))
    answer = CliRunner().invoke(app, ["doctor"])
    assert answer.exit_code == 4
    assert "FAIL  disk: 12 MiB free" in answer.stdout
    assert "Free some with tula clean." in answer.stdout
    assert "error: disk" in answer.stderr


def test_servers_that_answer_are_fine_and_others_are_named_at_once(server: str) -> None:
    assert doctor.check_mlflow(server).status == "ok"
    assert doctor.check_prefect(server).status == "ok"
    begun = time.monotonic()
    dead = doctor.check_mlflow("http://127.0.0.1:1")
    assert time.monotonic() - begun < 2 * doctor.ANSWER_S
    assert dead.status == "fail"
    assert "spool" in dead.remedy
    assert doctor.check_prefect("http://127.0.0.1:1/api").status == "fail"


def test_a_clock_that_is_wrong_is_seen(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_clock().status == "ok"
    assert doctor.check_clock(0.0).status == "fail"
    ahead = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=3)
    monkeypatch.setattr(doctor, "parsedate_to_datetime", lambda text: ahead)
    assert "3.00 h" in doctor.check_mlflow(server).found


def test_the_tracking_database(home: Path) -> None:
    assert "made at the first run" in doctor.check_mlflow(None).found
    with sqlite3.connect(home / "mlflow.db") as database:
        database.execute("create table runs (run_uuid text, lifecycle_stage text)")
        database.execute("create table tags (key text, value text, run_uuid text)")
        for run, role in (("a", "job"), ("b", "profile"), ("c", "search"), ("d", "train"), ("e", None), ("f", "job")):
            database.execute("insert into runs values (?, ?)", (run, "deleted" if run == "f" else "active"))
            if role is not None:
                database.execute("insert into tags values ('tula.role', ?, ?)", (role, run))
    database.close()
    assert "mlflow.db, 1 run of jobs (MLflow counts 5, with stages" in doctor.check_mlflow(None).found
    (home / "mlflow.db").write_bytes(b"not a database at all, but long enough to be read as one" * 10)
    assert doctor.check_mlflow(None).status == "fail"


@pytest.mark.parametrize(("free", "status"), [(2**20, "fail"), (2 * 2**30, "warn"), (100 * 2**30, "ok")])
def test_disk_space(free: int, status: str) -> None:
    assert doctor.check_disk(free).status == status


def test_a_state_folder_that_is_a_file_fails(home: Path) -> None:
    home.write_text("in the way")
    [check] = doctor.check_state()
    assert check.status == "fail"
    assert "TULA_HOME" in check.remedy


def test_a_backend_that_torch_lacks_fails() -> None:
    assert doctor.check_group("nccl", ["gloo"]).status == "fail"


def test_torch_that_cannot_be_imported_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_TORCH", "raise ImportError('libcudart.so.13: not found')")
    [check] = doctor.check_torch()
    assert check.status == "fail"
    assert check.found == "ImportError: libcudart.so.13: not found"


def test_a_state_folder_that_cannot_be_is_diagnosed_like_any_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TULA_HOME", str(tmp_path / "file"))
    assert doctor.check_mlflow(None).status == "fail"
    [state] = doctor.check_state()
    assert (state.name, state.status) == ("state folder", "fail")
    assert "Set TULA_HOME" in state.remedy
