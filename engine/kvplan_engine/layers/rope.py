"""Rotary position embedding: the table of cosines and sines, as the model's config scales it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from kvplan_engine.description.mixers import Rope

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "su", "proportional")
"""The scalings that the tables have."""


def fill_rope_table(table: torch.Tensor, rope: Rope) -> None:
    """Fill ``table`` [max_model_len, rotary_size] float32: cosines in the first half of a row, sines in the second.

    Position p and pair i turn by p * inverse_frequency[i] (Su et al., RoFormer, 2021), pair i being elements i and
    i + rotary_size / 2 of the rotary ones.
    """
    num_positions, size = table.shape
    frequencies, factor = inverse_frequencies(rope, num_positions)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies[None, :]
    table[:, : size // 2] = angles.cos() * factor
    table[:, size // 2 :] = angles.sin() * factor


def inverse_frequencies(rope: Rope, num_positions: int) -> tuple[torch.Tensor, float]:
    """[rotary_size / 2] float32, theta ** (-2 i / rotary_size) scaled by ``rope_type``; and a factor of the table.

    num_positions: the longest context that is served. longrope takes its long factors where that exceeds the original
    context, for all sequences alike, so that keys in the cache stay right as a sequence grows. dynamic begins to scale
    behind the model's own positions, which no sequence exceeds.
    """
    size, scaling = rope.rotary_size, rope.scaling
    exponents = torch.arange(0, size, 2, dtype=torch.int64).float() / size
    frequencies = 1.0 / (rope.theta**exponents)
    match scaling.get("rope_type", "default"):
        case "proportional":
            return _proportional(frequencies, scaling), 1.0
        case "linear":
            return frequencies / float(scaling["factor"]), 1.0
        case "llama3":
            return _llama3(frequencies, scaling), 1.0
        case "yarn":
            return _yarn(frequencies, rope), _yarn_factor(scaling)
        case "longrope" | "su":
            return _longrope(frequencies, scaling, num_positions), _longrope_factor(scaling)
    return frequencies, 1.0


def _llama3(frequencies: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    """Llama 3.1's rule: long wavelengths are slowed by ``factor``, short ones kept, those between blended.

    Formula as in Meta's published model code for Llama 3.1 (``apply_scaling``).
    """
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
    wavelengths = 2 * math.pi / frequencies
    slowed = torch.where(wavelengths > original / low, frequencies / factor, frequencies)
    blend = (original / wavelengths - low) / (high - low)
    blended = (1 - blend) * frequencies / factor + blend * frequencies
    between = (wavelengths <= original / low) & (wavelengths >= original / high)
    return torch.where(between, blended, slowed)


def _proportional(frequencies: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    """Gemma 4's: the first pairs turn as always, those behind ``partial_rotary_factor`` of the head do not."""
    turning = int(float(scaling.get("partial_rotary_factor", 1.0)) * 2 * frequencies.shape[0] // 2)
    slowed = frequencies / float(scaling.get("factor", 1.0))
    return torch.where(torch.arange(frequencies.shape[0]) < turning, slowed, 0.0)


def _yarn(frequencies: torch.Tensor, rope: Rope) -> torch.Tensor:
    """YaRN (Peng et al., 2023, section 3.2): pairs that turn often are kept, those that turn seldom slowed."""
    scaling, pairs = rope.scaling, frequencies.shape[0]
    original = float(scaling["original_max_position_embeddings"])

    def pair_that_turns(rotations: float) -> float:
        turned = math.log(original / (rotations * 2 * math.pi))
        return rope.rotary_size * turned / (2 * math.log(rope.theta))

    low = pair_that_turns(float(scaling.get("beta_fast") or 32))
    high = pair_that_turns(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_size - 1)
    slowed = ((torch.arange(pairs, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    return frequencies / float(scaling["factor"]) * slowed + frequencies * (1 - slowed)


def _yarn_factor(scaling: Mapping[str, Any]) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    factor = float(scaling["factor"])

    def of(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    mscale, of_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return of(mscale) / of(of_all) if mscale and of_all else of(1.0)


def _longrope(frequencies: torch.Tensor, scaling: Mapping[str, Any], num_positions: int) -> torch.Tensor:
    """LongRoPE (Ding et al., 2024): each pair has a divisor of its own, for short and for long contexts."""
    is_long = num_positions > int(scaling["original_max_position_embeddings"])
    return frequencies / torch.tensor(scaling["long_factor" if is_long else "short_factor"], dtype=torch.float32)


def _longrope_factor(scaling: Mapping[str, Any]) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    factor, original = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
