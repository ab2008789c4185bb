"""`Profile`: everything that was measured for one job on one hardware, in seconds, bytes and samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from tula_core.records.codec import Reading
from tula_core.records.learning_rate import LearningRateTest
from tula_core.records.power import PowerUse


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSample:
    """Digests of items at fixed places of a data set, each of all items read until then."""

    items: int  # of the whole data set
    read: tuple[int, ...]  # items behind each digest, a few first
    inputs: tuple[str | None, ...]  # None where two readings with one seed differ
    targets: tuple[str | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadFacts:
    """What is known of a workload once it is loaded, before any step is timed."""

    name: str
    parameters: int
    gradient_bytes: int
    train_samples: int
    eval_samples: int
    sample_shape: tuple[int, ...]
    sample_bytes: int
    metric: str
    higher_is_better: bool
    metric_ceiling: float | None  # best value the metric can take, None where unknown
    chance: float | None  # value of the metric for a guess, None where unknown
    has_batch_norm: bool
    code_fingerprint: str  # of the workload's source, the network's structure and the data's shape
    notes: tuple[str, ...]  # what was assumed while loading it, each one sentence
    smallest_batch: int = 1  # fewest samples it can train on at once; 2 where one alone fails, as in batch norm
    data_sample: Mapping[str, DataSample] = field(default_factory=dict)  # by role: train_data, eval_data


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """The machine a profile holds for."""

    fingerprint: str
    device: Literal["cpu", "cuda"]
    device_name: str
    devices: int  # accelerators, or processes that fit the cores on a CPU machine
    cores: int
    memory_bytes: int  # host memory that may be used, cgroup limit included
    device_memory_bytes: int | None  # of one accelerator; None on a CPU machine
    threads_per_process: int
    versions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTiming:
    """Optimizer steps at one configuration; parts are means per step of the slowest process, and sum to the step."""

    nodes: int
    processes_per_node: int
    local_batch: int
    accumulation: int
    steps: int  # timed ones, warm-up excluded
    step_time_s: float  # robust mean: a lone stall is clipped, what recurs counts whole
    step_time_median_s: float
    step_time_error_s: float  # standard error of step_time_s
    block_scatter: float | None  # standard deviation of ln(mean) over blocks timed apart; None with one block
    first_step_s: float
    loader_s: float
    compute_s: float  # forward and backward of all micro-batches, communication that is hidden included
    communication_s: float  # not hidden behind the backward pass
    optimizer_s: float
    order: int  # position in the shuffled sweep


@dataclass(frozen=True, kw_only=True, slots=True)
class CommunicationTiming:
    """One all-reduce of ``message_bytes`` over all processes, median."""

    nodes: int
    processes_per_node: int
    message_bytes: int
    time_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUse:
    """Peak memory of the fullest process after two or more optimizer steps and an evaluation batch.

    What was held before the first step, and the peaks of its phases, are None where they were not read apart.
    """

    nodes: int
    processes_per_node: int
    local_batch: int
    peak_bytes: int | None  # of steady steps and an evaluation; None where it did not fit
    outcome: Literal["ok", "out_of_memory", "killed", "over_limit"]  # the last ran, in more than it may use
    base_bytes: int | None = None  # network and runtime, before the first step
    first_peak_bytes: int | None = None  # of the first step, which may try out algorithms
    train_peak_bytes: int | None = None  # of steady steps
    eval_peak_bytes: int | None = None
    eval_batch: int | None = None  # samples of an evaluation batch


@dataclass(frozen=True, kw_only=True, slots=True)
class ContentMemory:
    """What a forward pass keeps of single samples drawn at random, in bytes of saved tensors."""

    samples: int
    mean_bytes: float
    sd_bytes: float
    worst_bytes: float
    padded: bool = False  # samples differ in shape, so that a batch is as large as its fullest sample makes it


@dataclass(frozen=True, kw_only=True, slots=True)
class HostMemory:
    """Host memory beside a device's; None where it was not measured or there is none."""

    process_bytes: int | None  # resident in a process that trains on an accelerator
    worker_bytes: int | None  # private to one loader worker, without its batches


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionTiming:
    """Steps of one process in another precision, timed in turns with the recipe's, so that drift meets both alike.

    Times are seconds of one micro-batch's forward and backward pass, and of one optimizer step.
    """

    precision: Literal["fp32", "bf16", "fp16"]
    local_batch: int
    outcome: Literal["ok", "failed"]
    compute_s: float | None  # None where it failed
    reference_compute_s: float | None  # the recipe's precision
    ratio_error: float | None  # standard error of ln(compute_s / reference_compute_s)
    optimizer_s: float | None
    reference_optimizer_s: float | None
    peak_bytes: int | None
    reference_peak_bytes: int | None
    loss_difference: float | None  # relative, of one batch's loss at the initial weights
    failure: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StartUp:
    """From the launch of the processes to the first step that could begin."""

    nodes: int
    processes_per_node: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationTiming:
    """An exact evaluation over ``samples`` by all processes together."""

    nodes: int
    processes_per_node: int
    samples: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientNoise:
    """Simple noise scale tr(Sigma)/||G||^2 in samples, a ratio of averages (McCandlish 2018, arXiv 1812.06162)."""

    small_batch: int
    large_batch: int
    estimates: int
    squared_gradient: float  # unbiased estimate of ||G||^2, may be negative when noisy
    trace_covariance: float  # unbiased estimate of tr(Sigma)
    noise_scale_samples: float | None  # None where the signal is not above two of its standard errors


@dataclass(frozen=True, kw_only=True, slots=True)
class PilotPoint:
    """An evaluation during a pilot."""

    samples: int  # training samples seen
    schedule_fraction: float  # share of the pilot's own length that is done, in [0, 1]
    annealing: float  # 1 - learning rate / peak by the pilot's schedule, in [0, 1]
    train_loss: Reading
    metric: Reading
    eval_samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Pilot:
    """A short training run: the rate stays at its peak, then comes down to nothing, if the recipe's ever does."""

    global_batch: int
    learning_rate: float
    planned_samples: int
    seconds: float
    points: tuple[PilotPoint, ...]
    diverged: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeUse:
    """What the measuring itself took."""

    budget_s: float
    used_s: float
    stopped_because: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """All measurements of one job on one hardware."""

    SCHEMA_VERSION: ClassVar[int] = 1

    schema_version: int
    job: Mapping[str, Any]  # the resolved job that was measured, as `Job.to_dict` gives it
    fingerprint: str  # of code, data shape, hardware, versions, recipe and probe: the cache key
    facts: WorkloadFacts
    hardware: Hardware
    steps: tuple[StepTiming, ...]
    communication: tuple[CommunicationTiming, ...]
    memory: tuple[MemoryUse, ...]
    start_up: tuple[StartUp, ...]
    evaluation: tuple[EvaluationTiming, ...]
    checkpoint_s: float | None
    noise: GradientNoise | None
    pilots: tuple[Pilot, ...]
    probe: ProbeUse
    warnings: tuple[str, ...]
    precisions: tuple[PrecisionTiming, ...] = ()
    content: ContentMemory | None = None
    host: HostMemory | None = None
    power: tuple[PowerUse, ...] = ()  # empty where no meter could be read
    learning_rate: LearningRateTest | None = None  # where the recipe's rate was to be measured
