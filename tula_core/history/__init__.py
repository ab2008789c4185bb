"""History: outcomes from MLflow, predicted against actual, and what can be learnt from them."""

from tula_core.history.retrain import RetrainReport, adopt, retrain
from tula_core.history.sync import sync
from tula_core.history.table import Quality, frame, rows, summary, to_csv

__all__ = ["Quality", "RetrainReport", "adopt", "frame", "retrain", "rows", "summary", "sync", "to_csv"]
