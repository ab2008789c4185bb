import pytest
import torch

from tula_core.engine.context import local_device
from tula_core.errors import InputError


def machine(monkeypatch: pytest.MonkeyPatch, devices: int, processes: int, rank: int = 0) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    monkeypatch.setenv("LOCAL_RANK", str(rank))


def test_each_process_has_an_accelerator_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, devices=4, processes=2, rank=1)
    assert local_device() == torch.device("cuda", 1)


def test_a_machine_without_accelerators_uses_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, devices=0, processes=2)
    assert local_device() == torch.device("cpu")


def test_too_few_accelerators_are_an_error_and_no_silent_fall_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, devices=1, processes=2)
    with pytest.raises(InputError, match="need as many accelerators, it has 1"):
        local_device()
