import time
from pathlib import Path

import pytest

from tula_core.errors import InputError
from tula_core.job import Job
from tula_core.job_text import MOST_BYTES, NotYamlError, parse

BILLION = "\n".join(
    ["a: &a [x, x, x, x, x, x, x, x, x]"]
    + [f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefg", "bcdefgh", strict=True)]
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("workload: a\nworkload: b", "line 2, column 1: found 'workload' twice"),
        ("recipe:\n  epochs: 1\n  epochs: 2", "line 3, column 3: found 'epochs' twice"),
        ("1: 2", "a key that is no text"),
        ("? [a]\n: b", "a key that is no text"),
        ("[" * 5000, "nested too deeply"),
        ("name: 2020-13-45", "month must be in 1..12"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("a: 'x\0'", "special characters are not allowed"),
    ],
)
def test_text_that_cannot_be_meant_is_refused_with_its_place(text: str, expected: str) -> None:
    with pytest.raises(NotYamlError, match=expected):
        parse(text)


def test_a_key_from_a_merge_may_be_given_again() -> None:
    assert parse("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}")["b"] == {"x": 3, "y": 2}


def test_a_mark_of_the_byte_order_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("workload: x", encoding="utf-8-sig")
    assert Job.from_yaml(path).workload == "x"


def test_a_file_far_larger_than_a_job_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("a" * (MOST_BYTES + 1))
    with pytest.raises(InputError, match="cannot be read .it is larger than 256 KiB"):
        Job.from_yaml(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"workload: x\n{BILLION}", "a: unknown key"),
        ("&a {workload: *a}", "workload: input should be a valid string"),
        ("{workload: digits-cnn, name: 2020-01-01}", "name: input should be a valid string"),
        (f"{BILLION}\nworkload: *h".replace("a: &a", "name: &a"), "unknown key"),
    ],
)
def test_values_that_yaml_can_hold_and_json_cannot_end_in_one_short_line(
    tmp_path: Path, text: str, expected: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    began = time.process_time()
    with pytest.raises(InputError, match=expected) as caught:
        Job.from_yaml(path)
    assert time.process_time() - began < 2
    assert len(str(caught.value)) < 1000
