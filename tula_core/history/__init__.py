"""History: outcomes from MLflow, predicted against actual, and what can be learnt from them."""

from tula_core.history.retrain import RetrainReport, adopt, retrain
from tula_core.history.sync import sync
from tula_core.history.table import Quality, summary, to_csv

__all__ = ["Quality", "RetrainReport", "adopt", "retrain", "summary", "sync", "to_csv"]
