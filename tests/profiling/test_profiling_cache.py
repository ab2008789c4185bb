import dataclasses
import tempfile
import threading
import time

import pytest
from profiling_facts import make_facts, make_hardware, make_job

from tests.factories import make_profile
from tula_core import profiling
from tula_core.engine.device_lock import device_lock, lock_path
from tula_core.errors import InputError
from tula_core.profiling.cache import cached_profile, fingerprint, keep_profile
from tula_core.progress import silent


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("TULA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TULA_LOCKS", str(tmp_path))


def key(job=None, facts=None, hardware=None):
    return fingerprint(job or make_job(), facts or make_facts(), hardware or make_hardware())


@pytest.mark.parametrize(
    "facts",
    [
        {"sample_shape": (3, 224, 224)},
        {"train_samples": 600},
        {"eval_samples": 20},
        {"sample_bytes": 32},
        {"code_fingerprint": "1" * 64},
        {"metric": "top5_accuracy"},
    ],
)
def test_other_data_or_code_is_another_fingerprint(facts):
    assert key(facts=make_facts(**facts)) != key()


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": {"batch_size": 64}},
        {"recipe": {"loader_workers": 2}},
        {"recipe": {"precision": "bf16"}},
        {"cluster": {"processes_per_node": 2}},
        {"probe": {"seconds": 10}},
        {"constraints": {"max_local_batch": 64}},
        {"constraints": {"memory": "1GiB"}},
        {"mitigation": "none"},
        {"mitigation_options": {"warmup": {"share": 0.5}}},
        {"seed": 1},
        {"samples": 100},
    ],
)
def test_another_measurement_is_another_fingerprint(changes):
    assert key(make_job(changes)) != key()


@pytest.mark.parametrize(
    "changes",
    [{"name": "other"}, {"cluster": {"price_per_node_hour": 3.0}}, {"objective": "time"}, {"target": {"value": 0.5}}],
)
def test_what_is_only_reckoned_with_keeps_the_fingerprint(changes):
    assert key(make_job(changes)) == key()


@pytest.mark.parametrize(
    "changes",
    [{"cores": 4}, {"memory_bytes": 16 * 2**30}, {"threads_per_process": 2}, {"versions": {"torch": "2.15.0"}}],
)
def test_another_machine_is_another_fingerprint(changes):
    assert key(hardware=make_hardware(**changes)) != key()


def test_a_little_less_memory_after_a_boot_is_the_same_machine():
    assert make_hardware(memory_bytes=8 * 2**30 - 10**7).fingerprint == make_hardware().fingerprint


def test_a_kept_profile_is_that_of_the_job_that_asks(monkeypatch):
    asked = make_job({"target": {"value": 0.9}})
    earlier = make_job({"target": {"value": 0.5}})
    kept = dataclasses.replace(make_profile(), job=earlier.to_dict(), fingerprint=key(asked))
    keep_profile(kept)
    monkeypatch.setattr(profiling, "describe", lambda job, listener: (job, make_facts(), make_hardware()))
    _, found, cached = profiling.profile(asked)
    assert cached and found == dataclasses.replace(kept, job=asked.to_dict())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"mitigation": "none"}, "mitigation: is 'none'"),
        ({"mitigation_options": {"warmup": {"share": 0.5}}}, "mitigation_options: is"),
        ({"cluster": {"processes_per_node": 4}}, "4 processes on 4 cores leave 1 for each"),
        ({"cluster": {"threads_per_process": 1}}, "cluster.threads_per_process: is 1"),
    ],
)
def test_a_profile_of_other_methods_or_too_many_threads_is_refused(changes, expected):
    hardware = make_hardware(cores=4, threads_per_process=2)
    profile = dataclasses.replace(make_profile(), job=make_job().to_dict(), hardware=hardware)
    assert profiling.complete(make_job({"cluster": {"processes_per_node": 2}}), profile)
    assert profiling.complete(make_job(), profile)  # fewer processes than the cores have room for do no harm
    with pytest.raises(InputError, match=expected):
        profiling.complete(make_job(changes), profile)


def test_a_kept_profile_is_found_and_a_damaged_one_is_not():
    profile = make_profile()
    assert cached_profile(profile.fingerprint) is None
    path = keep_profile(profile)
    assert cached_profile(profile.fingerprint) == profile
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 0'))
    assert cached_profile(profile.fingerprint) is None


def test_second_job_waits_for_the_first_and_says_so():
    said, inside = [], threading.Event()

    def second():
        with device_lock("profile", said.append):
            inside.set()

    thread = threading.Thread(target=second)
    with device_lock("profile", silent):
        thread.start()
        until = time.monotonic() + 60
        while not said and time.monotonic() < until:
            assert not inside.wait(0.05)
    assert inside.wait(60)
    thread.join()
    assert [event.level for event in said] == ["info"]
    assert "waiting" in said[0].message


def test_a_free_device_is_taken_at_once_whatever_the_home(monkeypatch, tmp_path):
    path = lock_path()
    monkeypatch.setenv("TULA_HOME", str(tmp_path / "other"))
    assert lock_path() == path
    said = []
    with device_lock("profile", said.append):
        assert path.exists()
    assert said == []
