"""Energy counters of processor packages, as Linux shows them: RAPL under ``/sys/class/powercap``."""

from __future__ import annotations

from pathlib import Path

from tula_core.engine.power.sources import EnergySource

POWERCAP = Path("/sys/class/powercap")
_J_PER_UJ = 1e-6


def rapl_source(root: Path = POWERCAP) -> tuple[EnergySource | None, str]:
    """Return the counter of all packages together, or why there is none.

    A package is a folder ``intel-rapl:N``, which AMD's processors have too. Its parts (``intel-rapl:N:M``), the whole
    platform (``psys``) and the second interface (``intel-rapl-mmio``) count the same joules again and are left out.
    """
    packages = [path for path in sorted(root.glob("intel-rapl:*")) if path.name.count(":") == 1 and _is_package(path)]
    if not packages:
        return None, "this machine shows no energy counter of its processors"
    try:
        ranges = [_number(path / "max_energy_range_uj") * _J_PER_UJ for path in packages]
        counters = [_Package(path, size) for path, size in zip(packages, ranges, strict=True)]
        for counter in counters:
            counter.read()
    except (OSError, ValueError) as error:
        return None, f"the energy counter of the processors cannot be read ({error})"
    name = f"the RAPL counter of {len(packages)} processor package{'s' * (len(packages) > 1)}"
    total = EnergySource(
        name=name, covers="processors", kind="counter", read=lambda: sum(counter.read() for counter in counters)
    )
    return total, ""


class _Package:
    """One package's counter, unwrapped: it starts again from zero within an hour under load."""

    def __init__(self, path: Path, range_j: float) -> None:
        self._path, self._range_j = path, range_j
        self._last_j: float | None = None
        self._turns = 0

    def read(self) -> float:
        value = _number(self._path / "energy_uj") * _J_PER_UJ
        if self._last_j is not None and value < self._last_j:
            self._turns += 1
        self._last_j = value
        return self._turns * self._range_j + value


def _is_package(path: Path) -> bool:
    try:
        return (path / "name").read_text().strip().startswith("package")
    except OSError:
        return False


def _number(path: Path) -> float:
    return float(path.read_text())
