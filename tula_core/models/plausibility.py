"""What is odd about measured step times, in sentences: a clock in other units, a start that outweighs the steps."""

from __future__ import annotations

from collections.abc import Iterator

from tula_core.records.profile import Hardware, Profile, StepTiming

PEAK_FLOPS = {"cpu": 1e13, "cuda": 1e16}
"""More operations per second than any core (cpu) or accelerator (cuda) does today, at any precision; empirical."""

_LONG_START_S = 5.0


def oddities(profile: Profile) -> Iterator[str]:
    """Yield sentences, without a final full stop, about step times that a user should look at."""
    fastest = max(profile.steps, key=lambda row: least_flops(profile.facts.parameters, row))
    done, peak = least_flops(profile.facts.parameters, fastest), peak_flops(profile.hardware, fastest)
    if done > peak:
        yield (
            f"beware: a step of {fastest.step_time_s:.3g} s at local batch {fastest.local_batch} would be at least "
            f"{done:.2g} operations per second, and {peak:.2g} is more than such a machine does: its time is not in "
            "seconds, or the device's work was not waited for"
        )
    slowest = max(profile.steps, key=lambda row: row.first_step_s - row.step_time_s)
    extra_s = slowest.first_step_s - slowest.step_time_s
    if extra_s > _LONG_START_S:
        yield (
            f"the first step takes up to {extra_s:.3g} s more than a steady one (compiling, tuning, loading), once "
            f"per run: as much as {extra_s / slowest.step_time_s:,.0f} steps, so a shorter run is mostly start-up"
        )


def least_flops(parameters: int, row: StepTiming) -> float:
    """Return the fewest operations per second that a timed step can have done: 6 x parameters x global batch / time.

    Two operations per parameter and sample forward, twice as many backward (Kaplan et al. 2020, arXiv 2001.08361, table
    1); convolutions use a parameter many times, so this is a lower bound where every parameter is used.
    """
    batch = row.nodes * row.processes_per_node * row.local_batch * row.accumulation
    return 6.0 * parameters * batch / row.step_time_s


def peak_flops(hardware: Hardware, row: StepTiming) -> float:
    """Return more operations per second than the devices of a timed step can do."""
    each = hardware.cores if hardware.device == "cpu" else row.processes_per_node
    return PEAK_FLOPS[hardware.device] * each * row.nodes
