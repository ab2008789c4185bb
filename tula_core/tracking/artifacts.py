"""Tables as MLflow's pages show them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any


def forecast_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return plan.json's rows as CSV with its keys as columns; unknown is empty, lists and objects are JSON."""
    buffer = io.StringIO()
    if rows:
        writer = csv.DictWriter(buffer, fieldnames=["row", *rows[0]], lineterminator="\n")
        writer.writeheader()
        for number, row in enumerate(rows):
            cells = {name: json.dumps(cell) if isinstance(cell, (list, dict)) else cell for name, cell in row.items()}
            writer.writerow({"row": number, **cells})
    return buffer.getvalue()
