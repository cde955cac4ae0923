"""Rotary position embedding: the table of cosines and sines, as the model's config scales it."""

from __future__ import annotations

import math
from typing import Any

import torch


def fill_rope_table(table: torch.Tensor, parameters: dict[str, Any]) -> None:
    """Fill ``table`` [max_model_len, head_size] float32: cosines in the first half of a row, sines in the second.

    Position p and pair i turn by p * inverse_frequency[i] (Su et al., RoFormer, 2021), pair i being elements i and
    i + head_size / 2.
    """
    num_positions, head_size = table.shape
    frequencies = inverse_frequencies(head_size, parameters)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies[None, :]
    table[:, : head_size // 2] = angles.cos()
    table[:, head_size // 2 :] = angles.sin()


def inverse_frequencies(head_size: int, parameters: dict[str, Any]) -> torch.Tensor:
    """[head_size / 2] float32: theta ** (-2 i / head_size), scaled by ``rope_type`` default, linear or llama3."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
    frequencies = 1.0 / (float(parameters["rope_theta"]) ** exponents)
    if parameters["rope_type"] == "linear":
        return frequencies / float(parameters["factor"])
    if parameters["rope_type"] == "llama3":
        return _llama3(frequencies, parameters)
    return frequencies


def _llama3(frequencies: torch.Tensor, parameters: dict[str, Any]) -> torch.Tensor:
    """Llama 3.1's rule: long wavelengths are slowed by ``factor``, short ones kept, those between blended.

    Formula as in Meta's published model code for Llama 3.1 (``apply_scaling``).
    """
    factor = float(parameters["factor"])
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    original = float(parameters["original_max_position_embeddings"])
    wavelengths = 2 * math.pi / frequencies
    slowed = torch.where(wavelengths > original / low, frequencies / factor, frequencies)
    blend = (original / wavelengths - low) / (high - low)
    blended = (1 - blend) * frequencies / factor + blend * frequencies
    between = (wavelengths <= original / low) & (wavelengths >= original / high)
    return torch.where(between, blended, slowed)
