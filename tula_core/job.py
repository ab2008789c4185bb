"""`Job`: what a person asks for, as a YAML file, a built-in name or a Python object.

A job is frozen and validated. Fields of ``recipe`` and ``target`` that are not given are filled from the workload's
reference recipe when the workload is loaded; `Job.resolved` does that and gives the job a plan holds.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.resources
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from tula_core.errors import InputError, nearest
from tula_core.job_parts import (
    Cluster,
    Constraints,
    Count,
    Finite,
    Goal,
    NodeType,
    Part,
    Positive,
    Precision,
    Probe,
    Rates,
    Recipe,
    Schedule,
    Target,
    parse_duration_s,
    parse_size_bytes,
)
from tula_core.job_text import NotYamlError, explain, parse, read

__all__ = [
    "Cluster",
    "Constraints",
    "Job",
    "NodeType",
    "Precision",
    "Probe",
    "Rates",
    "Recipe",
    "Schedule",
    "Target",
    "builtin_names",
    "load_job",
    "parse_duration_s",
    "parse_size_bytes",
    "with_overrides",
]

ADAPTIVE_RATE = 1e-3
"""For optimizers of Adam's family where nobody states a rate: Kingma and Ba 2015, arXiv 1412.6980, algorithm 1."""


class Job(Part):
    """Workload, recipe, cluster, objective, constraints and seed.

    Raises
    ------
    InputError
        Through `from_yaml`, `builtin` and `from_mapping`: names the field, the value, what is allowed and the remedy.
        The constructor itself raises pydantic's ``ValidationError``, also a ``ValueError``.
    """

    name: str = Field("", max_length=100)
    workload: str | None = None
    network: str | None = None
    dataset: str | None = None
    loss: str | None = None
    metric: str | None = None
    samples: Count | None = None
    recipe: Recipe = Recipe()
    target: Target | Literal["none"] | None = None
    cluster: Cluster = Cluster()
    what_if: tuple[NodeType, ...] = Field((), max_length=20)
    objective: Literal["knee", "time", "cost", "energy"] | dict[Goal, Positive] = "knee"
    constraints: Constraints = Constraints()
    probe: Probe = Probe()
    mitigation: str | list[str] = "auto"
    precisions: list[Precision] | None = Field(None, min_length=1)
    mitigation_options: dict[str, dict[str, Finite]] = Field(default_factory=dict)
    seed: int = Field(0, ge=0, lt=2**31, strict=True)

    @field_validator("name")
    @classmethod
    def _name_is_fit_for_files(cls, value: str) -> str:
        """Refuse what is no file name everywhere; ``..`` would lead out of the state folder."""
        if value and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._ -]*", value):
            raise ValueError("a name begins with one of a-z, A-Z, 0-9 and goes on with those, space, '.', '_' or '-'")
        return value

    @model_validator(mode="after")
    def _check_workload(self) -> Self:
        if self.workload is None and (self.network is None or self.dataset is None):
            raise ValueError(
                "workload: missing. Give a built-in name, package.module:function, or both network and dataset"
            )
        if self.workload is not None and (self.network is not None or self.dataset is not None):
            raise ValueError("workload: given together with network or dataset. Keep one of the two forms")
        if isinstance(self.objective, dict) and not self.objective:
            raise ValueError("objective: has no weight. Write for example {time: 0.7, cost: 0.3}")
        return self

    @model_validator(mode="after")
    def _check_what_if(self) -> Self:
        for name in ("device_tflops", "device_memory_gbps"):
            if self.what_if and getattr(self.cluster, name) is None:
                raise ValueError(
                    f"cluster.{name}: missing. what_if compares other devices with the measured one: give the figure "
                    "of its data sheet, or leave what_if out"
                )
        names = [node.name for node in self.what_if]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"what_if: the name {name!r} is given {names.count(name)} times. Rename one of them")
        goals = self.objective if isinstance(self.objective, dict) else (self.objective,)
        for node in self.what_if:
            if "energy" in goals and node.power_watts is None:
                raise ValueError(
                    f"what_if: {node.name!r} has no power_watts, so the objective energy cannot be weighed there. Give "
                    "the draw of one of its nodes in watts, or choose another objective"
                )
            electric = self.cluster.electricity_usd_per_kwh is not None
            if self.constraints.budget_usd is not None and electric and node.power_watts is None:
                raise ValueError(
                    f"what_if: {node.name!r} has no power_watts, so constraints.budget_usd cannot be checked there, "
                    "where electricity is part of the cost. Give the draw of one of its nodes in watts, or leave one "
                    "of the two out"
                )
            if self.constraints.budget_usd is not None and node.price_per_node_hour is None:
                raise ValueError(
                    f"what_if: {node.name!r} has no price_per_node_hour, so constraints.budget_usd cannot be checked "
                    "there. Give its price, or leave one of the two out"
                )
        return self

    @property
    def other_precisions(self) -> tuple[Precision, ...]:
        """The precisions to consider beside the recipe's own, each once."""
        return tuple(dict.fromkeys(name for name in self.precisions or () if name != self.recipe.precision))

    def in_precision(self, precision: str | None) -> Job:
        """Return this job with its recipe in another precision; the job itself where that is None."""
        if precision is None:
            return self
        recipe = Recipe(**{**self.recipe.model_dump(exclude_unset=True), "precision": precision})
        return self.model_copy(update={"recipe": recipe})

    @property
    def title(self) -> str:
        """The job's name, or one made from its workload; also its MLflow experiment."""
        made = self.workload or f"{self.network}-{self.dataset}"
        return self.name or re.sub(r"[^A-Za-z0-9._-]+", "-", made).strip("-.")[:100]

    @property
    def digest(self) -> str:
        """Sixteen hex digits over every field: equal jobs have equal digests."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; fields of ``recipe`` and ``target`` that were not given stay away."""
        data = self.model_dump(mode="json", exclude={"recipe", "target"})
        data["recipe"] = self.recipe.model_dump(mode="json", exclude_unset=True)
        if "target" in self.model_fields_set:
            data["target"] = self.target.model_dump(mode="json") if isinstance(self.target, Target) else self.target
        return data

    def at_learning_rate(self, rate: float) -> Job:
        """Return this job with another learning rate in its recipe."""
        recipe = Recipe(**{**self.recipe.model_dump(exclude_unset=True), "learning_rate": rate})
        return self.model_copy(update={"recipe": recipe})

    def resolved(self, reference: Recipe, target: Target | None) -> Job:
        """Return this job with every recipe field set: this job's where given, else the workload's reference.

        A learning rate that neither states, or the workload only for another family of optimizers, is to be measured;
        where the measuring is refused, the family's usual rate is used. If it was asked for, the rate stays away.
        """
        recipe = Recipe(**_completed(reference, self.recipe.model_dump(exclude_unset=True)))
        chosen = self.target if "target" in self.model_fields_set else target
        return self.model_copy(update={"recipe": recipe, "target": None if chosen == "none" else chosen})

    def completes(self, request: Job) -> bool:
        """Return whether this job is ``request`` with fields of its recipe and target filled in."""
        mine, asked = self.to_dict(), request.to_dict()
        recipe, target = mine.pop("recipe"), mine.pop("target", None)
        wanted, goal = asked.pop("recipe"), asked.pop("target", target)
        if wanted.get("range_test"):
            wanted.pop("learning_rate", None)  # it was measured
        same_goal = (None if goal == "none" else goal) == target
        return mine == asked and wanted.items() <= recipe.items() and same_goal

    @classmethod
    def from_mapping(cls, data: Any, *, source: str = "job") -> Job:
        """Validate plain data.

        Raises
        ------
        InputError
            One message for the first fault, prefixed with ``source``.
        """
        if not isinstance(data, Mapping):
            raise InputError(
                f"{source}: found {type(data).__name__}, expected keys and values such as workload: digits-cnn."
            )
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            raise InputError(f"{source}: {explain(cls, error)}") from None

    @classmethod
    def from_yaml(cls, path: str | Path, overrides: Iterable[str] = ()) -> Job:
        """Read a job file, apply ``key.path=value`` overrides, validate.

        Raises
        ------
        InputError
            The file is missing, unreadable or not YAML, or the job in it is wrong.
        """
        try:
            data = parse(read(Path(path)))
        except FileNotFoundError:
            raise InputError(
                f"job: no file {str(path)!r}. Give a YAML file or a built-in name: {', '.join(builtin_names())}."
            ) from None
        except NotYamlError as error:
            raise InputError(f"job: {str(path)!r} is not YAML: {error}. Mend that line.") from None
        except (OSError, ValueError) as error:
            raise InputError(f"job: {str(path)!r} cannot be read ({error}). Give a YAML text file.") from None
        return cls.from_mapping(with_overrides(data, overrides), source=str(path))

    @classmethod
    def builtin(cls, name: str, overrides: Iterable[str] = ()) -> Job:
        """Return a built-in job by name, with ``key.path=value`` overrides applied.

        Raises
        ------
        InputError
            The name is unknown; the message lists the known ones.
        """
        if name not in builtin_names():
            raise InputError(f"job: {name!r} is neither a file nor a built-in job. {nearest(name, builtin_names())}")
        text = importlib.resources.files("tula_core").joinpath("jobs", f"{name}.yaml").read_text(encoding="utf-8")
        return cls.from_mapping(with_overrides(parse(text), overrides), source=name)


def _completed(reference: Recipe, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a recipe, those ``given`` before those of the workload's reference."""
    fields = {**reference.model_dump(), **given}
    if "learning_rate" in given:  # a number goes before the workload's wish to have it measured
        return fields | {"range_test": given.get("range_test", False)}
    sgd = fields["optimizer"] == "sgd"
    if "learning_rate" in reference.model_fields_set and sgd == (reference.optimizer == "sgd"):
        return fields
    if fields["range_test"]:
        return {name: value for name, value in fields.items() if name != "learning_rate"}
    decided = "range_test" in given or "range_test" in reference.model_fields_set
    return fields | {"learning_rate": Recipe().learning_rate if sgd else ADAPTIVE_RATE, "range_test": not decided}


def builtin_names() -> list[str]:
    """Return the names of the built-in jobs, sorted."""
    folder = importlib.resources.files("tula_core").joinpath("jobs")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_job(text: str, overrides: Iterable[str] = ()) -> Job:
    """Return the job that ``text`` names: a file where it looks like one or exists, else a built-in job."""
    is_file = text.endswith((".yaml", ".yml")) or "/" in text or Path(text).is_file()
    job = Job.from_yaml(text, overrides) if is_file else Job.builtin(text, overrides)
    if job.workload is not None and ":" not in job.workload and job.workload not in builtin_names():
        raise InputError(
            f"{text}: workload: {job.workload!r} is unknown. {nearest(job.workload, builtin_names())} "
            "Or write package.module:function, or give network and dataset."
        )
    return job


def with_overrides(data: Any, overrides: Iterable[str]) -> Any:
    """Return a copy of nested mappings with each ``key.path=value`` applied; values are read as YAML.

    Raises
    ------
    InputError
        An override has no ``=``, its value is not YAML, or its path runs through something that is no mapping.
    """
    result = copy.deepcopy(data)
    for text in overrides:
        path, separator, value = text.partition("=")
        if not separator or not path.strip():
            raise InputError(f"--set: {text!r} is not key.path=value. Write for example --set recipe.epochs=3.")
        *parents, last = path.strip().split(".")
        try:
            parsed = parse(value)
        except NotYamlError as error:
            raise InputError(f"--set {path}: {value[:80]!r} is not a YAML value ({error}). Mend it.") from None
        place = result
        for key in parents:
            if isinstance(place, dict) and place.get(key) is None:
                place[key] = {}
            place = place.get(key) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise InputError(f"--set: {path!r} does not lead to a field. Write for example --set recipe.epochs=3.")
        place[last] = parsed
    return result
