"""Whether a challenger is better than the champion on workloads left out, and the words for it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from tula_core.history.evidence import Evidence
from tula_core.history.fitting import Errors
from tula_core.records.outcome import LABELS

DECIDING = ("step_time_s", "time_to_train_s")
GAIN, GAIN_SHARE = 0.005, 0.05  # the error must fall by more than both: in ln units, and as a share of itself
LOSS, LOSS_SHARE = 0.02, 0.1  # no error may rise by more than the larger of both

ByName = Mapping[str, float]


def verdict(evidence: Evidence, old: Errors, new: Errors) -> tuple[bool, str]:
    """Return whether to promote, and why in words.

    A clear gain in time, or in what is known of methods, promotes where nothing gets worse: no quantity, no method.
    """
    names = [name for name in DECIDING if name in old.by_quantity]
    compared = [
        *_compared(names, old.by_quantity, new.by_quantity, LABELS.__getitem__),
        *_compared(list(old.by_method), old.by_method, new.by_method, gap_words),
    ]
    counted = count_words(evidence)
    if not compared:
        return False, f"not promoted: {counted} hold no step time and no training time to judge by"
    gains = [told for told, before, after in compared if before - after > max(GAIN, GAIN_SHARE * before)]
    if not gains:
        told = " and ".join(told for told, *_ in compared)
        return False, f"not promoted: on workloads left out {told}, which is no clear gain ({counted})"
    told = " and ".join(gains)
    worse = [
        *_worse(old.by_quantity, new.by_quantity, LABELS.__getitem__),
        *_worse(old.by_method, new.by_method, gap_words),
    ]
    if worse:
        changes = ", ".join(worse)
        return False, f"not promoted: on workloads left out {told}, but others get worse: {changes} ({counted})"
    return True, f"promoted: on workloads left out {told} ({counted})"


def gap_words(method: str) -> str:
    """Return what the error of a method is called."""
    return f"gap to the best metric with {method}"


def count_words(evidence: Evidence) -> str:
    """Return how many outcomes there are, and how many of them teach nothing and why."""
    outcomes, workloads = ("" if count == 1 else "s" for count in (evidence.outcomes, len(evidence.jobs)))
    parts = [f"{evidence.outcomes} finished outcome{outcomes} of {len(evidence.jobs)} workload{workloads}"]
    if evidence.failed:
        parts.append(f"{evidence.failed} failed or killed that give no ratio")
    if evidence.elsewhere:
        parts.append(f"{evidence.elsewhere} on other hardware than planned that teach nothing of time and memory")
    if evidence.apart:
        parts.append(f"{evidence.apart} in another precision than their recipe's")
    if evidence.changed:
        parts.append(f"{evidence.changed} whose methods were replaced on the way")
    if evidence.unclear:
        parts.append(f"{evidence.unclear} that say nothing of a single method")
    if evidence.unattributed:
        parts.append(f"{evidence.unattributed} by predictor versions that cannot be found")
    return ", ".join(parts)


def _compared(
    names: Sequence[str], old: ByName, new: ByName, words: Callable[[str], str]
) -> Iterator[tuple[str, float, float]]:
    """Yield the mean error over some names in words, before and after; nothing where there are none."""
    if names:
        before, after = (statistics.fmean(errors[name] for name in names) for errors in (old, new))
        what = " and ".join(words(name) for name in names)
        yield f"the error of {what} goes from {_pct(before)} to {_pct(after)}", before, after


def _worse(old: ByName, new: ByName, words: Callable[[str], str]) -> Iterator[str]:
    for name, before in old.items():
        if new[name] - before > max(LOSS, LOSS_SHARE * before):
            yield f"{words(name)} from {_pct(before)} to {_pct(new[name])}"


def _pct(log_error: float) -> str:
    return f"{100 * math.expm1(log_error):.1f} %"
