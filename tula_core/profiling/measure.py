"""Measuring a job on this machine within the probe's time: one worker after the other, one for each world."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tula_core.engine.failures import Failure
from tula_core.engine.launch import LaunchResult, WorkerTask, launch
from tula_core.errors import InputError, TulaError
from tula_core.job import Job
from tula_core.profiling import active_worlds
from tula_core.profiling import worlds as plans
from tula_core.profiling.active import SETTLED
from tula_core.profiling.collector import Collector
from tula_core.profiling.rate_rules import refused_test, require_rate
from tula_core.profiling.worlds import FEWEST_SECONDS, LATER_START, ONE, World
from tula_core.progress import Event, Listener, silent
from tula_core.records import Hardware, ProbeUse, Profile, StartUp, WorkloadFacts

_START_S = 8.0  # a worker's start, before any was seen
_STRETCH, _OVERRUN = 1.1, 1.2  # of the probe's time: what may be planned for, and what ends the workers
_PATIENCE_S = 600.0  # for the first step of all
_AFTER_FIRST_S = 2 * FEWEST_SECONDS  # at least, for what else there is to measure
_GRACE_S = 1.0  # a measuring worker has nothing to save


@dataclass(slots=True)
class Probe:
    """One measuring under way."""

    job: Job
    facts: WorkloadFacts
    hardware: Hardware
    folder: Path
    collector: Collector
    pilot_world: World
    launches: int = 0
    unsettled: list[str] = field(default_factory=list)
    cut_short: str = ""  # why time that was left was of no use
    left_out: str = ""  # worlds that were not worth measuring

    @property
    def used_s(self) -> float:
        """Seconds since the measuring began."""
        return self.collector.used_s

    @property
    def trained_job(self) -> Job:
        """The job at the learning rate that was found, where one was to be."""
        test = self.collector.learning_rate
        return self.job if test is None else self.job.at_learning_rate(test.used)

    @property
    def known(self) -> active_worlds.Known:
        """What was found so far."""
        return active_worlds.known_so_far(self.job, self.facts, self.hardware, self.collector)

    def left_for(self, world: World) -> float:
        """Return the seconds of the probe that are left for a world; may be negative.

        The largest world of one node tells most and has the second pilot, so a little over the time is taken for it.
        """
        allowed = _STRETCH if world == self.pilot_world else 1.0
        return allowed * self.job.probe.seconds - self.used_s


def measure(
    job: Job, facts: WorkloadFacts, hardware: Hardware, listener: Listener = silent, *, folder: Path
) -> Profile:
    """Return the profile of a resolved job, measured in worker processes.

    ``job.probe.seconds`` bounds all of it, starts included; the one-process world is measured in any case.

    Raises
    ------
    InputError, RunError
        The user's code failed (the message names the local batch tried), not even the smallest local batch fits, or
        there is none that the network can train on.
    """
    from tula_core.profiling.cache import fingerprint

    collector = Collector(listener, job.probe.seconds)
    cluster = job.cluster
    for message in plans.limits_of_one_machine(cluster.nodes, cluster.processes_per_node, hardware):
        collector.warn(message)
    worlds = plans.worlds_to_measure(cluster.nodes, cluster.processes_per_node, hardware.devices)
    worlds = [world for world in worlds if plans.local_batches(job, facts, world)]
    if not worlds:
        raise InputError(
            f"network: it cannot train on fewer than {facts.smallest_batch} samples at once, and the data set of "
            f"{facts.train_samples} or constraints.max_local_batch leaves less. Raise the limit or give more samples."
        )
    pilot_world = max((world for world in worlds if world.nodes == 1), key=lambda world: world.processes)
    probe = Probe(job=job, facts=facts, hardware=hardware, folder=folder, collector=collector, pilot_world=pilot_world)
    _measure_worlds(probe, worlds)
    listener(Event(stage="profile", message=f"measured in {probe.used_s:.0f} s", fraction=1.0, level="info"))
    return Profile(
        schema_version=Profile.SCHEMA_VERSION,
        job=probe.trained_job.to_dict(),
        fingerprint=fingerprint(job, facts, hardware),
        facts=facts,
        hardware=hardware,
        steps=tuple(collector.steps.values()),
        communication=tuple(collector.communication.values()),
        memory=tuple(collector.memory.values()),
        start_up=tuple(collector.start_up.values()),
        evaluation=tuple(collector.evaluation.values()),
        checkpoint_s=collector.checkpoint_s,
        noise=collector.noise,
        pilots=tuple(pilot for pilot in collector.pilots.values() if pilot.points),
        probe=ProbeUse(
            budget_s=job.probe.seconds,
            used_s=probe.used_s,
            stopped_because=_why_stopped(probe),
        ),
        warnings=tuple(collector.warnings),
        precisions=tuple(collector.precisions.values()),
        content=collector.content,
        host=collector.host,
        power=tuple(collector.power.values()),
        learning_rate=collector.learning_rate,
    )


def _measure_worlds(probe: Probe, worlds: Sequence[World]) -> None:
    """Measure one process and the world of the second pilot, then the others by what they are worth to the choice."""
    waiting, shares = list(worlds), plans.shares(worlds, probe.pilot_world)
    for number in range(len(worlds)):
        world = waiting[0] if waiting[0] in (ONE, probe.pilot_world) else _most_worth(probe, worlds, waiting)
        if world is None:
            return
        waiting.remove(world)
        if world != ONE and probe.left_for(world) < _start_s(probe) + FEWEST_SECONDS:
            probe.unsettled.append(f"{world}: no time left")
            probe.collector.warn(
                f"{world} not measured: the probe's time was used up; raise probe.seconds to measure it"
            )
            continue
        # Time that earlier worlds did not need goes to the later ones.
        share = shares[number] / sum(shares[number:])
        _measure_world(probe, world, share, len(waiting))
        if world == ONE and probe.job.recipe.range_test:
            _require_test(probe)


def _require_test(probe: Probe) -> None:
    """Note that the rate was to be measured where no worker came to it."""
    if probe.collector.learning_rate is None:
        why = "the process that measures it ended before it came to it. See the warnings above"
        require_rate(probe.job.recipe.model_fields_set, why)
        probe.collector.tested(refused_test(probe.job.recipe, why))


def _most_worth(probe: Probe, worlds: Sequence[World], waiting: Sequence[World]) -> World | None:
    """Return the world to measure next; None where all that wait are worth too little, which is noted."""
    known = probe.known
    sizes = active_worlds.sizes_of_choice(known, worlds, probe.collector.smallest_failed())
    able = [world for world in waiting if sizes[world]]
    if not able:
        return waiting[0]
    best, worth = active_worlds.worth_of_worlds(known, sizes, able, _start_s(probe))
    if worth >= SETTLED:
        return best
    names = " and ".join(str(world) for world in able)
    gain, least = f"{100 * worth:.1f} % by the model's own estimate", f"less than {100 * SETTLED:g} %"
    probe.left_out = f"measuring {names} too would save {gain}, {least}"
    return None


def _why_stopped(probe: Probe) -> str:
    if probe.cut_short and probe.used_s < probe.job.probe.seconds:
        return f"{probe.cut_short}; the budget is {probe.job.probe.seconds:g} s"
    if probe.unsettled:
        return f"the budget of {probe.job.probe.seconds:g} s is used"
    if probe.left_out:
        return f"the choice is settled: {probe.left_out}"
    return "all configurations are measured"


def _pilots(probe: Probe, world: World) -> list[int]:
    reference = plans.reference_batch(probe.job, probe.facts)
    large = plans.large_pilot_batch(reference, probe.facts.train_samples)
    chosen = ([reference] if world == ONE else []) + ([large] if world == probe.pilot_world else [])
    return list(dict.fromkeys(chosen))


def _start_s(probe: Probe) -> float:
    """Return what a start of workers takes: a little more than the longest seen."""
    return LATER_START * max((start.seconds for start in probe.collector.start_up.values()), default=_START_S)


def _measure_world(probe: Probe, world: World, share: float, later_starts: int) -> None:
    """Measure one world; after a size that does not fit, again with the smaller ones, as long as time allows."""
    while True:
        failed = probe.collector.smallest_failed()
        sizes = plans.local_batches(probe.job, probe.facts, world, below=failed)
        measured = any(key[0] == world for key in probe.collector.steps)
        no_time = probe.left_for(world) < _start_s(probe) + FEWEST_SECONDS
        if not sizes:
            return
        if failed and no_time and (measured or world != ONE):
            _note_cut(probe, world, failed)
            return
        result = _launch(probe, world, sizes, {"share": share, "later_starts": later_starts})
        if result.failure is None:
            assert result.result is not None
            _note_limits(probe, world, **result.result)
            return
        if not _survived(probe, world, result, sizes):
            return


def _note_cut(probe: Probe, world: World, failed: int) -> None:
    """Say what is missing where no time was left to start again after a size that did not fit."""
    start_s, left_s = _start_s(probe), max(0.0, probe.job.probe.seconds - probe.used_s)
    own = [timing.steps for (of, _), timing in probe.collector.steps.items() if of == world]
    probe.unsettled.append(f"{world}: no time to start again")
    probe.cut_short = f"{left_s:.0f} s of the budget were left, too short to start again"
    missing = f"its sizes were timed for {min(own)} to {max(own)} steps" if own else "none of its sizes was timed"
    piloted = any(of == world for of, _ in probe.collector.pilots)
    probe.collector.warn(
        f"{world} was not measured to the end: a local batch of {failed} did not fit, and of the probe's time "
        f"{left_s:.0f} s were left where starting again takes about {start_s:.0f} s. So {missing}"
        f"{'' if piloted or not _pilots(probe, world) else ', and no pilot was run'}; raise probe.seconds"
    )


def _note_limits(probe: Probe, world: World, *, settled: bool, limited_by: str) -> None:
    largest = probe.collector.largest_fit(world)
    if limited_by == "memory" and largest is not None:
        probe.collector.warn(
            f"a local batch above {largest} on {world} was not tried: its forecast exceeds the memory that may be used"
        )
    if not settled or limited_by == "time":
        probe.unsettled.append(f"{world}: {limited_by or 'few repetitions'}")


def _launch(probe: Probe, world: World, sizes: Sequence[int], timing: Mapping[str, float]) -> LaunchResult:
    collector = probe.collector
    collector.begin(world)
    reference = plans.reference_batch(probe.job, probe.facts)
    smaller = plans.smaller_sizes(probe.facts, sizes[0])
    probe.launches += 1
    task = WorkerTask(
        entry="tula_core.profiling.sweep:run_in_worker",
        payload={
            "job": probe.trained_job.to_dict(),
            "sizes": list(sizes),
            "smaller": smaller,
            "middle": max(1, reference // world.processes),
            "gradient_bytes": probe.facts.gradient_bytes,
            "smallest_batch": probe.facts.smallest_batch,
            "pilots": _pilots(probe, world),
            "noise": world == probe.pilot_world,
            "precisions": list(probe.job.other_precisions) if world == ONE else [],
            "find_rate": world == ONE and probe.job.recipe.range_test and collector.learning_rate is None,
            **active_worlds.worker_hints(probe.known, world, [*smaller, *sizes]),
            "seconds": probe.left_for(world),
            "launched_at_s": time.time(),
            **timing,
        },
        folder=probe.folder / f"{probe.launches}-{world.nodes}x{world.processes_per_node}",
        nodes=world.nodes,
        processes_per_node=world.processes_per_node,
        threads=probe.hardware.threads_per_process,
        # A worker keeps to its time by itself; this ends one that hangs, or whose single step is longer than that.
        timeout_s=_time_limit(probe),
        grace_s=_GRACE_S,
    )
    result = launch(task, collector.hear)
    if result.start_up_s is not None:
        collector.start_up[world] = StartUp(
            nodes=world.nodes, processes_per_node=world.processes_per_node, seconds=result.start_up_s
        )
    return result


def _time_limit(probe: Probe) -> Callable[[], float]:
    """Return how long workers launched now may take: the probe's time and a little, but what was waited for is kept."""
    launched_s = probe.used_s

    def limit_s() -> float:
        heard_s = probe.collector.first_heard_s
        if heard_s is None:
            return _PATIENCE_S
        return max(_OVERRUN * probe.job.probe.seconds, heard_s + _AFTER_FIRST_S, launched_s + 1.0) - launched_s

    return limit_s


def _survived(probe: Probe, world: World, result: LaunchResult, sizes: Sequence[int]) -> bool:
    """Take a failure as a data point and return whether smaller sizes are to be tried; raise it where it is none."""
    collector, tried, failure = probe.collector, probe.collector.trying, result.failure
    assert failure is not None
    if failure.kind == "timeout" and collector.steps:
        probe.unsettled.append(f"{world}: {failure.message}")
        collector.warn(f"{world} was stopped: {failure.message}")
        return False
    if failure.kind in ("out_of_memory", "killed") and collector.piloting is not None:
        collector.pilot_failed(failure.kind, collector.piloting)
        _note_limits(probe, world, **collector.swept)
        return False
    # Before it was ready a worker had tried no batch: a smaller one would die of the same.
    if failure.kind in ("out_of_memory", "killed") and result.start_up_s is not None:
        size = tried or collector.largest_fit(world) or sizes[0]
        collector.record_failed(failure.kind, size)
        collector.note_failure(f"local batch {size} on {world}: {failure.message}", failure.traceback)
        if plans.local_batches(probe.job, probe.facts, world, below=size):
            return True
        if collector.steps:
            return False
    raise _with_all_causes(collector, world, failure)


def _with_all_causes(collector: Collector, world: World, failure: Failure) -> TulaError:
    """Return the error that ends measuring, with every size that was tried before and the first traceback of all."""
    tried = collector.trying
    where = f" (while trying a local batch of {tried} on {world})" if tried is not None else f" (on {world})"
    error = dataclasses.replace(failure, message=f"{failure.message}{where}").to_error()
    for before in collector.failed:
        error.add_note(f"Before that: {before}")
    error.add_note(collector.first_traceback or failure.traceback)
    return error
