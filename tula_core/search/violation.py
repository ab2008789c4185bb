"""`Violation`: one limit that a candidate breaks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """One broken limit.

    ``excess`` is relative to the limit and above zero, None where the forecast needed for the check is unknown.
    ``remedy`` says which limit would admit the candidate.
    """

    key: str
    excess: float | None
    text: str
    remedy: str


def unchecked(key: str, quantity: str) -> Violation:
    """Return the violation of a limit of ``constraints`` that a forecast which is unknown cannot be held against."""
    text = f"{quantity} could not be forecast, so constraints.{key} cannot be checked"
    remedy = f"Raise probe.seconds so that it is measured, or leave constraints.{key} out"
    return Violation(key=key, excess=None, text=text, remedy=remedy)
