"""What was asked for and what came of it: one line of JSON a run, so that an interrupted benchmark goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.generalization_jobs import ENTRY, BenchJob, Scale, job_name, sizes
from tests.benchmarks.generalization_methods import Row, recipe_of, stages_of
from tula_core.errors import InputError
from tula_core.job import Job
from tula_core.mitigations import complete


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What one run gave; accuracies are None where it diverged for good.

    Attributes
    ----------
    accuracy
        After the last epoch, of the validation split while rates are chosen, else of the test set.
    train_accuracy
        After the last epoch, of what was trained on; None while rates are chosen.
    seconds
        Of all steps, without evaluations.
    reductions
        How often the rate was halved because the loss had diverged.
    """

    accuracy: float | None
    train_accuracy: float | None
    steps: int
    samples: int
    seconds: float | None
    reductions: int


class Request:
    """One run: a job, a row, its methods, the split, the batch, the rate and the seed."""

    def __init__(
        self, scale: Scale, bench: BenchJob, row: Row, split: str, *, methods: tuple[str, ...], batch: int, rate: float,
        seed: int,
    ):  # fmt: skip
        self.bench, self.row, self.split = bench, row, split
        self.batch, self.rate, self.seed = batch, rate, seed
        self._name = job_name(scale, bench, split)
        self._samples, self._judged = sizes(scale.name, bench.name, split)
        asked = Job(
            name=self._name, workload=ENTRY, recipe=recipe_of(bench, rate), target="none", mitigation="none", seed=seed
        )
        self._methods = methods
        self._options = complete(methods, row.options)
        self._job = asked.model_copy(
            update={"mitigation": list(methods) or "none", "mitigation_options": dict(row.options)}
        )
        self._stages = stages_of(self._options, asked.recipe, batch, self._samples)
        self.digest = hashlib.sha256(json.dumps(self._identity(), sort_keys=True).encode()).hexdigest()[:16]

    def _identity(self) -> dict[str, Any]:
        """Return all that decides the result, so that equal runs of two rows are made once."""
        return {
            "job": self._name,
            "samples": [self._samples, self._judged],
            "recipe": self._job.recipe.model_dump(mode="json"),
            "methods": self._options,
            "batch": self.batch,
            "stages": self._stages,
            "seed": self.seed,
        }

    def payload(self) -> dict[str, Any]:
        """Return what the worker needs, as plain values."""
        resolved = self._job.resolved(self._job.recipe, None)
        return {
            "digest": self.digest,
            "split": self.split,
            "job": resolved.to_dict(),
            "local_batch": self.batch,
            "accumulation": 1,
            "mitigation": list(self._methods),
            "stages": self._stages,
            "train_samples": self._samples,
        }

    def label(self) -> dict[str, Any]:
        """Return what a person reads in the file."""
        return {
            "digest": self.digest,
            "job": self._name,
            "method": self.row.name,
            "methods": list(self._methods),
            "batch": self.batch,
            "rate": self.rate,
            "seed": self.seed,
        }


class Store:
    """The file of results, and what is in it.

    Raises
    ------
    InputError
        A line other than the last, which an interruption may have cut, is not a result.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._results: dict[str, Result] = {}
        text = path.read_text() if path.exists() else ""
        lines = text.splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                self._results[row["digest"]] = Result(**row["result"])
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                if number == len(lines) and not text.endswith("\n"):
                    path.write_text("".join(f"{whole}\n" for whole in lines[:-1]))
                    return
                raise InputError(
                    f"--out: line {number} of {str(path)!r} is not a result of this benchmark ({error}). "
                    "Name another file, or delete the line."
                ) from None
        if text and not text.endswith("\n"):
            path.write_text(text + "\n")

    def get(self, request: Request) -> Result | None:
        """Return what a run gave, None where it was not made yet."""
        return self._results.get(request.digest)

    def add(self, request: Request, result: Mapping[str, Any]) -> Result:
        """Keep a result, on disk before this returns."""
        kept = Result(**result)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({**request.label(), "result": asdict(kept)}) + "\n")
        self._results[request.digest] = kept
        return kept
