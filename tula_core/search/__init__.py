"""Search: from forecasts to a plan.

`make_plan` enumerates what the cluster allows, asks a predictor for forecasts, holds them against the job's limits,
records all of it in an Optuna study, and chooses on the Pareto front of time and cost. The predictor is an argument:
anything with the shape of `forecaster.Forecaster` will do. `display_rows` says which rows are worth printing and
`next_best` which one training goes on with where a method was a wrong guess; neither needs Optuna, which is loaded when
`make_plan` is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tula_core.search.api import make_plan
    from tula_core.search.other_methods import next_best
    from tula_core.search.table import display_rows
    from tula_core.search.what_if import Elsewhere, answer_what_if

_HOMES = {
    "make_plan": "tula_core.search.api",
    "display_rows": "tula_core.search.table",
    "next_best": "tula_core.search.other_methods",
    "Elsewhere": "tula_core.search.what_if",
    "answer_what_if": "tula_core.search.what_if",
}

__all__ = ["Elsewhere", "answer_what_if", "display_rows", "make_plan", "next_best"]


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tula_core.search' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
