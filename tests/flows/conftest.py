"""A state folder for each test, and a core that answers at once."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

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
    for name in ("profile", "plan", "train", "resume_plan", "history", "retrain"):
        monkeypatch.setattr(api, name, getattr(fake, name))
    if importlib.util.find_spec("tula_core.search") is None:
        stub = SimpleNamespace(display_rows=lambda plan: list(range(len(plan.table))))
        monkeypatch.setitem(sys.modules, "tula_core.search.table", stub)
    return fake
