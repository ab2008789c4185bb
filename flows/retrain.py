"""The flow ``retrain``: refit the predictor to all recorded outcomes, promote it only if it is better."""

from __future__ import annotations

from typing import Any

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from flows import plain_errors
from flows.show_history import learnt_lines
from flows.signals import keep_stopping_on_signals
from flows.watch import watcher_or_log
from tula_core import api

plain_errors.install()


@task(name="retrain", persist_result=True, result_serializer="json", cache_policy=NO_CACHE)
def retrain_task() -> dict[str, Any]:
    """Fit, check on jobs left out, decide."""
    watcher = watcher_or_log(get_run_logger())
    with keep_stopping_on_signals():
        report = api.retrain(listener=watcher.event)
    return {
        "promoted": report.promoted,
        "reason": report.reason,
        "champion_error": dict(report.champion_error or {}),
        "challenger_error": dict(report.challenger_error or {}),
        "methods": list(learnt_lines(report)),
    }


@flow(name="retrain", persist_result=True, result_serializer="json")
def retrain() -> dict[str, Any]:
    """Retrain the predictor; a challenger that is no better is a good end of the run too.

    Returns
    -------
    dict
        ``promoted``, ``reason``, the errors of champion and challenger by quantity, and in ``methods`` what was
        learnt of methods, in words.
    """
    report = retrain_task()
    verdict = "promoted" if report["promoted"] else "not promoted"
    told = "\n".join([report["reason"], "", *report["methods"]]).rstrip()
    create_markdown_artifact(
        markdown=f"# Challenger {verdict}\n\n{told}\n",
        key="retrain",
        description="Retraining of the predictor",
    )
    return report
