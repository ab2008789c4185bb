"""What a forecast knows of the methods a job trains with: which act in it, and how far the others are a guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tula_core.mitigations import MITIGATIONS, Options, Packages, step_cost
from tula_core.records import QUANTITIES, Candidate, Row
from tula_core.records.candidate import Interval
from tula_core.search import words
from tula_core.search.forecaster import Forecasting
from tula_core.search.space import FIRST_PACKAGES

_ADAPTIVE = "adaptive-batch"
_STAGED = ("growth", "seesaw")


def method_notes(names: Sequence[str], options: Options, packages: Packages | None = None) -> list[str]:
    """Return what is taken for granted of the methods of a candidate, a sentence each without a final full stop.

    Parameters
    ----------
    options
        Of the job's methods, by method and name.
    packages
        Of the job; None where it named ``names`` itself.
    """
    if packages is not None and packages.several:
        return _chosen_notes(names, options, packages)
    rules = [name for name in names if MITIGATIONS[name].entry is None]
    staged = [name for name in names if name in _STAGED]
    others = [name for name in names if name not in (*rules, *staged, _ADAPTIVE)]
    notes = []
    if rules:
        notes.append(f"the pilots trained with the rates of {words.listed(rules)}, as training does")
    if staged:
        notes.append(
            f"the stages of {words.listed(staged)} are part of the forecast; each pilot ran at one batch throughout"
        )
    if others:
        notes.append(
            f"beware: the pilots trained without {words.listed(others)}, and accuracy and epochs are forecast without "
            f"its effect: {_elsewhere(others)}"
        )
    if _ADAPTIVE in names:
        notes.append(
            f"beware: {_ADAPTIVE} begins at recipe.batch_size and grows with noise that is not known beforehand: "
            "values are those of the planned batch from the start, and intervals reach to a run that never grows"
        )
    return notes + _cost_notes(names, options)


def _elsewhere(names: Sequence[str]) -> str:
    """Return whether anything is known of methods that a job named itself."""
    known = [name for name in names if MITIGATIONS[name].effect is not None]
    if not known:
        return "nothing here says how much it helps"
    return f"what other trainings say of {words.listed(known)} is used with mitigation auto alone"


def left_out_notes(packages: Packages, grid: Sequence[Candidate], reference: int) -> list[str]:
    """Return which packages no candidate above the reference batch trains with because there are many candidates."""
    offered = {candidate.mitigation for candidate in grid if candidate.global_batch > reference}
    left_out = [names for names in packages.large[FIRST_PACKAGES:] if names not in offered]
    if not left_out or not offered:
        return []
    return [
        f"As there are many candidates, auto did not look at {words.listed(['+'.join(names) for names in left_out])}; "
        "name them in mitigation to have them looked at."
    ]


def _chosen_notes(names: Sequence[str], options: Options, packages: Packages) -> list[str]:
    """Return the same for one of several packages."""
    untried = [name for name in names if name not in packages.pilots]
    staged = [name for name in names if name in _STAGED]
    pilots = words.listed(list(packages.pilots))
    notes = [f"the pilots trained with {pilots}; what other methods do is forecast relative to that"]
    if guessed := [name for name in untried if name not in packages.learnt]:
        notes.append(
            f"no pilot trained with {words.listed(guessed)}: the effect on learning is that of other trainings, with "
            "an interval as wide as they differ"
        )
    notes += [
        f"no pilot trained with {name}: the effect on learning is that of other trainings, refined by "
        f"{learnt.evidence()}: {learnt.words()}"
        for name, learnt in packages.learnt.items()
        if name in untried
    ]
    if staged:
        notes.append(f"the stages of {words.listed(staged)} are part of the forecast")
    return notes + _cost_notes(names, options)


def _cost_notes(names: Sequence[str], options: Options) -> list[str]:
    if (cost := step_cost(names, options)) == 1.0:
        return []
    costly = words.listed([name for name in names if step_cost([name], options) != 1.0])
    return [
        f"a step's computation is taken to be {cost:.3g} times that of a plain step, as usual with {costly}: it "
        "was not measured, and the interval is wide"
    ]


def forecast_growing(predictor: Forecasting, chosen: Sequence[Candidate], reference_batch: int) -> list[Row]:
    """Return one row for each candidate; where noise sets the batch, the interval holds a run that never grows."""
    rows = predictor.forecast(chosen)
    starts = {
        place: _as_it_begins(candidate, reference_batch)
        for place, candidate in enumerate(chosen)
        if _ADAPTIVE in candidate.mitigation and candidate.global_batch > reference_batch
    }
    begun = predictor.forecast(list(starts.values())) if starts else []
    for place, start in zip(starts, begun, strict=True):
        rows[place] = _reaching(rows[place], start)
    return rows


def _as_it_begins(candidate: Candidate, batch: int) -> Candidate:
    """Return the candidate at about the reference batch, spread as training begins it."""
    own = max(1, -(-batch // candidate.processes))
    accumulation = -(-own // candidate.local_batch)
    return replace(candidate, local_batch=-(-own // accumulation), accumulation=accumulation)


def _reaching(row: Row, start: Row) -> Row:
    """Return the row, not measured, whose intervals reach to those of another; memory is that of the largest batch."""
    names = [name for name in QUANTITIES if name != "memory_bytes"]
    forecast = {name: _both(row[name], start[name]) for name in names}
    return replace(row, measured=False, forecast={**row.forecast, **forecast})


def _both(one: Interval, other: Interval) -> Interval:
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return one
    return Interval(value=one.value, low=min(one.low, other.low), high=max(one.high, other.high))
