"""How sure a choice is, in sentences: the chance of each limit, and whether its step time was measured."""

from __future__ import annotations

from tula_core.job import Constraints, Job
from tula_core.records import Hardware, Row
from tula_core.records.what_if import FACTS_ALONE
from tula_core.search import words
from tula_core.search.odds import chances


def kept_limits(row: Row, constraints: Constraints) -> str:
    """Return a sentence with the chance of keeping each limit that is set, empty where none is.

    Cost rises with time on given nodes, so that both are kept with the smaller of their two chances.
    """
    found = chances(row, constraints)
    parts = [f"{_name(limit, row, constraints)} with a chance of {words.chance(found[limit])}" for limit in found]
    if not parts:
        return ""
    both = ""
    if "deadline" in found and "budget_usd" in found:
        both = f"; deadline and budget together with {words.chance(min(found['deadline'], found['budget_usd']))}"
    return f"It keeps {words.listed(parts)}{both}."


def _name(limit: str, row: Row, constraints: Constraints) -> str:
    value = getattr(constraints, limit)
    if limit == "deadline":
        return f"the deadline of {words.given_duration(value)}"
    if limit == "budget_usd":
        return f"the budget of {words.given_usd(value, row['cost_usd'].value)}"
    return f"the least accuracy of {value:g}"


def extrapolation(row: Row, job: Job, hardware: Hardware) -> str:
    """Return a sentence that says how to have the step time measured, empty where it was."""
    if row.measured:
        return ""
    if hardware.fingerprint.startswith(FACTS_ALONE):
        return "Nothing was measured there: to know more, profile on such a machine and plan with --profile FILE."
    processes, has = row.candidate.processes, hardware.devices
    start = "Beware: its step time was not measured but extrapolated."
    if processes > has:
        room = f"{processes} processes do not fit the {has} {'core' if hardware.device == 'cpu' else 'accelerator'}"
        return f"{start} {room}{'s' * (has != 1)} here: profile where they do, and plan with --profile FILE."
    if row.candidate.accumulation > 1:
        return f"{start} A profile times no accumulated steps: train at it once, and tula retrain learns from it."
    return f"{start} Raise probe.seconds, now {job.probe.seconds:g}, and plan again with --reprofile to measure more."
