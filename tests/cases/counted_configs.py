"""``tests/data/counted_configs.json``: configs, and what the classes of engines make of them, a row for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvplan.catalog.spec import LatentAttention, ModelSpec, SoftmaxAttention, StateMixer

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
_FILE = Path(__file__).parents[1] / "data" / "counted_configs.json"
COUNTED: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads(_FILE.read_text(encoding="utf-8"))}
"""By name, as ``tests/data/README.md`` describes them."""


def counted_config(name: str, **changed: Any) -> dict[str, Any]:
    """Return the config of a row, with keys ``changed``."""
    return {**COUNTED[name]["config"], **changed}


def with_text(config: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """Return ``config`` with keys ``changed``: those of the text's section, where it has one."""
    if "text_config" not in config:
        return {**config, **changed}
    return {**config, "text_config": {**config["text_config"], **changed}}


Kept = list[tuple[str, int, int | None]]


def kept(spec: ModelSpec) -> Kept:
    """Of each layer: elements of a token or of a state, and its window."""
    found: Kept = []
    for layer in spec.layers:
        match layer.mixer:
            case SoftmaxAttention() as mixer:
                found.append(("softmax", mixer.cache_elements_per_token, mixer.window_tokens))
            case LatentAttention() as mixer:
                found.append(("latent", mixer.cache_elements_per_token, None))
            case StateMixer() as mixer:
                heads, rows, columns = mixer.recurrent_shape
                found.append(("state", heads * rows * columns, None))
    return found
