"""`Corrections`: what history taught the predictor, applied on top of what a profile says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True, slots=True)
class Correction:
    """For one quantity: multiply the forecast by exp(log_bias), and widen its interval by log_sd.

    ``log_sd`` is the spread of ln(actual/predicted) over outcomes after the bias is taken out.
    """

    log_bias: float
    log_sd: float
    outcomes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Corrections:
    """A version of the predictor; version 1 is the built-in one, with no corrections."""

    SCHEMA_VERSION: ClassVar[int] = 1

    schema_version: int
    version: int
    outcomes: int
    jobs: int
    by_quantity: Mapping[str, Correction]

    @property
    def label(self) -> str:
        """The name a plan and a run carry, for example ``tula-predictor v1 (built-in)``."""
        kind = "built-in" if self.version == 1 else f"{self.outcomes} outcomes of {self.jobs} jobs"
        return f"tula-predictor v{self.version} ({kind})"


BUILTIN = Corrections(schema_version=1, version=1, outcomes=0, jobs=0, by_quantity={})
