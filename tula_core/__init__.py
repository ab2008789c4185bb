"""Tula: choose nodes and batch size for training a vision network, forecast the bill, train there, learn from it.

>>> import tula_core as tula
>>> job = tula.Job.builtin("digits-cnn")
>>> job.title
'digits-cnn'

Names are loaded when first used (PEP 562), so that ``import tula_core`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tula_core.version import __version__

if TYPE_CHECKING:
    from tula_core.api import outcomes, plan, profile, retrain, train
    from tula_core.errors import InfeasibleError, InputError, RunError, StoppedError, TulaError
    from tula_core.job import Job
    from tula_core.records import Outcome, Plan, Profile

_HOMES = {
    "tula_core.api": ("outcomes", "plan", "profile", "retrain", "train"),
    "tula_core.errors": ("InfeasibleError", "InputError", "RunError", "StoppedError", "TulaError"),
    "tula_core.job": ("Job",),
    "tula_core.records": ("Outcome", "Plan", "Profile"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "InfeasibleError",
    "InputError",
    "Job",
    "Outcome",
    "Plan",
    "Profile",
    "RunError",
    "StoppedError",
    "TulaError",
    "__version__",
    "outcomes",
    "plan",
    "profile",
    "retrain",
    "train",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'tula_core' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)
