"""The sentences that say what a forecast takes for granted."""

from __future__ import annotations

from collections.abc import Iterator

from tula_core.job import Job, Target
from tula_core.models.checkpoints import CHECKPOINT_EVERY_S
from tula_core.models.learning.fit import LOST_PER_OCTAVE, LearningModel
from tula_core.models.memory import MemoryModel
from tula_core.models.money_words import of_money
from tula_core.models.plausibility import oddities
from tula_core.models.step.communication import Links
from tula_core.models.totals import ASSUMED_START_UP_S
from tula_core.records.profile import Profile

_MISSED = 0.05  # chance that a kind of sample as rare as is said was not among those tried


def assumptions(
    profile: Profile, job: Job, links: Links, memory: MemoryModel | None, learning: LearningModel | None
) -> tuple[str, ...]:
    """Return every assumption behind the forecasts of one job, as plain sentences without a final full stop."""
    return (
        *oddities(profile, job),
        *_of_time(profile, job, links),
        *of_money(profile, job),
        *_of_memory(memory, job),
        *_of_content(profile),
        *_of_learning(profile, job, learning),
    )


def _of_time(profile: Profile, job: Job, links: Links) -> Iterator[str]:
    threads = profile.hardware.threads_per_process
    yield f"training uses {threads} thread{'s' * (threads != 1)} per process, as measured"
    if len(profile.steps) == 1:
        yield "step time was measured at one configuration: elsewhere it rests on what is usual, with wide intervals"
    if job.cluster.processes_per_node > 1 and links.inside.assumption:
        yield links.inside.assumption
    if job.cluster.nodes > 1 and links.between.assumption:
        yield links.between.assumption
    if job.cluster.nodes > 1 and not any(row.nodes > 1 for row in profile.steps):
        yield "no step on more than one node was timed: nodes are taken to be alike and not to slow each other"
    if not profile.start_up:
        yield f"start-up was not measured: {ASSUMED_START_UP_S:g} s assumed"
    if profile.facts.eval_samples and not profile.evaluation:
        yield "evaluation was not measured: taken as forward passes, a third of a training step per sample"
    if profile.checkpoint_s is None:
        yield "a checkpoint was not measured: it is taken to cost no time"
    if profile.start_up:
        longest = max(row.seconds for row in profile.start_up)
        yield f"a run's start, {longest:.2g} s or less as measured, is part of its time"
    yield f"an evaluation at the end of each epoch and a checkpoint every {CHECKPOINT_EVERY_S:.0f} s are counted"


def _of_memory(memory: MemoryModel | None, job: Job) -> Iterator[str]:
    if memory is None:
        yield "no batch size was measured to fit in memory: memory is unknown"
    elif not memory.extrapolates():
        yield (
            "memory readings do not grow with the local batch: nothing is extrapolated beyond the largest measured, "
            f"{memory.largest_measured}, and little can be said of it"
        )
    if job.cluster.nodes > 1:
        yield (
            "each node is taken to have this machine's memory for its own processes; nodes started side by side on one "
            "machine share it"
        )
    if memory is not None and memory.extrapolates() and len(set(memory.readings.batches.tolist())) == 1:
        yield (
            f"memory was read at one local batch, {memory.largest_measured}: elsewhere it lies between what "
            "parameters, gradients and optimizer state need and what would grow in proportion"
        )
    if memory is not None and memory.content.depends:
        yield (
            f"memory depends on what is in the samples: its upper end is that of the worst batch expected from those "
            f"tried, of which the fullest needs {memory.content.worst:.3g} times the mean"
        )


def _of_content(profile: Profile) -> Iterator[str]:
    if profile.content is not None and 0 < profile.content.samples < profile.facts.train_samples:
        tried, of = profile.content.samples, profile.facts.train_samples
        rare = 100 * (1 - _MISSED ** (1 / tried))
        yield (
            f"{tried} of {of} training samples were looked at for what they need of memory: a kind that is rarer than "
            f"{rare:.2g} % may have been missed"
        )


def _of_learning(profile: Profile, job: Job, learning: LearningModel | None) -> Iterator[str]:
    for pilot in profile.pilots:
        if pilot.diverged:
            yield (
                f"the pilot at global batch {pilot.global_batch} diverged at learning rate {pilot.learning_rate:g}: "
                "that rate is suspect there, and its accuracy is forecast from the other pilots"
            )
    if profile.learning_rate is not None:
        yield profile.learning_rate.summary
    cap = job.recipe.epochs
    if isinstance(job.target, Target) and job.target.metric != profile.facts.metric:
        yield (
            f"the target's metric {job.target.metric!r} is not the one measured, {profile.facts.metric!r}: "
            f"epochs are the cap of {cap}"
        )
    if learning is None:
        why = "no pilot is above chance" if profile.pilots else "no pilot was run"
        yield f"{why}: accuracy is unknown, epochs are the cap of {cap}"
        return
    saw = learning.seen_samples / profile.facts.train_samples
    if saw < 0.99 * cap:
        epochs = f"{cap} epoch" + "s" * (cap != 1)
        yield f"accuracy is extrapolated to {epochs} from pilots that saw at most {saw:.2g} epochs"
    if learning.unstable_batch is not None:
        yield (
            f"the pilot at global batch {learning.unstable_batch:.0f} lost again what it had learnt: its rate is too "
            "high there, and a rising share of runs at larger batches is counted as lost"
        )
    else:
        yield (
            f"beyond global batch {learning.seen_batches[1]:.0f}, the largest of the pilots, one run in "
            f"{1 / LOST_PER_OCTAVE:.0f} is counted as lost for each doubling"
        )
    if learning.seen_batches[0] == learning.seen_batches[1]:
        yield (
            f"pilots ran at one global batch: the critical batch of {learning.critical_batch:.0f} samples rests on "
            + ("what is usual" if learning.unstable_batch or not _noise_is_known(profile) else "gradient noise")
        )
    if profile.facts.metric_ceiling is None:
        yield f"the best value of {profile.facts.metric} is not known: taken as {learning.scale.ceiling:g}"


def _noise_is_known(profile: Profile) -> bool:
    return profile.noise is not None and profile.noise.noise_scale_samples is not None
