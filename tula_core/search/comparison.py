"""Which packages of methods were compared at the batch that was chosen, which was taken, why, and by what evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tula_core.mitigations import Packages
from tula_core.records import Candidate, Profile, Row
from tula_core.search import words
from tula_core.search.constraints import Judged
from tula_core.search.objective import Decision


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The rows of one layout and batch that differ in their methods alone, the chosen one first."""

    rows: tuple[Row, ...]
    packages: Packages
    reference_batch: int

    @classmethod
    def of(
        cls, judged: Sequence[Judged], decision: Decision, packages: Packages, reference_batch: int
    ) -> Comparison | None:
        """Return what the choice was compared with; None where nothing was chosen or there was one package only."""
        if decision.choice is None or not packages.several:
            return None
        chosen = judged[decision.choice].row
        alike = [item.row for item in judged if _place(item.row.candidate) == _place(chosen.candidate)]
        best: dict[tuple[str, ...], Row] = {chosen.candidate.mitigation: chosen}
        for row in sorted(alike, key=_rank):
            best.setdefault(row.candidate.mitigation, row)
        return cls(rows=tuple(best.values()), packages=packages, reference_batch=reference_batch)

    @property
    def chosen(self) -> Row:
        """The choice."""
        return self.rows[0]

    @property
    def needless(self) -> bool:
        """Whether the batch is not above the reference batch, so that there is nothing to make up for."""
        return self.chosen.candidate.global_batch <= self.reference_batch

    def reason(self, profile: Profile) -> str:
        """Return sentences, with a space before: what was compared, which was taken and why, and the evidence."""
        names = named(self.chosen.candidate.mitigation)
        if self.needless:
            return (
                f" No method is needed against lost accuracy: global batch {self.chosen.candidate.global_batch} is not "
                f"above the reference batch of {self.reference_batch}, and only the rate follows it, by {names}."
            )
        others = [row for row in self.rows[1:] if row.feasible]
        return f" It trains with {names}, {self._why(others)}. {self._evidence(profile)}"

    def _why(self, others: Sequence[Row]) -> str:
        time = self.chosen["time_to_train_s"].value
        if len(self.rows) == 1:
            return "the only package of methods that was looked at there"
        compared = f"{len(self.rows)} packages of methods compared at this batch"
        if not others:
            return f"the only one of {compared} that keeps every limit"
        beside = f"of the {len(others) + 1} that keep every limit, among {compared}"
        lists = "; ".join(named(row.candidate.mitigation) for row in others)
        quickest = all((row["time_to_train_s"].value or 0.0) >= (time or 0.0) for row in others)
        return f"{'the fastest' if quickest else 'the best by the objective'} {beside} (beside it {lists})"

    def _evidence(self, profile: Profile) -> str:
        pilots, names = self.packages.pilots, self.chosen.candidate.mitigation
        lost = [pilot.global_batch for pilot in profile.pilots if pilot.diverged]
        seen = [pilot.global_batch for pilot in profile.pilots if not pilot.diverged]
        told = f"pilots trained with {named(pilots)}"
        if lost:
            told += f" and diverged at global batch {min(lost)}"
        elif seen:
            told += f", without diverging up to global batch {max(seen)}"
        untried = [name for name in names if name not in pilots]
        if not untried:
            return f"Its evidence is what was tried here: {told}."
        return f"Evidence: {told}; {self._elsewhere(untried)}."

    def _elsewhere(self, untried: Sequence[str]) -> str:
        """Return what the effect of methods that no pilot trained with is known from."""
        told = f"what {words.listed(untried)} does beside that is known from other trainings"
        learnt = [self.packages.learnt[name] for name in untried if name in self.packages.learnt]
        if not learnt:
            return f"{told}, widely"
        return f"{told}, refined by " + "; ".join(f"{each.evidence()}: {each.words()}" for each in learnt)

    def facts(self) -> list[dict[str, Any]]:
        """Return each row's methods with its forecast, and why it was not taken where a limit says so."""
        return [
            {
                "mitigation": list(row.candidate.mitigation),
                "chosen": row is self.chosen,
                "feasible": row.feasible,
                "infeasible_because": row.infeasible_because,
                **{
                    f"{name}{end}": getattr(row[name], part)
                    for name in ("accuracy", "time_to_train_s")
                    for end, part in (("", "value"), ("_low", "low"), ("_high", "high"))
                },
            }
            for row in self.rows
        ]


def named(names: Sequence[str]) -> str:
    """Return methods as people list them.

    >>> named(("linear-lr", "warmup")), named(())
    ('linear-lr and warmup', 'no method')
    """
    return words.listed(list(names)) if names else "no method"


def _place(candidate: Candidate) -> tuple[object, ...]:
    c = candidate
    return (c.nodes, c.processes_per_node, c.global_batch, c.precision, c.power_limit_w)


def _rank(row: Row) -> tuple[bool, float]:
    return (not row.feasible, row["time_to_train_s"].value or 0.0)
