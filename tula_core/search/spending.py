"""What the choice costs beside its price: spot nodes compared, carbon, and the command that sets a power limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tula_core.job import Job
from tula_core.models.cost import carbon_g
from tula_core.records import Row
from tula_core.search import words
from tula_core.search.forecaster import Forecaster


@dataclass(frozen=True, kw_only=True, slots=True)
class Spending:
    """The chosen row and the same on spot nodes; None where there is no choice, or nothing to compare."""

    job: Job
    row: Row | None
    spot: Row | None

    @classmethod
    def of(cls, row: Row | None, job: Job, predictor: Forecaster) -> Spending:
        """Return the spending of a choice."""
        return cls(job=job, row=row, spot=None if row is None else predictor.on_spot(row.candidate))

    def reason(self) -> str:
        """Return sentences to put after the reason, with a blank before; empty where there is nothing to say."""
        sentences = (self._spot(), self._carbon(), self._limit())
        return "".join(f" {sentence}" for sentence in sentences if sentence)

    def facts(self) -> dict[str, Any]:
        """Return ``carbon_g`` with ``low`` and ``high``, and ``spot`` with time and cost, where they are known."""
        found: dict[str, Any] = {}
        carbon = self._grams()
        if carbon is not None:
            found["carbon_g"] = dict(zip(("value", "low", "high"), carbon, strict=True))
        if self.spot is not None:
            found["spot"] = {
                f"{name}{end}": getattr(self.spot[name], end.lstrip("_") or "value")
                for name in ("time_to_train_s", "cost_usd")
                for end in ("", "_low", "_high")
            }
        return found

    def _spot(self) -> str:
        """Return the comparison with spot nodes: they pay where they are cheaper and keep the deadline by 95 %."""
        if self.row is None or self.spot is None:
            return ""
        cost, firm = self.spot["cost_usd"].value, self.row["cost_usd"].value
        time, deadline = self.spot["time_to_train_s"], self.job.constraints.deadline
        if cost is None or firm is None or time.value is None or time.high is None:
            return ""
        start = (
            f"On spot nodes, restarts counted, it would take {words.time_with_interval(self.spot)} and cost "
            f"{words.usd(cost)} instead of {words.usd(firm)}"
        )
        if cost >= firm:
            return f"{start}: they do not pay."
        if deadline is not None and time.high > deadline:
            return f"{start}, but may miss the deadline of {words.given_duration(deadline)}."
        return f"{start}: leave cluster.price_per_node_hour out to plan on them."

    def _grams(self) -> tuple[float, float, float] | None:
        intensity = self.job.cluster.carbon_g_per_kwh
        energy = None if self.row is None else self.row["energy_j"]
        if intensity is None or energy is None or energy.value is None:
            return None
        assert energy.low is not None and energy.high is not None
        value, low, high = (float(carbon_g(joules, intensity)) for joules in (energy.value, energy.low, energy.high))
        return value, low, high

    def _carbon(self) -> str:
        if self.row is None or self.job.cluster.carbon_g_per_kwh is None:
            return ""
        grams = self._grams()
        if grams is None:
            return "The carbon of the choice is unknown, because its energy is."
        value, low, high = (words.grams(amount) for amount in grams)
        return f"The choice emits {value} ({low} to {high}) of CO2, at {self.job.cluster.carbon_g_per_kwh:g} g per kWh."

    def _limit(self) -> str:
        limit = None if self.row is None else self.row.candidate.power_limit_w
        if limit is None:
            return ""
        return (
            f"The power limit of the choice needs an administrator: before training, on each node, sudo nvidia-smi "
            f"--power-limit={limit:g}; Tula checks it and never sets it."
        )
