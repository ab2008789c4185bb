"""Profiles kept under fingerprints of all they depend on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tula_core.errors import InputError
from tula_core.home import state_folder
from tula_core.job import Job
from tula_core.records import Hardware, Profile, WorkloadFacts, load, save

_POLL_S = 0.1


def fingerprint(job: Job, facts: WorkloadFacts, hardware: Hardware) -> str:
    """Return 32 hex digits over all that a measurement depends on: code, data, machine, versions, recipe, probe.

    Prices, objective, target, deadline and the job's name do not enter: a plan for another price needs no new probe.
    """
    cluster = job.cluster
    matters = {
        "schema_version": Profile.SCHEMA_VERSION,
        "workload": facts.name,
        "code": facts.code_fingerprint,
        "data": [facts.train_samples, facts.eval_samples, list(facts.sample_shape), facts.sample_bytes],
        "metric": facts.metric,
        "hardware": hardware.fingerprint,
        "versions": dict(hardware.versions),
        "recipe": job.recipe.model_dump(mode="json"),
        "mitigation": job.mitigation,
        "mitigation_options": job.mitigation_options,  # pilots train by them
        "cluster": [cluster.nodes, cluster.processes_per_node, hardware.threads_per_process],
        "probe": job.probe.seconds,
        "limits": [job.constraints.memory, job.constraints.max_local_batch],
        "precisions": sorted(job.other_precisions),
        "samples": job.samples,
        "seed": job.seed,
    }
    return hashlib.sha256(json.dumps(matters, sort_keys=True).encode()).hexdigest()[:32]


def cached_profile(key: str) -> Profile | None:
    """Return the profile kept under ``key``; None where there is none, or one that another release wrote."""
    path = _path(key)
    if not path.exists():
        return None
    try:
        profile = load(Profile, path)
    except InputError:
        return None
    return profile if profile.fingerprint == key else None


def keep_profile(profile: Profile) -> Path:
    """Keep a profile under its fingerprint and return the file."""
    path = _path(profile.fingerprint)
    save(profile, path)
    return path


def _path(key: str) -> Path:
    return state_folder("cache", "profiles") / f"{key}.json"
