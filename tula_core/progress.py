"""What a stage says while it works: small events to a listener, so that no stage prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One report of a stage.

    Attributes
    ----------
    stage
        ``describe``, ``profile``, ``fit``, ``search``, ``train``, ``track`` or ``retrain``.
    message
        One line for a person.
    fraction
        Share of the stage that is done, in [0, 1]; ``None`` where unknown.
    level
        ``progress`` replaces the line before it, ``info`` and ``warning`` stay on the screen.
    data
        Figures behind the message, for example ``loss`` or ``images_per_s``.
    """

    stage: str
    message: str
    fraction: float | None = None
    level: Literal["progress", "info", "warning"] = "progress"
    data: Mapping[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]


def silent(event: Event) -> None:
    """Listen to nothing; the default of every stage."""
