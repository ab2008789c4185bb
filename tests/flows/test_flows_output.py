import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.failures import report
from flows.output import check_out, write_out
from tula_core.errors import InputError, RunError
from tula_core.home import write_atomic


def test_a_folder_and_a_path_through_a_file_are_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--out: .* is a folder"):
        check_out(tmp_path)
    with pytest.raises(InputError, match="is a folder"):
        check_out(Path(""))
    with pytest.raises(InputError, match="is no folder"):
        check_out(tmp_path / "file" / "plan.json")


def test_an_unwritable_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(InputError, match="permission denied"):
        check_out(tmp_path / "plan.json")


def test_a_folder_that_is_missing_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "plan.json"
    check_out(path)
    check_out(None)
    write_out(path, "text")
    assert path.read_text() == "text"


def test_a_pipe_or_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    check_out(pipe)
    write_atomic(pipe, "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert pipe.is_fifo()


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_atomic(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "text"


def test_a_disk_that_fills_up_is_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="cannot be written .No space left on device.. Free disk space"):
        write_out(tmp_path / "plan.json", "text")


def test_a_disk_fault_anywhere_names_the_state_folder_and_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(OSError(28, "No space left on device", "/somewhere")) == 4
    said = capsys.readouterr().err
    assert said.startswith("error: No space left on device at /somewhere; TULA_HOME is ")
    assert "Free disk space" in said
    assert "traceback" not in said.lower()


def test_a_closed_output_is_no_error() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = f'"{sys.executable}" -m flows.cli list >&- 2>&-'
    assert subprocess.run(command, shell=True, env=environment, timeout=60, check=False).returncode == 0
