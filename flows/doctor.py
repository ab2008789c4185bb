"""What ``tula doctor`` looks at: each check says what it found and, where that is not enough, how to fix it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal

from flows import units
from tula_core.errors import TulaError
from tula_core.home import tula_home
from tula_core.tracking.keys import ROLE

ANSWER_S = 5.0
LEAST_FREE_BYTES = 2**30
COMFORTABLE_FREE_BYTES = 5 * 2**30
MOST_CLOCK_SKEW_S = 60.0

# Torch is looked at in a child process: a broken driver can end the process that asks.
_TORCH = """
import torch, torch.distributed as dist
print(torch.__version__)
print("\\n".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())) or "none")
print("gloo" if dist.is_gloo_available() else "-", "nccl" if dist.is_nccl_available() else "-")
"""
_GROUP = """
import sys, torch, torch.distributed as dist
dist.init_process_group(sys.argv[1], init_method="file://" + sys.argv[2], rank=0, world_size=1)
value = torch.ones(1, device="cuda" if sys.argv[1] == "nccl" else "cpu")
dist.all_reduce(value)
dist.destroy_process_group()
print(int(value.item()))
"""

# MLflow has a run for each stage of a job below the job's own, for each predictor, and perhaps those of others.
_RUNS = """
select coalesce(sum(tags.value = 'job'), 0), count(*) from runs
left join tags on tags.run_uuid = runs.run_uuid and tags.key = ?
where runs.lifecycle_stage = 'active'
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    status: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""


def examine() -> Iterator[Check]:
    """Check one thing after the other."""
    yield check_python()
    yield from check_torch()
    yield check_mlflow(os.environ.get("MLFLOW_TRACKING_URI"))
    yield check_prefect(os.environ.get("PREFECT_API_URL"))
    yield check_clock()
    yield from check_state()
    yield check_shared_memory(Path("/dev/shm"))


def check_python() -> Check:
    """Return the version of Python and of Tula."""
    from tula_core import __version__

    version = ".".join(str(part) for part in sys.version_info[:3])
    return Check(name="python", status="ok", found=f"{version}, tula {__version__}, {os.cpu_count()} cores")


def check_torch() -> Iterator[Check]:
    """Check that torch can be imported, which devices it sees, and that processes can form a group."""
    answer = _child(_TORCH)
    if answer.returncode:
        remedy = "Install it again: pip install -c constraints.txt torch torchvision."
        yield Check(name="torch", status="fail", found=_last_line(answer.stderr), remedy=remedy)
        return
    version, *devices, backends = answer.stdout.strip().splitlines()
    yield Check(name="torch", status="ok", found=version)
    gpus = [] if devices == ["none"] else devices
    yield Check(
        name="devices", status="ok", found=", ".join(gpus) or "no accelerator: profiling and training use the CPU"
    )
    for backend in ("gloo", *(["nccl"] if gpus else [])):
        yield check_group(backend, backends.split())


def check_group(backend: str, built: list[str]) -> Check:
    """Check that a process group of ``backend`` can be made and used."""
    if backend not in built:
        remedy = "Install a build of torch that has it, from pytorch.org."
        return Check(name=backend, status="fail", found="not part of this build of torch", remedy=remedy)
    with tempfile.TemporaryDirectory() as folder:
        answer = _child(_GROUP, backend, f"{folder}/group")
    if answer.returncode or answer.stdout.strip() != "1":
        remedy = "Look at the network interfaces; GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names the one to use."
        return Check(name=backend, status="fail", found=_last_line(answer.stderr), remedy=remedy)
    return Check(name=backend, status="ok", found="a process group was made and used")


def check_mlflow(uri: str | None) -> Check:
    """Check that runs can be recorded at ``uri``, by default the database under Tula's state folder."""
    if uri is None or not uri.startswith(("http://", "https://")):
        try:
            path = uri.removeprefix("sqlite:///") if uri is not None else str(tula_home() / "mlflow.db")
        except TulaError as error:
            return Check(name="MLflow", status="fail", found=str(error), remedy="Mend the state folder, see below.")
        return _check_database(path, uri)
    return _check_server(
        "MLflow",
        f"{uri.rstrip('/')}/health",
        "Start the server or correct MLFLOW_TRACKING_URI. Until then runs are kept in the spool and sent later.",
    )


def _check_database(path: str, uri: str | None) -> Check:
    if uri is not None and not uri.startswith("sqlite:"):
        return Check(name="MLflow", status="ok", found=f"{uri}, which is not looked at from here")
    if not Path(path).exists():
        return Check(name="MLflow", status="ok", found=f"{path}, made at the first run")
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=ANSWER_S) as database:
            jobs, entries = database.execute(_RUNS, (ROLE,)).fetchone()
        database.close()
    except sqlite3.Error as error:
        remedy = f"Move {path} away; a new one is made at the next run and the spool is sent again."
        return Check(name="MLflow", status="fail", found=f"{path}: {error}", remedy=remedy)
    found = (
        f"{path}, {jobs} run{'s' * (jobs != 1)} of jobs (MLflow counts {entries}, with stages, predictors and others)"
    )
    return Check(name="MLflow", status="ok", found=found)


def check_prefect(url: str | None) -> Check:
    """Check that the Prefect server at ``url`` answers; without one a server is started for each ``tula run``."""
    if url is None:
        from importlib.util import find_spec

        if find_spec("prefect") is None:
            remedy = "Install it: pip install -c constraints.txt prefect. All verbs but tula run work without it."
            return Check(name="Prefect", status="fail", found="not installed", remedy=remedy)
        return Check(name="Prefect", status="ok", found="a server of its own for each tula run")
    remedy = "Start it with prefect server start, correct PREFECT_API_URL, or unset it for a server of tula run's own."
    return _check_server("Prefect", f"{url.rstrip('/')}/health", remedy)


def _check_server(name: str, url: str, remedy: str) -> Check:
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
            date = answer.headers.get("Date")
    except (OSError, ValueError) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        return Check(name=name, status="fail", found=f"{url} does not answer: {cause}", remedy=remedy)
    skew_s = abs(time.time() - parsedate_to_datetime(date).timestamp()) if date else 0.0
    if skew_s > MOST_CLOCK_SKEW_S:
        wrong = f"{url} answers, its clock is {units.duration(skew_s)} away from this one"
        return Check(name=name, status="fail", found=wrong, remedy="Synchronise the clocks, with chrony for example.")
    return Check(name=name, status="ok", found=f"{url} answers")


def check_clock(now_s: float | None = None) -> Check:
    """Check that the wall clock is not before this installation, and that steps can be timed."""
    wall_s = time.time() if now_s is None else now_s
    resolution_s = time.get_clock_info("perf_counter").resolution
    if wall_s < Path(__file__).stat().st_mtime - 86400:
        found = f"it says {time.strftime('%Y-%m-%d', time.gmtime(wall_s))}, which is before this installation"
        return Check(name="clock", status="fail", found=found, remedy="Set the clock, with chrony for example.")
    if resolution_s > 1e-4:
        remedy = "Forecasts of short steps will be rough on this machine."
        return Check(name="clock", status="warn", found=f"resolution {units.duration(resolution_s)}", remedy=remedy)
    return Check(name="clock", status="ok", found=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(wall_s)))


def check_state() -> Iterator[Check]:
    """Check that the state folder can be written and that its disk has room."""
    try:
        home = tula_home()
        with tempfile.TemporaryFile(dir=home) as file:
            file.write(b"\0" * 4096)
            file.flush()
    except (OSError, TulaError) as error:
        remedy = "Set TULA_HOME to a folder you can write to, or free its disk."
        yield Check(name="state folder", status="fail", found=str(error), remedy=remedy)
        return
    yield Check(name="state folder", status="ok", found=str(home))
    yield check_disk(shutil.disk_usage(home).free)


def check_disk(free_bytes: int) -> Check:
    """Check the free space where the state folder is."""
    found = f"{units.size(free_bytes)} free"
    remedy = "Free some with tula clean, or set TULA_HOME to a larger disk."
    if free_bytes < LEAST_FREE_BYTES:
        return Check(name="disk", status="fail", found=found, remedy=remedy)
    return Check(
        name="disk", status="ok" if free_bytes >= COMFORTABLE_FREE_BYTES else "warn", found=found, remedy=remedy
    )


def check_shared_memory(path: Path) -> Check:
    """Check the shared memory that loader workers need; containers often give 64 MiB."""
    if not path.is_dir():
        return Check(name="shared memory", status="ok", found=f"no {path} on this system")
    total = shutil.disk_usage(path).total
    if total < 2**28:
        remedy = "Fine without loader workers; with them start the container with --shm-size=1g or more."
        return Check(name="shared memory", status="warn", found=units.size(total), remedy=remedy)
    return Check(name="shared memory", status="ok", found=units.size(total))


def _child(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", "no answer within 120 s")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it ended without a message"
