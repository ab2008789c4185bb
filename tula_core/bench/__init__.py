"""Backtests on measured data: what Tula's models predict for other people's clusters, and how far off that is.

Each kind reads a folder of CSV files, predicts every row that is asked from the rows that may be known, and writes one
CSV. Nothing is trained and nothing is looked up by the name of a network or a cluster. `KINDS` names the module of each
kind; a module holds one `tula_core.bench.kind.Kind` under the name ``KIND``.
"""

from __future__ import annotations

import importlib

from tula_core.bench.kind import Kind
from tula_core.errors import InputError, nearest

KINDS: dict[str, str] = {
    "step-time": "tula_core.bench.step_time",
    "epochs": "tula_core.bench.epochs",
    "scaling": "tula_core.bench.scaling",
    "energy": "tula_core.bench.energy",
    "reach": "tula_core.bench.reach",
    "active": "tula_core.bench.active",
}
"""The kinds of measured data, with the module that predicts each."""


def load_kind(name: str) -> Kind:
    """Return a kind by its name.

    Raises
    ------
    InputError
        The name is unknown; the message lists the known ones.
    """
    if name not in KINDS:
        raise InputError(f"KIND: {name!r} is unknown. {nearest(name, list(KINDS))}")
    kind = importlib.import_module(KINDS[name]).KIND
    assert isinstance(kind, Kind) and kind.name == name, name
    return kind
