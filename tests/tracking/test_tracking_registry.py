from __future__ import annotations

from pathlib import Path

import pytest

from tula_core.errors import InputError, RunError
from tula_core.records import Correction, Corrections, load
from tula_core.records.corrections import BUILTIN
from tula_core.tracking import champion, corrections_of, keys, promote, register_challenger, store, sync_champion
from tula_core.tracking.registry import champion_path

LEARNT = Corrections(
    schema_version=1,
    version=99,  # the registry gives the real one
    outcomes=6,
    jobs=2,
    by_quantity={"step_time_s": Correction(log_bias=0.2, log_sd=0.05, outcomes=6)},
)
REPORT = {"champion_error": {"step_time_s": 0.2}, "challenger_error": {"step_time_s": 0.05}, "promoted": True}


def alias(name: str) -> int:
    return int(store.client().get_model_version_by_alias(keys.PREDICTOR_NAME, name).version)  # text over HTTP


def check_learning() -> None:
    """Register, promote and read back; the state folder is emptied in between."""
    version = register_challenger(LEARNT, REPORT)
    assert version == 2
    client = store.client()
    assert alias(keys.CHAMPION) == 1
    assert alias(keys.CHALLENGER) == 2
    assert champion() == BUILTIN
    assert promote(2).label == "tula-predictor v2 (6 outcomes of 2 jobs)"
    assert alias(keys.CHAMPION) == 2
    assert champion().by_quantity == LEARNT.by_quantity and champion().version == 2
    assert register_challenger(LEARNT, REPORT) == 3
    champion_path().unlink()
    for path in (champion_path().parent / "predictors").iterdir():
        path.unlink()
    assert champion() == BUILTIN
    assert sync_champion().version == 2 and champion().version == 2
    run = client.get_run(client.get_model_version(keys.PREDICTOR_NAME, "2").run_id)
    assert run.data.metrics["challenger_error/step_time_s"] == 0.05 and run.info.status == "FINISHED"


def test_a_challenger_becomes_champion(home: Path) -> None:
    check_learning()


@pytest.mark.service
def test_a_challenger_becomes_champion_over_http(server, capfd: pytest.CaptureFixture[str]) -> None:
    check_learning()
    assert capfd.readouterr().out == ""  # standard output is for results


def test_without_anything_learnt_the_champion_is_built_in(home: Path) -> None:
    assert champion() == BUILTIN
    assert sync_champion() == BUILTIN
    assert not champion_path().exists()


def test_a_damaged_cache_is_said_aloud(home: Path) -> None:
    champion_path().write_text("{")
    with pytest.raises(InputError, match=r"champion\.json: not JSON.*Delete .* built-in predictor"):
        champion()


def test_corrections_are_found_by_the_whole_label(home: Path) -> None:
    register_challenger(LEARNT, REPORT)
    label = "tula-predictor v2 (6 outcomes of 2 jobs)"
    (home / "predictors" / "2.json").unlink()
    found = corrections_of(label)
    assert found is not None and found.by_quantity == LEARNT.by_quantity
    assert load(Corrections, home / "predictors" / "2.json") == found
    assert corrections_of("tula-predictor v1 (built-in)") == BUILTIN
    assert corrections_of("tula-predictor v2 (7 outcomes of 3 jobs)") is None  # of another registry
    assert corrections_of("tula-predictor v8 (7 outcomes of 3 jobs)") is None
    assert corrections_of("something else") is None


def test_a_registry_that_is_down(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register_challenger(LEARNT, REPORT)
    promote(2)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://name:secret@127.0.0.1:9")
    assert sync_champion().version == 2
    with pytest.raises(RunError, match=r"http://127\.0\.0\.1:9 cannot be reached") as caught:
        register_challenger(LEARNT, REPORT)
    assert "secret" not in str(caught.value)


def test_promoting_what_is_not_there(home: Path) -> None:
    with pytest.raises(InputError, match="holds no version 5"):
        promote(5)
