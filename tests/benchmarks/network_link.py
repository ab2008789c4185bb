"""An emulated network: two namespaces joined by a link of a given speed, gone when the benchmark ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from types import FrameType, TracebackType
from typing import Any

_BURST, _LATENCY = "256kb", "50ms"
_DEVICE = "tula0"
_SUBNET = "10.213.77"  # of the namespaces alone: nothing outside them sees it


def missing_for_link() -> str | None:
    """Return what this machine lacks for a `Link`, in a line; None where nothing is missing."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces need Linux, this is {sys.platform}"
    tools = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if tools:
        return f"{' and '.join(tools)} not found; install iproute2"
    if os.geteuid() != 0:
        return "making network namespaces needs root; run it as root"
    try:
        with Link("1gbit"):
            return None
    except RuntimeError as error:
        return f"this machine refuses an emulated link: {error}"


class Link:
    """Two network namespaces and the link between them, shaped by a token bucket at both ends.

    Parameters
    ----------
    rate
        As ``tc`` writes it, for example ``1gbit``.

    Attributes
    ----------
    names
        Of the two namespaces.
    """

    def __init__(self, rate: str) -> None:
        self._rate = rate
        self.names = [f"tula-{os.getpid()}-{side}" for side in "ab"]
        self._before: Any = None

    @property
    def prefixes(self) -> tuple[tuple[str, ...], ...]:
        """Words before the command of each process that put it into its namespace."""
        return tuple(("ip", "netns", "exec", name, "env", f"GLOO_SOCKET_IFNAME={_DEVICE}") for name in self.names)

    def __enter__(self) -> Link:
        # A polite request to end would otherwise leave the namespaces behind.
        self._before = signal.signal(signal.SIGTERM, _ended)
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _make(self) -> None:
        first, second = self.names
        for name in self.names:
            _call("ip", "netns", "add", name)
        _call("ip", "link", "add", _DEVICE, "netns", first, "type", "veth", "peer", "name", _DEVICE, "netns", second)
        for number, name in enumerate(self.names, start=1):
            inside = ("ip", "netns", "exec", name)
            _call(*inside, "ip", "addr", "add", f"{_SUBNET}.{number}/24", "dev", _DEVICE)
            _call(*inside, "ip", "link", "set", "lo", "up")
            _call(*inside, "ip", "link", "set", _DEVICE, "up")
            shape = ("tbf", "rate", self._rate, "burst", _BURST, "latency", _LATENCY)
            _call(*inside, "tc", "qdisc", "add", "dev", _DEVICE, "root", *shape)

    def _remove(self) -> None:
        """Remove what there is; the link goes with its namespaces."""
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        signal.signal(signal.SIGTERM, self._before)


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def _ended(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
