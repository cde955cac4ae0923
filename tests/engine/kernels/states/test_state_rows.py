"""Where the rows of a state lie in a sequence's blocks."""

from __future__ import annotations

import pytest
import torch

from kvplan_engine.blocks.layout import plan_layout
from kvplan_engine.description.kept_units import KeptUnit
from kvplan_engine.description.mixers import FULL, STATE
from kvplan_engine.kernels.states.rows import StateRows, StateStep

_UNITS = [
    KeptUnit(0, "conv", STATE, 10, num_rows=3, dtype="bfloat16"),
    KeptUnit(0, "recurrent", STATE, 6, num_rows=11, dtype="float32"),
    KeptUnit(1, "keys", FULL, 12),
    KeptUnit(1, "values", FULL, 12),
    KeptUnit(2, "conv", STATE, 10, num_rows=3, dtype="bfloat16"),
    KeptUnit(2, "recurrent", STATE, 6, num_rows=11, dtype="float32"),
]


def rows_of_all_parts() -> tuple[torch.Tensor, list[StateRows], int]:
    """A pool of zeros, the states that lie in it, and the blocks of a bundle."""
    layout = plan_layout(_UNITS, 4, lambda name: {"bfloat16": 2}.get(name, 4))
    states = layout.groups[-1]
    blocks = torch.zeros(3 * states.width, layout.block_bytes, dtype=torch.uint8)
    rows = []
    for unit in _UNITS:
        if unit.kept == STATE:
            place = states.places[unit.layer, unit.part]
            dtype = getattr(torch, unit.dtype)
            rows.append(StateRows(blocks, dtype, unit.num_rows, unit.row_elements, place.slot, place.offset))
    return blocks, rows, states.width


def test_parts_keep_what_is_stored_and_do_not_touch_each_other() -> None:
    blocks, parts, width = rows_of_all_parts()
    assert width > 1
    bundles = torch.randperm(2 * width, generator=torch.Generator().manual_seed(0)).to(torch.int32).view(2, width)
    stored = {}
    for sequence, bundle in enumerate(bundles):
        for index, part in enumerate(parts):
            state = torch.randn(part.num_rows, part.row_elements).to(part.dtype)
            part.store(bundle, state)
            stored[sequence, index] = state
    for (sequence, index), state in stored.items():
        assert torch.equal(parts[index].load(bundles[sequence]), state)
    assert not blocks[2 * width :].any()  # blocks of nobody


def test_a_row_never_straddles_two_blocks() -> None:
    blocks, parts, width = rows_of_all_parts()
    bundle = torch.arange(width, dtype=torch.int32)
    for part in parts:
        for row in range(part.num_rows):
            blocks.zero_()
            state = torch.zeros(part.num_rows, part.row_elements)
            state[row] = 1.0
            part.store(bundle, state)
            assert blocks.any(dim=1).sum() == 1


def test_which_sequences_have_tokens_and_which_are_new() -> None:
    step = StateStep(
        tables=torch.tensor([[4, 5], [0, 1], [-1, 7], [2, 3]], dtype=torch.int32),
        query_starts=torch.tensor([0, 2, 2, 3, 6], dtype=torch.int32),
        positions=torch.tensor([0, 1, 0, 7, 8, 9]),
    )
    assert step.sequences() == [(0, 0, 2), (3, 3, 6)]
    assert [step.is_new(first) for _, first, _ in step.sequences()] == [True, False]
    assert (step.num_seqs, step.num_tokens) == (4, 6)


def test_a_sequence_that_lacks_a_block_is_an_error() -> None:
    _, parts, width = rows_of_all_parts()
    with pytest.raises(IndexError):
        parts[-1].load(torch.arange(width - 1, dtype=torch.int32))
