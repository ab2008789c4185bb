"""`WhatIf`: the answer for a node type that was not measured, kept apart from everything that was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tula_core.records.candidate import Row

FACTS_ALONE = "what-if "
"""How the fingerprint of a machine begins that is known by its facts alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """What would be chosen on another node type, forecast from its facts; never trained and never learnt from.

    ``choice`` is None where nothing is feasible there; ``reason`` and ``assumptions`` say why, as those of a plan.
    """

    name: str
    choice: Row | None
    reason: str
    assumptions: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as plan.json has them."""
        return {
            "name": self.name,
            "choice": None if self.choice is None else self.choice.to_dict(),
            "reason": self.reason,
            "assumptions": list(self.assumptions),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WhatIf:
        """Return the record in plain values; raises ``KeyError`` or ``ValueError`` where it is none."""
        return cls(
            name=data["name"],
            choice=None if data["choice"] is None else Row.from_dict(data["choice"]),
            reason=data["reason"],
            assumptions=tuple(data["assumptions"]),
        )
