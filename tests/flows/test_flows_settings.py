import os
import shutil
from types import SimpleNamespace

import pytest

from flows.settings import configure
from tula_core.errors import RunError


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    os.environ.pop("PREFECT_HOME", None)
    os.environ.pop("PREFECT_API_URL", None)


def test_a_disk_without_room_for_the_server_is_said_before_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=300_000))
    with pytest.raises(RunError, match="has 0.3 MB free, Prefect's server needs 20 MB"):
        configure()


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/api", "garbage"])
def test_a_server_that_does_not_answer_is_named(address: str) -> None:
    os.environ["PREFECT_API_URL"] = address
    with pytest.raises(RunError, match=f"PREFECT_API_URL: '{address}' does not answer .* or unset it"):
        configure()
