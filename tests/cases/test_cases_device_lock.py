"""Two jobs on one device: elsewhere the lock's name holds whatever each of them calls the device, or its folder.

Then a job that names a device and one that does not, or two that name other sets with one in common, or two with other
folders for temporary files, share it: measurements are spoilt and memory runs out.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tula_core.engine import device_lock as locks
from tula_core.progress import Event, silent

UUIDS = ("GPU-aaaa", "GPU-bbbb", "GPU-cccc")


@pytest.fixture
def accelerators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[str, ...], str], None]:
    """Play a machine with accelerators, which the driver's program tells where there are UUIDs."""

    def play(uuids: tuple[str, ...], other_name: str = "H") -> None:
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        lines = [f"{uuid}, {other_name if number else 'H'}" for number, uuid in enumerate(uuids)]
        program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines) + f"exit {not uuids:d}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        monkeypatch.setattr(locks, "_ACCELERATORS", (str(program),))
        monkeypatch.setattr(locks, "_torch_is_for_processors", lambda: False)
        monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)

    return play


def see(monkeypatch: pytest.MonkeyPatch, visible: str | None) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


def waits(monkeypatch: pytest.MonkeyPatch, first: str | None, second: str | None) -> bool:
    """Return whether the second job waits for the first, and check that it goes on afterwards."""
    said: list[Event] = []
    inside = threading.Event()

    def job() -> None:
        with locks.device_lock("train", said.append):
            inside.set()

    see(monkeypatch, first)
    thread = threading.Thread(target=job)
    with locks.device_lock("train", silent):
        see(monkeypatch, second)
        thread.start()
        while not inside.wait(0.05) and not said:
            pass
        waited = not inside.is_set()
    assert inside.wait(20)
    thread.join()
    assert bool(said) is waited
    return waited


@pytest.mark.parametrize("uuids", [UUIDS, ()], ids=["driver", "numbers"])
@pytest.mark.parametrize(
    ("first", "second", "waited"),
    [
        (None, "0", True),
        ("0", None, True),
        ("0", "0,1", True),
        ("1,0", "0,1", True),
        ("0", "1", False),
        ("0,2", "1", False),
        ("", "0", True),
        ("0", "", True),
        ("MIG-1", "2", True),
    ],
)
def test_jobs_wait_where_they_share_a_device(
    accelerators: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    uuids: tuple[str, ...],
    first: str | None,
    second: str | None,
    waited: bool,
) -> None:
    """However each of them names it; a job on processors needs the machine alone."""
    accelerators(uuids)
    assert waits(monkeypatch, first, second) is waited


@pytest.mark.parametrize(("first", "second", "waited"), [("GPU-aa", "0", True), ("GPU-bbbb", "0", False)])
def test_a_device_is_the_same_by_its_number_and_its_uuid(
    accelerators: Callable[..., None], monkeypatch: pytest.MonkeyPatch, first: str, second: str, waited: bool
) -> None:
    """Job schedulers name devices by either."""
    accelerators(UUIDS)
    assert waits(monkeypatch, first, second) is waited


def test_numbers_of_unlike_devices_are_not_trusted_to_be_the_drivers(
    accelerators: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA counts the fastest first there: number 0 is not the driver's."""
    accelerators(UUIDS, "A")
    see(monkeypatch, "GPU-aaaa")
    assert locks.named_devices() == ()
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert locks.named_devices() == ("device-GPU-aaaa",)


@pytest.mark.parametrize(("first", "second"), [(None, "0"), ("0", "1")])
def test_a_machine_without_accelerators_is_one_device(
    monkeypatch: pytest.MonkeyPatch, first: str | None, second: str | None
) -> None:
    """Whatever the jobs call the accelerators that it has not."""
    monkeypatch.setattr(locks, "_ACCELERATORS", ())
    assert waits(monkeypatch, first, second)


def test_the_folder_is_one_for_all_users_and_folders_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first that everybody may write to, not the first that this user may write to."""
    own, common = tmp_path / "own", tmp_path / "common"
    own.mkdir(mode=0o700)
    common.mkdir()
    common.chmod(0o1777)
    monkeypatch.delenv("TULA_LOCKS")
    monkeypatch.setenv("TMPDIR", str(own))
    monkeypatch.setattr(locks, "_SHARED_FOLDERS", (str(tmp_path / "absent"), str(own), str(common)))
    assert locks.lock_path() == common / "tula-machine.lock"
    with locks.device_lock("train", silent):
        assert locks.lock_path().stat().st_mode & 0o777 == 0o666


def test_a_lock_that_cannot_be_opened_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that somebody put in its place is not followed."""
    monkeypatch.setenv("TULA_LOCKS", str(tmp_path))
    (tmp_path / "tula-machine.lock").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    said: list[Event] = []
    with locks.device_lock("train", said.append):
        assert not (tmp_path / "elsewhere").exists()
    [event] = said
    assert event.level == "warning"
    assert "other users' jobs on this machine are not waited for" in event.message


def test_a_lock_whose_file_was_removed_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cleaner of temporary files may come between opening and locking."""
    real, removed = locks._try, []

    def remove_first(number: int, alone: bool) -> bool:
        if not removed:
            removed.append(locks.lock_path().unlink())
        return real(number, alone)

    monkeypatch.setattr(locks, "_try", remove_first)
    with locks.device_lock("train", silent):
        assert locks.lock_path().exists()
