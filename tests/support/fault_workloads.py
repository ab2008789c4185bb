"""Workloads with the habits that break other tools; loaded by import path in worker processes."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny_workloads import Mlp, workload
from torch import Tensor
from torch.utils.data import Dataset

from tula_core.workloads import Workload


def _die_twice(inputs: Tensor) -> None:
    mark = Path(os.environ["TULA_TEST_DEATHS"])
    deaths = len(mark.read_text()) if mark.exists() else 0
    if deaths < 2 and len(inputs) and _dying.step():
        mark.write_text("x" * (deaths + 1))
        os.kill(os.getpid(), signal.SIGKILL)


class _Countdown:
    left = 20

    def step(self) -> bool:
        self.left -= 1
        return self.left == 0


_dying = _Countdown()


def dies_twice() -> Workload:
    """The process is killed in its second epoch, twice."""
    return workload(lambda: Mlp(hook=_die_twice), epochs=3)


class _Mapped(Dataset[Any]):
    """A data set whose transform is a closure: it cannot be pickled, and need not be."""

    def __init__(self, inner: Any, transform: Callable[[Tensor], Tensor]) -> None:
        self.inner, self.transform = inner, transform

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        inputs, target = self.inner[index]
        return self.transform(inputs), target


def with_lambda() -> Workload:
    """A lambda as transform, and loader processes to hand it to."""
    made = workload(epochs=1, loader_workers=1)
    scale = 2.0
    return dataclasses.replace(made, train_data=_Mapped(made.train_set(), lambda inputs: inputs * scale))


def _speak(inputs: Tensor) -> None:
    if not _said:
        _said.append(True)
        rank = os.environ["RANK"]
        print(f"rank {rank} speaks", flush=True)
        thread = threading.Thread(target=print, args=(f"rank {rank} speaks from a thread",), kwargs={"flush": True})
        thread.start()
        thread.join()
        heavy = {"mlflow", "prefect"} & set(sys.modules)
        print(f"rank {rank} has loaded {sorted(heavy)}", flush=True)


_said: list[bool] = []


def talkative() -> Workload:
    """Every rank prints, from a thread as well."""
    return workload(lambda: Mlp(hook=_speak), epochs=1)


class _SlowEvaluation(Mlp):
    def forward(self, inputs: Tensor) -> Tensor:
        time.sleep(0.005 if self.training else 2.0)
        return super().forward(inputs)


def slow_to_evaluate() -> Workload:
    """Steps of 5 ms, evaluations of 2 s."""
    return workload(_SlowEvaluation, epochs=4)


def _slow_on_rank_1(inputs: Tensor) -> None:
    time.sleep(0.03 * (1 + int(os.environ["RANK"])))


def uneven_ranks() -> Workload:
    """Rank 1 takes twice as long as rank 0."""
    return workload(lambda: Mlp(hook=_slow_on_rank_1), samples=64, epochs=2)


def waits_for_ever(*arguments: Any) -> Workload:
    """A step that never ends, with a child process of the user's own beside it."""
    import subprocess

    def hang(inputs: Tensor) -> None:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        time.sleep(600)

    return workload(lambda: Mlp(hook=hang))


def _short_step(inputs: Tensor) -> None:
    time.sleep(0.004)


def short_steps() -> Workload:
    """Dropout makes the weights depend on the random state of every step."""
    return workload(lambda: Mlp(hook=_short_step, p=0.3), epochs=4)
