"""What is odd about measured step times, in sentences: a clock in other units, a start that outweighs the steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tula_core.job import Job
from tula_core.records.profile import Hardware, Profile, StepTiming

PEAK_FLOPS = {"cpu": 1e13, "cuda": 1e16}
"""More operations per second than any core (cpu) or accelerator (cuda) does today, at any precision; empirical."""

_BEYOND_DATA_SHEET = 1.5  # clocks above the nominal one, and figures that were rounded
_LONG_START_S = 5.0


def oddities(profile: Profile, job: Job) -> Iterator[str]:
    """Yield sentences, without a final full stop, about step times that a user should look at."""
    impossible = [row for row in profile.steps if not _possible(row, profile, job)]
    if impossible:
        fastest = max(impossible, key=lambda row: least_flops(profile.facts.parameters, row))
        done, peak = least_flops(profile.facts.parameters, fastest), peak_flops(profile.hardware, fastest, job)
        yield (
            f"beware: a step of {fastest.step_time_s:.3g} s at local batch {fastest.local_batch} would be at least "
            f"{done:.2g} operations per second, and {peak:.2g} is more than such a machine does: its time is not in "
            "seconds, the device's work was not waited for, or cluster.device_tflops is too low. "
            f"{len(impossible)} of {len(profile.steps)} timings are not used as measured"
        )
    slowest = max(profile.steps, key=lambda row: row.first_step_s - row.step_time_s)
    extra_s = slowest.first_step_s - slowest.step_time_s
    if extra_s > _LONG_START_S:
        yield (
            f"the first step takes up to {extra_s:.3g} s more than a steady one (compiling, tuning, loading), once "
            f"per run: as much as {extra_s / slowest.step_time_s:,.0f} steps, so a shorter run is mostly start-up"
        )


def credible(profile: Profile, job: Job) -> tuple[Profile, bool]:
    """Return the profile without step times that no such machine can have, and whether any is left.

    Where none is, each is taken to last as long as it must at the least, with an error as large as itself.
    """
    rows = [row for row in profile.steps if _possible(row, profile, job)]
    if rows:
        return (profile if len(rows) == len(profile.steps) else replace(profile, steps=tuple(rows))), True
    return replace(profile, steps=tuple(_at_the_peak(row, profile, job) for row in profile.steps)), False


def _possible(row: StepTiming, profile: Profile, job: Job) -> bool:
    return least_flops(profile.facts.parameters, row) <= peak_flops(profile.hardware, row, job)


def _at_the_peak(row: StepTiming, profile: Profile, job: Job) -> StepTiming:
    slower = least_flops(profile.facts.parameters, row) / peak_flops(profile.hardware, row, job)
    parts = ("step_time_s", "step_time_median_s", "loader_s", "compute_s", "communication_s", "optimizer_s")
    times = {name: slower * getattr(row, name) for name in parts}
    first_s = max(row.first_step_s, times["step_time_s"])
    return replace(row, **times, step_time_error_s=times["step_time_s"], first_step_s=first_s)


def least_flops(parameters: int, row: StepTiming) -> float:
    """Return the fewest operations per second that a timed step can have done: 6 x parameters x global batch / time.

    Two operations per parameter and sample forward, twice as many backward (Kaplan et al. 2020, arXiv 2001.08361, table
    1); convolutions use a parameter many times, so this is a lower bound where every parameter is used.
    """
    batch = row.nodes * row.processes_per_node * row.local_batch * row.accumulation
    return 6.0 * parameters * batch / row.step_time_s


def peak_flops(hardware: Hardware, row: StepTiming, job: Job) -> float:
    """Return more operations per second than the devices of a timed step can do, by the job's figure where given."""
    given = job.cluster.device_tflops
    if given is not None:
        rate = max(given.values()) if isinstance(given, dict) else given
        return _BEYOND_DATA_SHEET * 1e12 * rate * row.processes_per_node * row.nodes
    each = hardware.cores if hardware.device == "cpu" else row.processes_per_node
    return PEAK_FLOPS[hardware.device] * each * row.nodes
