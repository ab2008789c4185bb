"""The kind ``energy``: time and mean power of an epoch by batch size and power limit, from six known rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from tula_core.bench.energy_data import ANSWERS, ASKED, errors_pct, read_epochs
from tula_core.bench.energy_learn import forecast_frame, learn, learn_priors
from tula_core.bench.energy_plain import log_linear, nearest_row
from tula_core.bench.kind import PAIR_COLUMNS, Kind, Table
from tula_core.models.inference.fitting import Z90
from tula_core.models.power.priors import FILE

_QUANTITIES = ("time", "power", "energy")


def predict(folder: Path) -> pd.DataFrame:
    """Return the predictions of every row that is not known."""
    frame = read_epochs(folder)
    asked = frame[~frame.known]
    found = forecast_frame(frame).loc[asked.index]
    return asked[list(ASKED)].assign(pred_time_per_epoch=found.time_s, pred_average_power=found.power_w)


def score(folder: Path, predictions: pd.DataFrame) -> list[Table] | None:
    """Return errors beside plain laws, by network and by gpu, and coverage; None where answers are missing."""
    frame = read_epochs(folder)
    asked = frame[~frame.known]
    if asked.empty or asked[list(ANSWERS)].isna().to_numpy().any():
        return None
    found = forecast_frame(frame).loc[asked.index]
    once = predictions.drop_duplicates(list(ASKED))  # rows that ask the same are answered alike
    mine = asked[list(ASKED)].merge(once, on=list(ASKED), how="left").set_index(asked.index)
    given = pd.DataFrame({"time_s": mine.pred_time_per_epoch, "power_w": mine.pred_average_power})
    laws = {
        "Tula": given,
        "log-linear in batch and limit": log_linear(frame).loc[asked.index],
        "nearest known row": nearest_row(frame).loc[asked.index],
    }
    errors = {name: errors_pct(asked, law) for name, law in laws.items()}
    covered = _covered(asked, found)
    return [
        Table(
            title="Energy: error beside plain laws",
            frame=pd.DataFrame(_by_law(errors)),
            note="Per cent, over asked rows; energy is time x power.",
        ),
        Table(
            title="Energy: error and coverage by gpu and network",
            frame=pd.DataFrame(_by_group(asked, errors["Tula"], covered)),
            note="MAPE in per cent, and the share of rows inside the 90 % interval in per cent.",
        ),
    ]


def leave_out(folder: Path) -> list[Table]:
    """Return errors when the priors were learnt without the gpu, the network or the data set that is predicted."""
    frame = read_epochs(folder)
    if frame[list(ANSWERS)].isna().to_numpy().any():
        return []
    rows, seen = [], set()
    for column in ("gpu", "network", "dataset"):
        values = sorted(frame[column].unique())
        for value in values if len(values) > 1 else ():
            out = frame[column] == value
            if tuple(out) not in seen:  # a data set that only one network was trained on is that network again
                seen.add(tuple(out))
                rows.append(_left_out(frame, f"{column} {value}", out))
    note = "MAPE and coverage of the 90 % interval in per cent; priors learnt from the other rows alone."
    return [Table(title="Energy: left out of the priors", frame=pd.DataFrame(rows), note=note)]


def pairs(folder: Path, predictions: pd.DataFrame) -> pd.DataFrame | None:
    """Return every asked row beside its prediction and interval; None where answers are missing."""
    frame = read_epochs(folder)
    asked = frame[~frame.known]
    if asked.empty or asked[list(ANSWERS)].isna().to_numpy().any():
        return None
    found = forecast_frame(frame).loc[asked.index]
    parts = []
    for answer, name in zip(ANSWERS, ("time", "power"), strict=True):
        value = found["time_s" if name == "time" else "power_w"]
        width = np.exp(Z90 * found[f"{name}_log_sd"])
        parts.append(
            pd.DataFrame(
                {
                    "quantity": answer,
                    "group": asked.network,
                    "actual": asked[answer],
                    "predicted": value,
                    "low": value / width,
                    "high": value * width,
                }
            )
        )
    return pd.concat(parts, ignore_index=True)[list(PAIR_COLUMNS)]


def _by_law(errors: dict[str, pd.DataFrame]) -> Iterator[dict[str, object]]:
    for name, frame in errors.items():
        row: dict[str, object] = {"law": name}
        for quantity in _QUANTITIES:
            row |= {f"{quantity}_mape": frame[quantity].mean(), f"{quantity}_median": frame[quantity].median()}
        yield row


def _by_group(asked: pd.DataFrame, errors: pd.DataFrame, covered: pd.DataFrame) -> Iterator[dict[str, object]]:
    for (gpu, network), group in asked.groupby(["gpu", "network"], sort=True):
        yield {"gpu": gpu, "network": network} | _summary(errors.loc[group.index], covered.loc[group.index])
    yield {"gpu": "all", "network": "all"} | _summary(errors, covered)


def _left_out(frame: pd.DataFrame, name: str, out: pd.Series) -> dict[str, object]:
    priors = learn_priors(frame[~out])
    # The gpu's other works stay known: without them every work would be measured on a gpu of its own.
    found = forecast_frame(frame[frame.gpu.isin(frame.gpu[out].unique())], priors)
    asked = frame[out & ~frame.known]
    found = found.loc[asked.index]
    return {"left_out": name} | _summary(errors_pct(asked, found), _covered(asked, found))


def _summary(errors: pd.DataFrame, covered: pd.DataFrame) -> dict[str, object]:
    row: dict[str, object] = {"rows": len(errors)}
    for quantity in _QUANTITIES:
        row |= {f"{quantity}_mape": errors[quantity].mean(), f"{quantity}_inside": 100 * covered[quantity].mean()}
    return row


def _covered(asked: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """Return whether each quantity of each row lies inside its 90 % interval."""
    time = np.log(asked.time_per_epoch / found.time_s)
    power = np.log(asked.average_power / found.power_w)
    off = {"time": time, "power": power, "energy": time + power}
    return pd.DataFrame({name: np.abs(values) <= Z90 * found[f"{name}_log_sd"] for name, values in off.items()})


KIND = Kind(
    name="energy",
    summary="time per epoch and mean power by batch size and power limit, from six known rows of each group",
    columns=(*ASKED, "pred_time_per_epoch", "pred_average_power"),
    source="ml-energy/zeus, examples/research_reproducibility/zeus_nsdi23/trace (NSDI 2023), Apache-2.0",
    predict=predict,
    score=score,
    leave_out=leave_out,
    learn=learn,
    priors=FILE,
    pairs=pairs,
)
