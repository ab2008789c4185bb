"""The chance that a run ever reaches its target at a batch size, from runs at other batch sizes of the same network.

All targets of a network are used together: between which two of them the best metric of a run lies, and how the run
slowed down before, place that best metric on a scale; over ln batch it is a Gaussian process. What is usual of spread
between runs, swing over batch sizes and slowing down was learnt by empirical Bayes under hyperpriors. Names only say
which rows belong together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tula_core.bench.kind import Kind, Table
from tula_core.bench.tables import check_positive, read_table
from tula_core.errors import InputError
from tula_core.models.learning.ceilings import TargetRun
from tula_core.models.learning.reach import ReachPrior, reach_chances, reach_prior

Array = NDArray[np.float64]

_COLUMNS = ("dataset", "network", "batch_size", "optimizer", "learning_rate", "run", "target_metric", "target_epoch")
_KEY = ["dataset", "network", "batch_size", "target_metric"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """All runs of one data set and network, and the levels asked at each of its batch sizes."""

    dataset: str
    network: str
    runs: tuple[TargetRun, ...]
    asked: Mapping[float, Array]

    def others(self, batch: float) -> list[TargetRun]:
        """Return the runs at other batch sizes."""
        return [run for run in self.runs if run.batch != batch]


def predict(folder: Path) -> pd.DataFrame:
    """Return the chance for every batch size and target of ``epochs_to_target.csv``."""
    return chances(networks_of(folder), {})


def chances(networks: Sequence[Network], priors: Mapping[tuple[str, str], ReachPrior]) -> pd.DataFrame:
    """Return the chances, each network's with its prior in ``priors`` or else with the package's own."""
    rows = []
    for network in networks:
        prior = priors.get((network.dataset, network.network), reach_prior())
        for batch, levels in network.asked.items():
            runs = network.others(batch)
            # A single batch size has nothing to go by: neither chance is favoured.
            found = reach_chances(runs, batch, levels, prior=prior) if runs else np.full(len(levels), 0.5)
            rows += [
                (network.dataset, network.network, batch, level, chance)
                for level, chance in zip(levels.tolist(), found.tolist(), strict=True)
            ]
    return pd.DataFrame(rows, columns=list(KIND.columns))


def networks_of(folder: Path) -> list[Network]:
    """Return the networks of ``epochs_to_target.csv``.

    Raises
    ------
    InputError
        A number is impossible, or a run has two rows for one target.
    """
    frame = read_table(folder / "epochs_to_target.csv", _COLUMNS)
    check_positive(frame, ("batch_size",), "epochs_to_target.csv")
    met = frame[frame["target_epoch"].notna()]
    if len(met):
        check_positive(met, ("target_epoch",), "epochs_to_target.csv, reached targets")
    levels = pd.to_numeric(frame["target_metric"], errors="coerce")
    if not np.isfinite(levels).all():
        raise InputError("--data: epochs_to_target.csv: target_metric must be finite numbers. Mend the file.")
    frame = frame.assign(target_metric=levels, target_epoch=pd.to_numeric(frame["target_epoch"]))
    twice = frame.duplicated([*_COLUMNS[:-1]])
    if twice.any():
        raise InputError(
            "--data: epochs_to_target.csv: a run must have one row for each target, got a second one in data row "
            f"{int(twice.to_numpy().argmax()) + 1}. Leave it out."
        )
    return [_network(str(key[0]), str(key[1]), rows) for key, rows in frame.groupby(["dataset", "network"])]


def _network(dataset: str, network: str, rows: pd.DataFrame) -> Network:
    runs = []
    for key, run in rows.groupby(["batch_size", "optimizer", "learning_rate", "run"], dropna=False):
        ordered = run.sort_values("target_metric")
        runs.append(
            TargetRun(
                batch=float(str(key[0])),
                levels=ordered["target_metric"].to_numpy(dtype=float),
                epochs=ordered["target_epoch"].to_numpy(dtype=float),
            )
        )
    asked = {
        float(str(batch)): np.unique(part["target_metric"].to_numpy(dtype=float))
        for batch, part in rows.groupby("batch_size")
    }
    return Network(dataset=dataset, network=network, runs=tuple(runs), asked=asked)


def contested(folder: Path) -> pd.DataFrame:
    """Return every batch size and target that some batch sizes reach more often than others.

    Beside ``rate`` and ``runs`` stand two plain guesses: ``base``, the rate over all other batch sizes, and
    ``nearest``, that of the nearest one.
    """
    frame = read_table(folder / "epochs_to_target.csv", _COLUMNS)
    frame = frame.assign(rate=frame["target_epoch"].notna().astype(float))
    rates = frame.groupby(_KEY)["rate"].agg(["mean", "size"]).reset_index()
    rates = rates.rename(columns={"mean": "rate", "size": "runs"})
    found = []
    for _, target in rates.groupby(["dataset", "network", "target_metric"]):
        if target["rate"].nunique() < 2:
            continue
        for index, row in target.iterrows():
            others = target.drop(index=index)
            ratio = np.log(others["batch_size"].to_numpy(dtype=float)) - np.log(float(row["batch_size"]))
            base = float(np.average(others["rate"], weights=others["runs"]))
            guesses = (base, float(others["rate"].iloc[int(np.abs(ratio).argmin())]))
            found.append([*(row[name] for name in [*_KEY, "rate", "runs"]), *guesses])
    return pd.DataFrame(found, columns=[*_KEY, "rate", "runs", "base", "nearest"])


def score(folder: Path, predictions: pd.DataFrame) -> list[Table] | None:
    """Return Brier scores on contested targets beside plain guesses, None where no target is contested."""
    table = brier_table(folder, predictions, "Tula")
    if table is None:
        return None
    return [Table(title="Chance to reach a target: Brier score on contested targets", frame=table, note=_BRIER)]


_BRIER = (
    "Mean squared difference between the chance and what each run did; contested are targets that some batch sizes "
    "reach more often than others. `known rates` is the least possible: each batch size's own rate."
)


def brier_table(folder: Path, predictions: pd.DataFrame, name: str) -> pd.DataFrame | None:
    """Return Brier scores by network and over all, with the predictions' column called ``name``."""
    asked = contested(folder)
    if asked.empty:
        return None
    asked = asked.merge(predictions, on=_KEY, validate="one_to_one")
    groups = [(f"{key[0]}, {key[1]}", part) for key, part in asked.groupby(["dataset", "network"])]
    guesses = {name: "p", "nearest batch": "nearest", "base rate": "base", "known rates": "rate"}
    rows = [
        {"network": label, "pairs": len(part), **{title: _brier(part, column) for title, column in guesses.items()}}
        for label, part in [*groups, ("all", asked)]
    ]
    return pd.DataFrame(rows)


def _brier(frame: pd.DataFrame, column: str) -> float:
    loss = frame["rate"] * (1 - frame[column]) ** 2 + (1 - frame["rate"]) * frame[column] ** 2
    return float(np.average(loss, weights=frame["runs"]))


def picture(folder: Path, predictions: pd.DataFrame, path: Path) -> bool:
    """Draw chances beside what came true and Brier scores; False where no target is contested."""
    table = brier_table(folder, predictions, "Tula")
    if table is None:
        return False
    from tula_core.plots.data import reliability
    from tula_core.plots.draw_chances import draw_chances

    asked = contested(folder).merge(predictions, on=_KEY, validate="one_to_one")
    chance, share, runs = (asked[name].to_numpy(dtype=float) for name in ("p", "rate", "runs"))
    title = "tula bench reach: contested targets"
    draw_chances(reliability(chance, share, runs), table.drop(columns="pairs"), title, path)
    return True


def _leave_out(folder: Path) -> list[Table]:
    from tula_core.bench.reach_learn import leave_out

    return leave_out(folder)


def _learn(folder: Path) -> dict[str, object]:
    from tula_core.bench.reach_learn import learn

    return learn(folder)


KIND = Kind(
    name="reach",
    summary="The chance that a run ever reaches its target at one batch size, from runs at others.",
    columns=("dataset", "network", "batch_size", "target_metric", "p"),
    source="ml-energy/zeus, examples/research_reproducibility/zeus_nsdi23/trace, Apache-2.0.",
    predict=predict,
    score=score,
    leave_out=_leave_out,
    learn=_learn,
    priors="models/learning/reach_priors.json",
    picture=picture,
)
