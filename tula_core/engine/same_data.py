"""Whether all processes of a world opened the same data, in the same order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from tula_core.engine.context import WorkerContext
from tula_core.errors import InputError
from tula_core.records import DataSample
from tula_core.workloads import Workload
from tula_core.workloads.data_sample import sample_data

ROLES = ("train_data", "eval_data")
SEED_IT = (
    "The order or the split comes from something that has no fixed seed, such as numpy.random.default_rng(), the clock "
    "or the process's number. Give it a seed, or sort what it lists."
)
_MOST_ITEMS = 16  # every start of workers waits for them


def require_same_on_all(context: WorkerContext, workload: Workload) -> dict[str, DataSample]:
    """Return a sample of each data set, the same on all processes.

    Each process opens the data by itself and takes its share by number, so that data in another order would be used
    twice or never, and be evaluated in parts that others train on. To be called by all processes together.

    Raises
    ------
    InputError
        They differ, or an item cannot be read.
    """
    return {role: _same_on_all(context, workload, role) for role in ROLES}


def _same_on_all(context: WorkerContext, workload: Workload, role: str) -> DataSample:
    dataset = workload.train_set() if role == "train_data" else workload.eval_set()
    _compare(context, role, {"lengths": [str(len(dataset))]})  # type: ignore[arg-type]
    sample = sample_data(workload, role, most=_MOST_ITEMS, agreed=lambda seconds: context.all_reduce_max([seconds])[0])
    _compare(context, role, {"targets": sample.targets, "inputs": sample.inputs}, sample.read[-1])
    return sample


def _compare(
    context: WorkerContext, role: str, texts: Mapping[str, Sequence[str | None]], read: int | None = None
) -> None:
    """Refuse where a text that all processes know differs between them."""
    if context.processes == 1:
        return
    numbers = [0.0 if text is None else _number(text) for known in texts.values() for text in known]
    unknown = [float(text is None) for known in texts.values() for text in known]
    most = context.all_reduce_max([*numbers, *(-number for number in numbers), *unknown])
    count = len(numbers)
    differs = [most[place] != -most[count + place] and not most[2 * count + place] for place in range(count)]
    what = [name for name, known in texts.items() for _ in known]
    wrong = list(dict.fromkeys(name for name, differ in zip(what, differs, strict=True) if differ))
    if wrong:
        where = "" if read is None else f" of {read} items at the same places"
        raise InputError(
            f"{role}: the {context.processes} processes opened different data: the {' and the '.join(wrong)}{where} "
            f"differ between them, so some samples would be used twice and others never. {SEED_IT}"
        )


def _number(text: str) -> float:
    """Return a whole number below 2^53 for a text, which a float64 holds exactly."""
    return float(int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big"))
