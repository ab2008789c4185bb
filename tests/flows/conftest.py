"""A state folder for each test, and a core that answers at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from flows_fakes import FakeCore

from tula_core import api


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TULA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> FakeCore:
    fake = FakeCore()
    for name in ("profile", "plan", "train", "resume_plan", "outcomes", "retrain"):
        monkeypatch.setattr(api, name, getattr(fake, name))
    return fake
