"""The Prefect flows and the command line: the only place that imports Prefect.

>>> from flows import submit  # doctest: +SKIP
>>> submit("digits-cnn")  # doctest: +SKIP

`submit` is loaded when first used (PEP 562): Prefect takes seconds to import, and the command line must not wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.submission import submit as submit

__all__ = ["submit"]


def __getattr__(name: str) -> Any:
    """Load `submit` from its module."""
    if name != "submit":
        raise AttributeError(f"module 'flows' has no attribute {name!r}")
    from flows.submission import submit

    return submit
