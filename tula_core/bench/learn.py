"""Learns the priors of a kind from a folder of measured data and writes the file that the models load.

    python -m tula_core.bench.learn KIND --data DIR [--out FILE]

Without ``--out`` the package's own file is replaced. The file holds means, spreads and shapes; no row, network or
cluster can be recovered from it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tula_core.bench import KINDS, load_kind
from tula_core.home import write_atomic


def main() -> None:
    """Learn and write the priors of one kind."""
    parser = argparse.ArgumentParser(prog="python -m tula_core.bench.learn", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--data", type=Path, required=True, help="folder of CSV files")
    parser.add_argument("--out", type=Path, help="file to write instead of the package's own")
    asked = parser.parse_args()
    kind = load_kind(asked.kind)
    if kind.learn is None or kind.priors is None:
        parser.error(f"{kind.name} has no priors to learn")
    out = asked.out or Path(__file__).parents[1] / kind.priors
    write_atomic(out, json.dumps(kind.learn(asked.data), indent=2) + "\n")
    print(f"Priors of {kind.name} written to {out}")


if __name__ == "__main__":
    main()
