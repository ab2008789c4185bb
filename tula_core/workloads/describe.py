"""What is known of a workload before any step is timed, with a fingerprint that changes when any of it does."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tula_core.job import Job
from tula_core.records import DataSample, WorkloadFacts
from tula_core.workloads.data_sample import sample_data
from tula_core.workloads.randomness import fixed_randomness
from tula_core.workloads.sizing import length_note
from tula_core.workloads.state import operations, state_digest, weights_digest
from tula_core.workloads.trial import all_targets, few_indices, read_batch
from tula_core.workloads.types import Workload
from tula_core.workloads.weighted import as_weighted, is_mean_of_samples

_OTHERS_CODE = ("site-packages", "dist-packages")


def describe(workload: Workload, job: Job) -> WorkloadFacts:
    """Return the facts of a workload, from a network of its own and some samples of each data set.

    The fingerprint is a SHA-256 over the source of the user's modules; the network's structure, settings, operations
    and some of its weights; what loss, metric, collate function and transforms hold; the lengths of the data sets, all
    labels where they are at hand, and the content of the samples that `sample_data` reads. What differs between two
    readings with one seed is left out.

    Raises
    ------
    InputError
        The data sets cannot be opened or read.
    """
    with fixed_randomness():
        network = workload.network()
    with fixed_randomness():
        other = workload.network()
    train, evaluation = workload.train_set(), workload.eval_set()
    with fixed_randomness():
        inputs, _ = read_batch(workload, train, few_indices(len(train))[:1], "train_data")  # type: ignore[arg-type]
    samples = {role: sample_data(workload, role) for role in ("train_data", "eval_data")}
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return WorkloadFacts(
        name=workload.name,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        gradient_bytes=sum(parameter.numel() * parameter.element_size() for parameter in trainable),
        train_samples=len(train),  # type: ignore[arg-type]
        eval_samples=len(evaluation),  # type: ignore[arg-type]
        sample_shape=tuple(inputs.shape[1:]),
        sample_bytes=inputs[0].numel() * inputs.element_size(),
        metric=workload.metric.name,
        higher_is_better=workload.metric.higher_is_better,
        metric_ceiling=workload.metric.ceiling,
        chance=_chance(workload),
        has_batch_norm=any(isinstance(module, _BatchNorm) for module in network.modules()),
        code_fingerprint=_fingerprint(workload, job, (network, other), samples),
        notes=(
            *workload.notes,
            *_length_notes(train, evaluation),
            *_missing_classes(workload),
            *_loss_notes(workload, network),
            *_unsteady_notes(samples),
        ),
        smallest_batch=_smallest_batch(workload, network),
        data_sample=samples,
    )


def _length_notes(train: Any, evaluation: Any) -> tuple[str, ...]:
    with fixed_randomness():
        notes = (length_note(train, "train_data"), length_note(evaluation, "eval_data"))
    return tuple(note for note in notes if note is not None)


def _unsteady_notes(samples: Mapping[str, DataSample]) -> Iterator[str]:
    """Say where items cannot be compared between processes, attempts and days."""
    for role, sample in samples.items():
        parts = [name for name in ("inputs", "targets") if None in getattr(sample, name)]
        if parts:
            yield (
                f"the {' and '.join(parts)} of {role} come out differently when read again with the same seeds, from a "
                "generator of their own: whether all processes hold the same data is not judged by them"
            )


def _missing_classes(workload: Workload) -> tuple[str, ...]:
    """Return a sentence where classes are evaluated that are never trained on, as in a stream cut in its order."""
    labels = [_known_labels(workload, role) for role in ("train_data", "eval_data")]
    if any(known is None or known.ndim != 1 or known.is_floating_point() for known in labels):
        return ()
    train, evaluation = (set(known.tolist()) for known in labels if known is not None)
    missing = sorted(evaluation - train)
    if not missing:
        return ()
    shown = ", ".join(str(label) for label in missing[:5]) + (" and others" if len(missing) > 5 else "")
    return (f"train_data holds none of the classes {shown} of eval_data, so no training can learn them.",)


def _known_labels(workload: Workload, role: str) -> Tensor | None:
    """Return all labels of a data set where they are at hand, None where they are not."""
    dataset: Any = workload.train_set() if role == "train_data" else workload.eval_set()
    indices = few_indices(len(dataset))
    with fixed_randomness():
        _, targets = read_batch(workload, dataset, indices, role)
    return all_targets(dataset, list(zip(indices, targets, strict=True)))


def _smallest_batch(workload: Workload, network: nn.Module) -> int:
    """Return 1, or 2 where one sample alone has no finite loss: its variance is unknown or its batch too small."""
    train: Any = workload.train_set()
    with fixed_randomness():
        inputs, targets = read_batch(workload, train, few_indices(len(train))[:1], "train_data")
        try:
            return 1 if bool(workload.loss(network(inputs), targets).detach().isfinite()) else 2
        except Exception:  # a batch of several was tried before and passed
            return 2


def _loss_notes(workload: Workload, network: nn.Module) -> Iterator[str]:
    """Say where the split of a batch changes the loss; sums and weights of a `WeightedLoss` add up over any split."""
    if as_weighted(workload.loss) is not None:
        return
    dataset: Any = workload.train_set()
    with fixed_randomness(), torch.no_grad():
        inputs, targets = read_batch(workload, dataset, few_indices(len(dataset)), "train_data")
        try:
            output = network(inputs)
        except Exception:  # trying the workload says what is wrong with it
            return
    if not is_mean_of_samples(workload.loss, output, targets):
        yield (
            "the loss of a batch is not the mean over its samples: the number of processes and micro-batches changes "
            "what is trained. Where it is a mean over labels or weights, give a WeightedLoss"
        )


def _chance(workload: Workload) -> float | None:
    """Return the accuracy of always naming the commonest classes of the evaluation set, None where unknown.

    Where only the number of classes is known they are taken as equally common.
    """
    best = {"accuracy": 1, "top5_accuracy": 5}.get(workload.metric.name)
    if best is None:
        return None
    known = _known_labels(workload, "eval_data")
    if known is None or known.ndim != 1 or known.is_floating_point() or not len(known):
        classes = getattr(workload.eval_set(), "classes", None)
        return min(1.0, best / len(classes)) if classes else None
    counts = torch.unique(known, return_counts=True)[1].sort(descending=True).values
    return float(counts[:best].sum()) / len(known)


def _fingerprint(
    workload: Workload, job: Job, networks: tuple[nn.Module, nn.Module], samples: Mapping[str, DataSample]
) -> str:
    network, other = networks
    digest = hashlib.sha256()

    def add(label: str, value: object) -> None:
        # Addresses in the text of functions and objects differ from process to process.
        text = re.sub(r" at 0x[0-9a-fA-F]+", "", str(value))
        digest.update(f"{label}={text}\n".encode())

    for name, source in sorted(_sources(workload, job, network)):
        add(name, hashlib.sha256(source).hexdigest())
    add("network", network)
    for name, tensor in network.state_dict().items():
        if isinstance(tensor, Tensor):
            add(name, (tuple(tensor.shape), tensor.dtype))
    add("weights", weights_digest(network, other))
    add("settings", [(name, _settings(layer)) for name, layer in network.named_modules()])
    add("operations", _operations(workload, network))
    for name, part in (("loss", workload.loss), ("metric", workload.metric), ("collate", workload.collate)):
        add(name, state_digest(part))
    for role, dataset in (("train_data", workload.train_set()), ("eval_data", workload.eval_set())):
        add(role, (type(dataset).__qualname__, len(dataset)))  # type: ignore[arg-type]
        for attribute in ("transform", "target_transform", "transforms", "augment"):
            add(attribute, state_digest(getattr(dataset, attribute, None)))
        add("sample", samples[role])
        known = _known_labels(workload, role)
        add("labels", None if known is None else hashlib.sha256(known.contiguous().numpy().tobytes()).hexdigest())
    return digest.hexdigest()


def _settings(layer: nn.Module) -> str:
    """Return a digest of a layer's own attributes: not all of them are in its text."""
    return state_digest({name: value for name, value in vars(layer).items() if not name.startswith("_")})


def _operations(workload: Workload, network: nn.Module) -> str:
    train: Any = workload.train_set()
    with fixed_randomness():
        inputs, _ = read_batch(workload, train, few_indices(len(train)), "train_data")
        return operations(network, inputs)


def _sources(workload: Workload, job: Job, network: nn.Module) -> Iterator[tuple[str, bytes]]:
    """Yield name and source of the modules that the workload is made of, and of those of its packages they refer to."""
    objects: list[Any] = [
        workload.network,
        workload.train_data,
        workload.eval_data,
        workload.loss,
        workload.metric.compute,
    ]
    objects += [workload.collate, workload.train_set(), workload.eval_set(), *network.modules()]
    named = [text.partition(":")[0] for text in (job.workload, job.network, job.dataset, job.loss, job.metric) if text]
    waiting = {_module_of(part) for part in objects} | set(named)
    packages = {name.partition(".")[0] for name in named}
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        if name in seen or module is None or not _is_users(module, packages):
            continue
        seen.add(name)
        waiting |= {v.__name__ if isinstance(v, ModuleType) else _module_of(v) for v in list(vars(module).values())}
        yield name, Path(str(module.__file__)).read_bytes()


def _module_of(part: Any) -> str:
    wrapped = getattr(part, "func", part)
    name = getattr(wrapped, "__module__", None)
    return name if isinstance(name, str) else ""


def _is_users(module: ModuleType, packages: set[str]) -> bool:
    """Whether a module is the user's: of a package the job names, or outside the interpreter and installed packages."""
    file = getattr(module, "__file__", None)
    top = module.__name__.partition(".")[0]
    if not file or not file.endswith(".py") or not Path(file).is_file() or top in sys.stdlib_module_names:
        return False
    return top in packages or (top != "tula_core" and not any(part in Path(file).parts for part in _OTHERS_CODE))
