from __future__ import annotations

import doctest

from hypothesis import given
from hypothesis import strategies as st

from tula_core.job import parse_duration_s, parse_size_bytes
from tula_core.search import words


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(words).failed == 0 and doctest.testmod(words).attempted > 0


@given(st.floats(0.01, 1e7))
def test_an_admitting_duration_is_one_a_job_takes_and_is_long_enough(seconds):
    assert seconds <= parse_duration_s(words.admitting_duration(seconds)) <= max(seconds * 1.06, seconds + 1.001)


@given(st.floats(1, 1e14))
def test_an_admitting_size_is_one_a_job_takes_and_is_large_enough(size):
    assert size <= parse_size_bytes(words.admitting_size(size)) + 1


@given(st.floats(1e-6, 1e7))
def test_an_admitting_budget_is_enough(usd):
    assert usd <= float(words.admitting_usd(usd)) * (1 + 1e-9) <= usd * (1 + 1e-9) + 0.0101
