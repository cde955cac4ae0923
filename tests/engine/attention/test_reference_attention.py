"""The definition itself, against torch's own attention over the same keys and values laid out in one piece."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from paged_cases import LAYER, PADDING_ROWS, Case, Shape, attend, make_case

from kvplan_engine.attention.backend import KvSlots
from kvplan_engine.attention.layer_cache import uniform_cache
from kvplan_engine.attention.reference import ReferenceBackend


def contiguous(case: Case, sequence: int, index: int) -> torch.Tensor:
    """One sequence's keys (index 0) or values (1) as [num_heads, kv_len, d], read token by token."""
    shape = case.shape
    kv_len = int(case.metadata.seq_lens[sequence])
    rows = []
    for position in range(kv_len):
        block = int(case.metadata.block_tables[sequence, position // shape.block_size])
        rows.append(case.kv[block, LAYER, index, :, position % shape.block_size])
    return torch.stack(rows, dim=1).repeat_interleave(shape.num_heads // shape.num_kv_heads, dim=0)


def visible(query_len: int, kv_len: int, window: int | None) -> torch.Tensor:
    """The mask spelled out position by position."""
    mask = torch.zeros(query_len, kv_len, dtype=torch.bool)
    for i in range(query_len):
        position = kv_len - query_len + i
        for key in range(kv_len):
            mask[i, key] = key <= position and (window is None or position - key < window)
    return mask


@pytest.mark.parametrize("window", [None, 5, 100])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_against_torch(block_size: int, window: int | None) -> None:
    shape = Shape(6, 2, 16, block_size)
    lengths = [(1, 1), (7, 7), (1, 30), (4, 19)]
    case = make_case(shape, lengths)
    result = attend(ReferenceBackend(), Case(Shape(6, 2, 16, block_size, window), case.kv, case.query, case.metadata))
    start = 0
    for sequence, (query_len, kv_len) in enumerate(lengths):
        query = case.query[start : start + query_len].transpose(0, 1)
        expected = torch.nn.functional.scaled_dot_product_attention(
            query,
            contiguous(case, sequence, 0),
            contiguous(case, sequence, 1),
            attn_mask=visible(query_len, kv_len, window),
        )
        torch.testing.assert_close(result[start : start + query_len], expected.transpose(0, 1), rtol=1e-5, atol=1e-6)
        start += query_len


def test_softcap_bounds_the_scores() -> None:
    """With a tiny cap all scores are nearly equal: the result is the mean of the values."""
    case = make_case(Shape(2, 2, 8, softcap=1e-6), [(1, 10)])
    result = attend(ReferenceBackend(), case)[0]
    torch.testing.assert_close(result, contiguous(case, 0, 1).mean(dim=1), rtol=1e-4, atol=1e-5)


def test_a_sink_takes_weight_and_has_no_value() -> None:
    """With a sink of logit s the result shrinks by sigmoid(logsumexp(scores) - s): Xiao et al., 2023."""
    case = make_case(Shape(4, 2, 8), [(3, 10)])
    sinks = torch.tensor([0.0, 3.0, -2.0, float("-inf")])
    plain, with_sinks = attend(ReferenceBackend(), case), attend(ReferenceBackend(), replace(case, sinks=sinks))
    scores = case.query[:3].transpose(0, 1) @ contiguous(case, 0, 0).transpose(1, 2) * 8**-0.5
    totals = scores.masked_fill(~visible(3, 10, None), float("-inf")).logsumexp(-1)
    share = torch.sigmoid(totals - sinks[:, None]).transpose(0, 1)
    torch.testing.assert_close(with_sinks[:3], plain[:3] * share[:, :, None], rtol=1e-5, atol=1e-6)


def test_written_tokens_are_what_is_attended_to() -> None:
    """write_kv and attend agree about where a token lies; a slot of -1 is written nowhere."""
    backend = ReferenceBackend()
    case = make_case(Shape(4, 2, 8, 4), [(6, 6)])
    keys, values = torch.randn(6 + PADDING_ROWS, 2, 8), torch.randn(6 + PADDING_ROWS, 2, 8)
    table = case.metadata.block_tables[0]
    slots = torch.full((6 + PADDING_ROWS,), -1)
    slots[:6] = torch.tensor([int(table[p // 4]) * 4 + p % 4 for p in range(6)])
    before = case.kv.isnan().sum()
    backend.write_kv(keys, values, uniform_cache(case.kv, LAYER), KvSlots(slots))
    assert case.kv.isnan().sum() == before
    assert torch.equal(contiguous(case, 0, 0), keys[:6].transpose(0, 1).repeat_interleave(2, dim=0))
    assert torch.equal(contiguous(case, 0, 1), values[:6].transpose(0, 1).repeat_interleave(2, dim=0))
