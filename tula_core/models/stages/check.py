"""Whether the stages of a candidate make sense together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tula_core.errors import InputError
from tula_core.records.candidate import Candidate, Stage


def is_staged(candidate: Candidate) -> bool:
    """Return whether a candidate goes through more than one layout; a single stage is its own layout throughout."""
    return candidate.stages is not None and len(candidate.stages) > 1


def layouts_of(candidate: Candidate) -> Sequence[Candidate | Stage]:
    """Return every layout that a candidate trains in: its stages', or its own."""
    return candidate.stages or (candidate,)


def check_stages(candidate: Candidate) -> None:
    """Refuse stages that do not lead from the first sample to the candidate's own layout.

    Raises
    ------
    InputError
        There is none, a number is not whole or not positive, samples do not rise, the last is another layout, or an
        earlier batch is larger.
    """
    stages = candidate.stages or ()
    for number, stage in enumerate(stages):
        for name in ("nodes", "processes_per_node", "local_batch", "accumulation"):
            value = getattr(stage, name)
            if type(value) is not int or value < 1:
                raise InputError(
                    f"candidate.stages.{number}.{name}: a whole number of at least 1 is needed, got {value!r}. Mend it."
                )
    starts = [stage.from_samples for stage in stages]
    if not starts or starts[0] != 0 or starts != sorted(set(starts)):
        raise InputError(
            f"candidate.stages: from_samples has to begin at 0 and to rise from stage to stage, got {starts}. Mend it."
        )
    last = Stage(
        from_samples=0,
        nodes=candidate.nodes,
        processes_per_node=candidate.processes_per_node,
        local_batch=candidate.local_batch,
        accumulation=candidate.accumulation,
    )
    if replace(stages[-1], from_samples=0) != last:
        raise InputError(
            f"candidate.stages: the last stage has to be the candidate's own layout, got {stages[-1]}. Mend it."
        )
    batches = [s.nodes * s.processes_per_node * s.local_batch * s.accumulation for s in stages]
    if max(batches) > candidate.global_batch:
        raise InputError(f"candidate.stages: no batch may be above the last one's, got batches of {batches}. Mend it.")
