"""``tests/data/counted_configs.json``: small configs, and what the classes of engines make of them, a row for each.

num_parameters: of the class, ``note`` says where it is not all that the class has. kept: runs of equal layers, as
[layers, kind, elements of a token or of a state, window].
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from kept_elements import Kept

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
"""Sizes that most of the rows share."""


class CountedConfig(NamedTuple):
    """A row. kept: what each layer keeps."""

    config: dict[str, Any]
    num_parameters: int
    kept: Kept


def _read(row: dict[str, Any]) -> CountedConfig:
    kept = [(kind, elements, window) for count, kind, elements, window in row["kept"] for _ in range(count)]
    return CountedConfig(row["config"], row["num_parameters"], kept)


_FILE = Path(__file__).parents[1] / "data" / "counted_configs.json"
COUNTED = {row["name"]: _read(row) for row in json.loads(_FILE.read_text(encoding="utf-8"))}


def counted_config(name: str, **changed: Any) -> dict[str, Any]:
    """Return the config of a row, with keys ``changed``."""
    return {**COUNTED[name].config, **changed}
