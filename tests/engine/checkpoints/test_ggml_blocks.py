"""ggml's blocks taken apart, beside the gguf package's own dequantisation."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from kvplan.estimate.kvplan import held_weights
from kvplan_engine.checkpoints.quantised.ggml_blocks import BLOCK_FORMATS

NAMES = {kind: gguf.GGMLQuantizationType(kind).name for kind in BLOCK_FORMATS}
HALVES = {12: (0, 2), 13: (0, 2), 3: (0, 2), 7: (0, 2), 14: (208,), 39: ()}
"""Where a block has numbers in half precision; at its beginning where nothing else is said. MXFP4 has none."""


def random_blocks(kind: int, num_rows: int, num_blocks: int) -> np.ndarray:
    """uint8 [num_rows, bytes of a row]: any codes, and scales that are numbers."""
    rng = np.random.default_rng(kind)
    blocks = rng.integers(0, 256, (num_rows * num_blocks, BLOCK_FORMATS[kind].num_bytes), dtype=np.uint8)
    for at in HALVES.get(kind, (0,)):
        scales = rng.normal(0, 0.02, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    if kind == 39:  # an exponent, of which the last is no number
        blocks[:, 0] = rng.integers(0, 255, len(blocks))
    return blocks.reshape(num_rows, -1)


@pytest.mark.parametrize("kind", list(BLOCK_FORMATS), ids=NAMES.get)
def test_values_are_those_of_ggml(kind: int) -> None:
    rows = random_blocks(kind, 7, 3)
    weight = BLOCK_FORMATS[kind].read(rows)
    want = gguf.dequantize(rows, gguf.GGMLQuantizationType(kind))
    np.testing.assert_array_equal(weight.dequantised().numpy(), want)


@pytest.mark.parametrize("kind", list(BLOCK_FORMATS), ids=NAMES.get)
def test_bytes_are_a_formula_on_both_sides(kind: int) -> None:
    weight = BLOCK_FORMATS[kind].read(random_blocks(kind, 5, 2))
    outputs, inputs = weight.num_outputs, weight.num_inputs
    assert weight.num_bytes == BLOCK_FORMATS[kind].held.num_bytes(outputs, inputs)
    assert weight.num_bytes == held_weights.GGUF_TYPES[NAMES[kind]].num_bytes(outputs * inputs)
    assert set(held_weights.GGUF_TYPES) == set(NAMES.values())


@pytest.mark.parametrize("kind", list(BLOCK_FORMATS), ids=NAMES.get)
def test_plain_weights_have_the_same_values_and_the_bytes_predicted_for_gpus(kind: int) -> None:
    weight = BLOCK_FORMATS[kind].read(random_blocks(kind, 5, 2))
    assert weight.plain.bits in (4, 8) and weight.plain.block_scales is None
    assert weight.plain.dequantised().equal(weight.dequantised())
    outputs, inputs = weight.num_outputs, weight.num_inputs
    assert weight.plain.num_bytes == BLOCK_FORMATS[kind].held.plain.num_bytes(outputs, inputs)
    assert weight.plain.num_bytes == held_weights.GGUF_TYPES[NAMES[kind]].on_gpu.num_bytes(outputs * inputs)
