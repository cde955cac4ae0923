"""A small config of every architecture that ships no profile. They are not the shapes of any published model.

A row of ``tests/data/small_configs.json`` says what differs from the sizes that most share, null where a key is left
out, or has the whole config.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parents[1] / "data" / "small_configs.json"


def small_configs() -> dict[str, dict[str, Any]]:
    """By architecture."""
    table = json.loads(_FILE.read_text(encoding="utf-8"))
    configs = {}
    for row in table["rows"]:
        config = row.get("whole") or table["base"] | row["own"]
        named = {"architectures": [row["architecture"]], **config}
        configs[row["architecture"]] = {key: value for key, value in named.items() if value is not None}
    return configs
