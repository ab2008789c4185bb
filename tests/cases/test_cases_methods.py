"""Methods and what they do to the machinery around them: what is printed, skipped and counted is what happened."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from case_helpers import find_support, in_world


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("methods")
    with pytest.MonkeyPatch.context() as patch:
        find_support(patch, home / "home")
        yield home


def test_an_overflow_on_one_rank_is_skipped_by_all_while_they_step_alone(folder: Path) -> None:
    """Elsewhere the rank that skips falls behind the others in its count, and they wait for it for ever."""
    asked = {
        "workload": "one_rank_overflows",
        "local_batch": 8,
        "mitigation": ["post-local-sgd"],
        "options": {"post-local-sgd": {"begins": 0.0, "period": 4}},
    }
    found = in_world(folder / "overflow", 2, "runs", runs={"run": asked})["run"]
    assert found["error"] is None and found["result"]["steps"] == 19
    steps = [event["steps"] for event in found["events"] if event["kind"] == "progress"]
    assert steps == [1, 2, 3, 4, 5, 5, *range(6, 20)]
