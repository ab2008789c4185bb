"""A plan that begins on one process and goes on with two: trained, killed in either part and resumed, and billed.

``python -m tests.benchmarks.staged_run [--quick]`` plans Fashion-MNIST's convolutional network with a growing batch
and ``constraints.begin_alone``, at a price per node-hour, and trains the choice three times, as a user does, by
``tula train``: left alone; with its worker killed while it is alone, and resumed; with ``tula train`` killed once both
processes train, and resumed. Kills are SIGKILL, which nothing can heed. Printed is for each run what every stage took,
whether each sample was dealt once in every epoch, whether the weights are those of the run that was left alone to the
last bit, and time and cost beside their forecast, with what the kill cost apart. It ends with 1 where samples or
weights are wrong. Seconds mean something on a quiet machine only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.benchmarks.staged_report import planned_lines, report, total_samples
from tests.benchmarks.staged_story import Story
from tula_core.errors import RunError
from tula_core.records import Plan, load
from tula_core.tracking.spent import attempt_folder, part_folder
from tula_core.training.relaunch import worlds_of

ROOT = Path(__file__).resolve().parents[2]
BOTH = 2
WORKER, LAUNCHER = "its worker", "tula train itself"
_FULL = ("fashion-cnn", "recipe.epochs=6", "probe.seconds=60")
_QUICK = ("digits-cnn", "recipe.epochs=100", "probe.seconds=6")
_SET = (
    "target=none",
    "mitigation=growth",
    "objective=time",
    "constraints.begin_alone=true",
    f"cluster.processes_per_node={BOTH}",
    "cluster.price_per_node_hour=3.6",
)
_LONGER = "Give it more epochs: --set recipe.epochs=N"
_POLL_S, _PATIENCE_S, _END_S = 0.05, 1800.0, 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """Which process is killed, a third into which part of the run: the one alone, 1, or the one of both, 2."""

    part: int
    victim: str

    def __str__(self) -> str:
        return f"killed in part {self.part}, {self.victim}"


class Bench:
    """The command line, with a state of its own.

    Parameters
    ----------
    home
        ``TULA_HOME`` of all commands.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._seen: set[Path] = set()

    @property
    def plan_file(self) -> Path:
        """Where the plan is."""
        return self.home / "plan.json"

    def plan(self, job: str, overrides: Sequence[str]) -> Plan:
        """Return the plan of a job whose run has to begin alone."""
        words = [word for value in (*_SET, *overrides) for word in ("--set", value)]
        self._call("plan", job, *words, "--out", str(self.plan_file))
        return load(Plan, self.plan_file)

    def train(self, kill: Kill | None, begins_at: Sequence[int]) -> Story:
        """Train the plan's choice to its end and return what became of it; after a kill it is resumed.

        Parameters
        ----------
        begins_at
            Samples at which each part of the run begins, and those at which it ends.
        """
        words = ["train", str(self.plan_file)]
        if kill is None:
            self._call(*words)
            return Story.of(self._new_run())
        with subprocess.Popen(self._command(*words), env=self._environment(), **_SILENT) as process:
            try:
                run = self._new_run(process)
                begin, end = begins_at[kill.part - 1 : kill.part + 1]
                _await_samples(part_folder(attempt_folder(run, 1), kill.part), begin + (end - begin) // 3, process)
                _kill(process.pid, kill.victim)
            except BaseException:
                process.kill()
                raise
        self._call(*words, "--resume")
        story = Story.of(run)
        if sum(launch.attempt == 1 for launch in story.launches) != kill.part:
            raise RunError(f"staged_run: part {kill.part} ended before the kill. {_LONGER}")
        return story

    def _new_run(self, process: subprocess.Popen[bytes] | None = None) -> Path:
        """Return the folder of the run that has begun since the last call."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            found = {path.parent for path in (self.home / "runs").glob("*/run.json")} - self._seen
            if found:
                self._seen.update(found)
                return found.pop()
            _require_alive(process, deadline)
            time.sleep(_POLL_S)

    def _call(self, *words: str) -> None:
        done = subprocess.run(self._command(*words), env=self._environment(), capture_output=True, text=True)
        if done.returncode:
            raise RunError(f"tula {words[0]} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "flows.cli", *words]

    def _environment(self) -> dict[str, str]:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return os.environ | {"TULA_HOME": str(self.home), "PYTHONPATH": os.pathsep.join(paths)}


_SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def _await_samples(folder: Path, samples: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the workers of a launch say that the run has seen so many samples."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        lines = (folder / "events.jsonl").read_text().split("\n")[:-1] if (folder / "events.jsonl").exists() else []
        if any(json.loads(line).get("samples", 0) >= samples for line in lines):
            return
        _require_alive(process, deadline)
        time.sleep(_POLL_S)


def _require_alive(process: subprocess.Popen[bytes] | None, deadline: float) -> None:
    if process is None or process.poll() is not None or time.monotonic() > deadline:
        raise RunError(f"staged_run: a run ended before it could be killed. {_LONGER}")


def _kill(launcher: int, victim: str) -> None:
    """Kill the launcher or its worker of rank 0, and wait until nothing of the run is left."""
    parent = psutil.Process(launcher)
    workers, first = [], []
    for child in parent.children():
        with contextlib.suppress(psutil.NoSuchProcess):  # ended meanwhile
            if "tula_core.engine.worker" in child.cmdline():
                workers.append(child)
                first += [child.pid] if child.environ().get("RANK") == "0" else []
    for pid in first if victim == WORKER else [launcher]:
        os.kill(pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(workers, timeout=_END_S)
    alive = [worker for worker in alive if _runs(worker)]
    if alive:
        raise RunError(f"staged_run: {len(alive)} workers were still there {_END_S:g} s after the kill")


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def starts_of(plan: Plan) -> list[int]:
    """Return the samples at which each part of the planned run begins, and those at which it ends.

    Raises
    ------
    RunError
        The choice does not go from one process to two.
    """
    row = plan.choice
    worlds = () if row is None else worlds_of(row.candidate)
    if [world.nodes * world.processes_per_node for world in worlds] != [1, BOTH]:
        raise RunError(f"staged_run: the plan does not go from 1 process to {BOTH}: {plan.reason}")
    return [0, *(world.stages[0].from_samples for world in worlds[1:]), total_samples(plan)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan, train three times and print; return 1 where samples or weights of a run are wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small network on scikit-learn's digits")
    parser.add_argument("--job", help="another built-in job")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="of the job, as for tula plan")
    asked = parser.parse_args(arguments)
    job, *usual = _QUICK if asked.quick else _FULL
    right, weights = True, ""
    # Asked to end, it ends what it started first.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        plan = bench.plan(asked.job or job, [*usual, *asked.overrides])
        begins_at = starts_of(plan)
        assert plan.choice is not None
        print("\n".join(planned_lines(plan, plan.choice)), flush=True)
        for kill in (None, Kill(part=1, victim=WORKER), Kill(part=2, victim=LAUNCHER)):
            story = bench.train(kill, begins_at)
            weights = weights or story.weights
            lines, held = report("left alone" if kill is None else str(kill), story, plan, weights)
            print("\n".join(lines), flush=True)
            right = right and held
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
