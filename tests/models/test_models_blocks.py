"""Work in blocks: the same figures in the same order, however many threads share them."""

import threading

import numpy as np
import pytest

from tests.factories import make_facts, make_job, make_profile
from tula_core.models import blocks
from tula_core.models.blocks import in_blocks
from tula_core.models.predictor import fit
from tula_core.records import Candidate


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize(("count", "size"), [(0, 4), (1, 4), (4, 4), (9, 4), (50, 1)])
def test_every_row_is_worked_on_once_and_in_order(monkeypatch, cores, count, size):
    monkeypatch.setattr(blocks, "_cores", lambda: cores)
    rows = np.arange(count)
    found = in_blocks(lambda block: rows[block].tolist(), count, size)
    assert [row for part in found for row in part] == rows.tolist()
    assert all(0 < len(part) <= size for part in found)


def test_one_block_needs_no_thread_and_several_share_them(monkeypatch):
    monkeypatch.setattr(blocks, "_cores", lambda: 2)
    here = threading.get_ident()
    assert in_blocks(lambda block: threading.get_ident(), 4, 4) == [here]
    assert here not in in_blocks(lambda block: threading.get_ident(), 8, 4)


def test_what_goes_wrong_in_a_thread_is_raised_here(monkeypatch):
    monkeypatch.setattr(blocks, "_cores", lambda: 2)
    with pytest.raises(ZeroDivisionError):
        in_blocks(lambda block: 1 // block.start, 8, 4)


def test_threads_handle_overflow_as_the_caller_asked(monkeypatch):
    monkeypatch.setattr(blocks, "_cores", lambda: 2)
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        in_blocks(lambda block: np.exp(np.full(4, 1e4)), 8, 4)


def test_the_number_of_cores_changes_no_figure(monkeypatch):
    predictor = fit(make_profile(facts=make_facts(train_samples=10**7)), make_job())
    asked = [
        Candidate(nodes=n, processes_per_node=p, local_batch=b) for b in range(1, 900) for n in (1, 2) for p in (1, 2)
    ]
    found = []
    for cores in (1, 2, 5):
        monkeypatch.setattr(blocks, "_cores", lambda cores=cores: cores)
        found.append(predictor.forecast_columns(asked).bands)
    for bands in found[1:]:
        for name, band in bands.items():
            for end in ("value", "low", "high"):
                assert np.array_equal(getattr(band, end), getattr(found[0][name], end)), name
