"""Tables of cases in ``tests/data``, as ``tests/data/README.md`` describes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def data_rows(name: str) -> Any:
    """The rows, or the tables of rows, of ``tests/data/<name>.json``."""
    return json.loads((Path(__file__).parents[1] / "data" / f"{name}.json").read_text(encoding="utf-8"))
