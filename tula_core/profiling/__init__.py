"""Measuring a job on this machine, in worker processes that leave no trace in the user's objects.

`profile` describes the workload and the machine, looks into the cache, and measures under the machine's lock.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path

from tula_core.engine.device_lock import device_lock
from tula_core.errors import InputError, RunError
from tula_core.home import check_room
from tula_core.job import Job
from tula_core.profiling.cache import cached_profile, fingerprint, keep_profile
from tula_core.profiling.describe import at_measured_rate, complete, describe
from tula_core.profiling.measure import measure
from tula_core.progress import Event, Listener, silent
from tula_core.records import Hardware, Profile, WorkloadFacts

__all__ = ["at_measured_rate", "complete", "describe", "fingerprint", "measure", "profile"]


def profile(job: Job, *, reprofile: bool = False, listener: Listener = silent) -> tuple[Job, Profile, bool]:
    """Return the job with every recipe field set, its profile, and whether that came from the cache.

    Parameters
    ----------
    reprofile
        Measure anew whatever the cache holds.

    Raises
    ------
    InputError
        The workload cannot be loaded or is wrong.
    RunError
        Measuring failed for another reason than memory; the workers' logs are kept, the message says where.
    """
    resolved, facts, hardware = describe(job, listener)
    key = fingerprint(resolved, facts, hardware)
    found = None if reprofile else cached_profile(key)
    if found is None:
        check_room()
        with device_lock("profile", listener):
            # Another job may have measured the very same while this one waited.
            found = None if reprofile else cached_profile(key)
            if found is None:
                measured = _measured(resolved, facts, hardware, listener)
                keep_profile(measured)
                return at_measured_rate(resolved, measured), measured, False
    message = f"measurements taken from the cache{_compared(facts)}"
    listener(Event(stage="profile", message=message, fraction=1.0, level="info"))
    # The measurements may have been made for a job with another target or price: what is asked now counts.
    resolved = at_measured_rate(resolved, found)
    return resolved, dataclasses.replace(found, job=resolved.to_dict()), True


def _compared(facts: WorkloadFacts) -> str:
    """Say of how many items the content was compared, where that was not all of them."""
    parts = [
        f"{sample.read[-1]:,} of {sample.items:,} items of {role}"
        for role, sample in facts.data_sample.items()
        if sample.read[-1] < sample.items
    ]
    return f" ({' and '.join(parts)} were compared with those measured; --reprofile measures anew)" if parts else ""


def _measured(job: Job, facts: WorkloadFacts, hardware: Hardware, listener: Listener) -> Profile:
    folder = Path(tempfile.mkdtemp(prefix="tula-profile-"))
    try:
        found = measure(job, facts, hardware, listener, folder=folder)
    except (InputError, RunError) as error:
        error.add_note(f"The workers' logs are in {folder}.")
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    return found
