import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SUPPORT = Path(__file__).parent / "support"

# Other people's measurements are not part of the repository.
collect_ignore = [] if "TULA_BENCH_DATA" in os.environ else ["bench/test_bench_measured.py"]

# No example is held to a time, and each run tries the same ones: other work on the machine is not what is tested.
settings.register_profile(
    "tula", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tula")


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a state folder of its own, and let worker processes import tests/support."""
    home = tmp_path / "tula-home"
    monkeypatch.setenv("TULA_HOME", str(home))
    monkeypatch.setenv("TULA_LOCKS", str(home / "device locks"))  # a job on this machine is not to be waited for
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    )
    monkeypatch.syspath_prepend(str(SUPPORT))
    return home


@pytest.fixture
def kept_signals() -> Iterator[None]:
    """Put the signal handlers back that a test's code replaces."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)
