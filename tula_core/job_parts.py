"""The parts of a job, as a person writes them: recipe, target, machines, limits, probe; and the kinds of values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

Optimizer = Literal["sgd", "adam", "adamw"]
Schedule = Literal["constant", "linear", "cosine", "step", "trapezoid"]
Precision = Literal["fp32", "bf16", "fp16"]

_DURATION = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


def _quantity(value: Any, units: Mapping[str, float], default: str) -> Any:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*([-+]?[0-9.]+(?:e[-+]?\d+)?)\s*([A-Za-z]*)\s*", value)
    unit = match.group(2) or default if match else ""
    try:
        return float(match.group(1) if match else "") * units[unit]
    except (ValueError, KeyError):
        raise ValueError(f"write a number with one of the units {', '.join(units)}") from None


def parse_duration_s(value: Any) -> Any:
    """Return seconds for a number or for text such as ``90s``, ``15m``, ``2h``, ``1d``; anything else is passed on."""
    return _quantity(value, _DURATION, "s")


def parse_size_bytes(value: Any) -> Any:
    """Return bytes for a number or for text such as ``16GiB``; anything else is passed on."""
    number = _quantity(value, _SIZE, "B")
    return int(number) if isinstance(number, float) and number == number and abs(number) < 1e30 else number


Duration = Annotated[float, BeforeValidator(parse_duration_s), Field(gt=0, allow_inf_nan=False)]
Size = Annotated[int, BeforeValidator(parse_size_bytes), Field(gt=0)]
Count = Annotated[int, Field(gt=0, le=10**12, strict=True)]  # beyond it arithmetic in floats is no longer exact
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


def _holds_true(value: Any, *, within_keys: bool) -> bool:
    """Return whether true or false is in a value or its lists, and in its mappings where ``within_keys``."""
    waiting, seen = [value], set()  # a value may hold itself, or another many times
    while waiting:
        item = waiting.pop()
        if isinstance(item, bool):
            return True
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, list | tuple):
            waiting += item
        elif within_keys and isinstance(item, Mapping):
            waiting += item.values()
    return False


def _some_rate(value: Any) -> Any:
    if value == {}:
        raise ValueError("holds no rate; write a number, or one for each precision such as {bf16: 900}")
    return value


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value.strip() == "auto"


def _rate_or_auto(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        raise ValueError("write a number above 0, or auto to have it measured") from None


def _is_of_parts(annotation: Any) -> bool:
    """Return whether a field holds parts, which check their own fields."""
    return any(isinstance(kind, type) and issubclass(kind, Part) for kind in (annotation, *get_args(annotation)))


class Part(BaseModel):
    """Base of the parts of a job: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse ``yes`` as a number: pydantic would take a price of ``true`` for one dollar."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        if annotation is not bool and _holds_true(value, within_keys=not _is_of_parts(annotation)):
            raise ValueError("true and false are not allowed here")
        return value


class Recipe(Part):
    """How the network is trained at its reference batch size.

    ``learning_rate`` belongs to ``batch_size``, a global batch in samples; other batch sizes get a rate by the rule
    of the optimizer's family. ``auto`` stands for ``range_test``: the rate is measured, and a number beside it is what
    is used where the measurement is refused. ``epochs`` are passes over the training set, the cap where there is a
    target.
    """

    optimizer: Optimizer = "sgd"
    learning_rate: Annotated[Positive, BeforeValidator(_rate_or_auto)] = 0.05
    batch_size: Count = 64
    epochs: Count = 5
    schedule: Schedule = "cosine"
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(5e-4, ge=0)
    precision: Precision = "fp32"
    channels_last: bool = False
    loader_workers: int = Field(0, ge=0, strict=True)
    range_test: bool = False

    @model_validator(mode="before")
    @classmethod
    def _auto_is_a_test(cls, data: Any) -> Any:
        """Take ``learning_rate: auto`` as what it means, so that a rate is a number everywhere else."""
        if not isinstance(data, Mapping) or not _is_auto(data.get("learning_rate")):
            return data
        if data.get("range_test") is False:
            raise ValueError("range_test: false contradicts learning_rate: auto. Keep one of the two")
        return {**{key: value for key, value in data.items() if key != "learning_rate"}, "range_test": True}


class Target(Part):
    """Stop when the evaluation metric reaches ``value``."""

    metric: str = "accuracy"
    value: float = Field(allow_inf_nan=False, description="what the metric has to reach, 0.9 for example")


_MOST_RATE = 1e9  # TFLOP/s or GB/s; far above any device, and far from what overflows
Rates = Annotated[
    Annotated[float, Field(gt=0, le=_MOST_RATE)]
    | dict[Precision, Annotated[float, Field(gt=0, le=_MOST_RATE, strict=True)]],
    BeforeValidator(_some_rate),
]
"""Peak TFLOP/s of one device (of one process's cores): at the recipe's precision, or one for each precision."""


class Cluster(Part):
    """The machines that may be used; nodes and processes are the most, prices are in USD.

    ``device_tflops`` and ``device_memory_gbps`` (peak TFLOP/s, memory bandwidth in GB/s) are needed for `NodeType`.
    ``spot_interruptions_per_hour`` is how often one spot node is taken away, ``spot_restart_seconds`` how long until
    another is there. ``power_watts`` is the mean power of a node with all its processes at work, ``idle_power_watts``
    with none; ``power_limits_w`` are limits of one accelerator that may be set for a run.
    """

    nodes: Count = 1
    processes_per_node: Count = 1
    link_gbps: Positive | None = None
    price_per_node_hour: Positive | None = None
    spot_price_per_node_hour: Positive | None = None
    billing_seconds: Positive = 1
    power_watts: Positive | None = None
    threads_per_process: Count | None = None
    device_tflops: Rates | None = None
    device_memory_gbps: Annotated[float, Field(gt=0, le=_MOST_RATE)] | None = None
    spot_interruptions_per_hour: Annotated[float, Field(ge=0, le=3600)] | None = None
    spot_restart_seconds: Annotated[float, BeforeValidator(parse_duration_s), Field(ge=0, le=30 * 86400)] | None = None
    electricity_usd_per_kwh: NotNegative | None = None
    carbon_g_per_kwh: NotNegative | None = None
    idle_power_watts: Positive | None = None
    power_limits_w: tuple[Positive, ...] | None = Field(None, min_length=1, max_length=16)

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if self.spot_interruptions_per_hour is not None and self.spot_price_per_node_hour is None:
            raise ValueError(
                "spot_interruptions_per_hour: given without spot_price_per_node_hour. Give that price too, or leave "
                "the interruptions out"
            )
        if self.spot_restart_seconds is not None and self.spot_interruptions_per_hour is None:
            raise ValueError(
                "spot_restart_seconds: given without spot_interruptions_per_hour. Give how often a node is taken away, "
                "or leave the restart out"
            )
        full, idle = self.power_watts, self.idle_power_watts
        if full is not None and idle is not None and idle > full:
            raise ValueError(f"idle_power_watts: {idle:g} is above power_watts, {full:g}. Swap or mend them")
        return self


class NodeType(Part):
    """Other machines, known by their facts alone; nodes and processes are the most that may be used.

    Memory is bytes of one device, memory bandwidth GB/s, links Gbit/s, the price USD. A link that is not given is
    taken as that of the measured machine.
    """

    name: str = Field(min_length=1, max_length=60, description="a name for the node type, a100-node for example")
    nodes: Count = 1
    processes_per_node: Count = 1
    device_memory: Size = Field(description="the memory of one device, 80GiB for example")
    device_tflops: Rates = Field(
        description="the peak TFLOP/s of one device by its data sheet, 312 or {fp32: 19.5, bf16: 312} for example"
    )
    device_memory_gbps: float = Field(
        gt=0,
        le=_MOST_RATE,
        description="the memory bandwidth of one device in GB/s by its data sheet, 2039 for example",
    )
    link_gbps: Positive | None = None
    inside_link_gbps: Positive | None = None
    price_per_node_hour: Positive | None = None
    power_watts: Positive | None = None

    @field_validator("name")
    @classmethod
    def _name_can_be_shown(cls, value: str) -> str:
        """Refuse what would move a terminal's cursor or begin a new line."""
        if not value.isprintable() or not value.strip():
            raise ValueError("a name is made of characters that can be printed, without line breaks")
        return value


class Constraints(Part):
    """Limits that hold all at once. ``memory`` is bytes per process, ``deadline`` seconds.

    ``confidence`` is the chance with which deadline, budget and least accuracy have to be kept and a target reached:
    at 0.5 the forecast's value has to, and above 0.99 no 90 % interval can tell. By default one such plan in five may
    miss. ``begin_alone`` admits only runs that begin on one process and take more as their batch grows.
    """

    deadline: Duration | None = None
    budget_usd: Positive | None = None
    memory: Size | None = None
    min_accuracy: float | None = Field(None, ge=0, le=1)
    max_local_batch: Count | None = None
    begin_alone: bool = False
    confidence: float = Field(0.8, ge=0.5, le=0.99)


class Probe(Part):
    """How long measuring may take, in seconds."""

    seconds: Annotated[float, BeforeValidator(parse_duration_s), Field(gt=0, allow_inf_nan=False)] = 60.0


Goal = Literal["time", "cost", "energy"]
