"""How a forecast answers to what is known of a method: what history needs to learn of methods from outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tula_core.models.forecasting import Models
from tula_core.models.stages.curve import expected_curve
from tula_core.records.candidate import Candidate
from tula_core.records.corrections import BUILTIN, moved
from tula_core.records.mitigation import MitigationEffect


def method_response(models: Models, candidate: Candidate, cards: Mapping[str, MitigationEffect]) -> float | None:
    """Return by how much ln of the gap to the best metric rises, at a run's end, for one standard deviation of cards.

    A central difference over one standard deviation to either side, all cards moved together
    (`tula_core.records.corrections.moved`), of the forecast without the corrections of its version: runs forecast by
    different versions then answer alike. None where nothing is known of the metric.

    Parameters
    ----------
    cards
        Of the candidate's methods that no pilot trained with, by their names.
    """
    gaps = []
    for count in (-1.0, 1.0):
        effects = {name: moved(models.effects[name], card, count) for name, card in cards.items()}
        points = expected_curve(replace(models, corrections=BUILTIN, effects={**models.effects, **effects}), candidate)
        if points is None or models.curve is None:
            return None
        gaps.append(float(models.curve.scale.gap(np.array(points[-1].value))))
    return 0.5 * math.log(gaps[1] / gaps[0]) if min(gaps) > 0 else None
