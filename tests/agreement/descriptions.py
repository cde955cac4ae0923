"""What planner and engine each make of a config, in the same words: parameters, sizes, what every layer keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.kvplan.layout import layer_parts
from kvplan_engine.description.kept_units import KeptUnit, kept_units
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.parameters import num_parameters

ENCODER_TOKENS = 100
"""Of a sequence, where the architecture does not fix them."""
_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "fp8": 1, "float8_e4m3fn": 1}

LayerParts = list[tuple[str, int | None, int, int]]
"""What one layer keeps, in order: kind, tokens of the window or chunk, bytes of a unit, units in a row."""


def planned_sizes(spec: ModelSpec) -> dict[str, Any]:
    return {
        "num_parameters": spec.num_parameters,
        "num_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "dtype": spec.dtype,
        "tie_word_embeddings": spec.tie_word_embeddings,
    }


def described_sizes(model: ModelDescription) -> dict[str, Any]:
    return {
        "num_parameters": num_parameters(model),
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_position_embeddings,
        "dtype": model.dtype,
        "tie_word_embeddings": model.tie_word_embeddings,
    }


def planned_parts(spec: ModelSpec, *, block_size: int, kv_dtype: str) -> list[LayerParts]:
    cache = CacheSettings(model_dtype="bfloat16", kv_dtype=kv_dtype)
    parts = [layer_parts(layer, cache, block_size, ENCODER_TOKENS) for layer in spec.layers]
    return [[(part.kept.kind, part.kept.tokens, part.unit_bytes, part.num_rows) for part in layer] for layer in parts]


def described_parts(model: ModelDescription, *, block_size: int, kv_dtype: str) -> list[LayerParts]:
    layers: list[LayerParts] = [[] for _ in model.layers]
    dtypes = {"kv": kv_dtype, "model": "bfloat16"}
    for unit in kept_units(model, encoder_tokens=ENCODER_TOKENS):
        layers[unit.layer].append(_part(unit, block_size, dtypes))
    return layers


def _part(unit: KeptUnit, block_size: int, dtypes: Mapping[str, str]) -> tuple[str, int | None, int, int]:
    row_bytes = unit.row_elements * _BYTES[dtypes.get(unit.dtype, unit.dtype)]
    if unit.num_rows:
        return unit.kept.kind, unit.kept.tokens, row_bytes, unit.num_rows
    rows = -(-block_size // unit.tokens_per_row)
    return unit.kept.kind, unit.kept.tokens, row_bytes * rows, 1
