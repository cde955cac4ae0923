"""The gated delta rule, in every build: against its definition, and that against transformers' functions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from state_cases import StateCase, assert_only_rows_changed, random_rows, rows_of_sequences, state_case
from torch.nn import functional
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from kvplan_engine.kernels.cpu.states import CpuStates
from kvplan_engine.kernels.states.operations import DeltaRule, DeltaTokens, TorchStates
from kvplan_engine.kernels.states.rows import StateStep


@dataclass(frozen=True, slots=True)
class Sizes:
    """decays: of a token's "heads" or "elements", or "fixed"; has_strength: gated delta, otherwise linear attention."""

    heads: int
    key_heads: int
    key_size: int
    value_size: int
    decays: str = "heads"
    has_strength: bool = True


SIZES = {
    "qwen3.5": Sizes(4, 2, 128, 128),
    "odd": Sizes(3, 1, 37, 41),
    "narrow": Sizes(2, 2, 3, 2),
    "kimi": Sizes(2, 2, 128, 64, "elements"),
    "kimi-odd": Sizes(3, 3, 20, 20, "elements"),
    "lightning": Sizes(2, 2, 24, 24, "fixed", has_strength=False),
}


def rule_of(sizes: Sizes) -> DeltaRule:
    generator = torch.Generator().manual_seed(sizes.heads)
    columns = {"heads": sizes.heads, "elements": sizes.heads * sizes.key_size, "fixed": 0}[sizes.decays]
    return DeltaRule(
        *(sizes.heads, sizes.key_heads, sizes.key_size, sizes.value_size),
        rate=torch.rand(sizes.heads, generator=generator) * 0.5,
        decay_bias=torch.randn(columns, generator=generator) if columns else None,
        scale=sizes.key_size**-0.5,
        strength_scale=2.0 if sizes.heads == 3 else 1.0,
    )


def tokens_of(rule: DeltaRule, dtype: torch.dtype, *, has_strength: bool = True) -> DeltaTokens:
    keys, values = rule.key_heads * rule.key_size, rule.num_heads * rule.value_size
    bias = rule.decay_bias
    return DeltaTokens(
        random_rows(keys, dtype, seed=1),
        random_rows(keys, dtype, seed=2),
        random_rows(values, dtype, seed=3),
        random_rows(values, dtype, seed=4),
        None if bias is None else random_rows(len(bias), dtype, seed=5),
        random_rows(rule.num_heads, dtype, seed=6) if has_strength else None,
    )


def case_of(rule: DeltaRule, dtype: torch.dtype) -> StateCase:
    return state_case(rule.num_heads * rule.value_size, rule.key_size, dtype, rows_per_block=7)


def widened(tokens: DeltaTokens) -> DeltaTokens:
    names = ("query", "key", "value", "out", "decay", "strength")
    each = {name: getattr(tokens, name) for name in names}
    return DeltaTokens(**{name: None if rows is None else rows.float() for name, rows in each.items()})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SIZES)
def test_equals_the_definition(kernels: CpuStates, name: str, dtype: torch.dtype) -> None:
    rule = rule_of(SIZES[name])
    tokens = tokens_of(rule, dtype, has_strength=SIZES[name].has_strength)
    case, other = case_of(rule, torch.float32), case_of(rule, torch.float32)
    want = widened(tokens)
    TorchStates().delta_rule(rule, want, other.rows, other.step)
    kernels.delta_rule(rule, tokens, case.rows, case.step)
    mine = rows_of_sequences()
    limit = 3e-5 if dtype == torch.float32 else 2**-7
    error = (tokens.out.float() - want.out).abs()[mine]
    assert (error <= limit * (1 + want.out.abs())[mine]).all()
    for found, expected in zip(case.states(), other.states(), strict=True):
        assert torch.allclose(found, expected, rtol=1e-4, atol=3e-5, equal_nan=True)
    assert_only_rows_changed(case)
    in_place = case.again()
    kernels.delta_rule(rule, replace(tokens, out=tokens.value), in_place.rows, in_place.step)
    assert torch.equal(tokens.value[mine], tokens.out[mine])


@pytest.mark.parametrize("name", ["qwen3.5", "odd"])
def test_states_of_bfloat16(kernels: CpuStates, name: str) -> None:
    rule = rule_of(SIZES[name])
    tokens = tokens_of(rule, torch.bfloat16)
    case, other = case_of(rule, torch.bfloat16), case_of(rule, torch.bfloat16)
    want = widened(tokens)
    TorchStates().delta_rule(rule, want, other.rows, other.step)
    kernels.delta_rule(rule, tokens, case.rows, case.step)
    mine = rows_of_sequences()
    assert ((tokens.out.float() - want.out).abs() <= 2**-7 * (1 + want.out.abs()))[mine].all()
    for found, expected in zip(case.states(), other.states(), strict=True):
        assert torch.allclose(found, expected, rtol=2**-7, atol=2**-7, equal_nan=True)
    assert_only_rows_changed(case)


def test_the_definition_is_that_of_transformers() -> None:
    rule = rule_of(Sizes(4, 2, 16, 24))
    tokens = tokens_of(rule, torch.float32)
    assert tokens.decay is not None
    assert tokens.strength is not None
    assert rule.decay_bias is not None
    case = case_of(rule, torch.float32)
    before = case.states()
    TorchStates().delta_rule(rule, tokens, case.rows, case.step)
    for sequence, begin, end in case.step.sequences():
        query, key = (each[None, begin:end].unflatten(-1, (-1, 16)) for each in (tokens.query, tokens.key))
        value = tokens.value[None, begin:end].unflatten(-1, (-1, 24))
        decay = -rule.rate * functional.softplus(tokens.decay[None, begin:end] + rule.decay_bias)
        start = None if case.step.is_new(begin) else before[sequence - (sequence > 5)].view(1, 4, 24, 16).mT
        out, state = torch_recurrent_gated_delta_rule(
            query, key, value, decay, rule.strength_scale * torch.sigmoid(tokens.strength[None, begin:end]),
            initial_state=start, output_final_state=True, use_qk_l2norm_in_kernel=True,
        )  # fmt: skip
        assert torch.allclose(tokens.out[begin:end], out[0].flatten(1), atol=1e-5)
        found = case.rows.load(case.step.tables[sequence]).view(4, 24, 16)
        assert torch.allclose(found.mT, state[0], atol=1e-5)


def test_pieces_of_a_text_give_what_all_of_it_gives(kernels: CpuStates) -> None:
    rule = rule_of(SIZES["kimi"])
    tokens, number = tokens_of(rule, torch.float32), 30
    case = case_of(rule, torch.float32)
    results = []
    for pieces in ([number], [1, 1, 13, 2, 12, 1]):
        found, begin = torch.zeros(number, tokens.out.shape[1]), 0
        for length in pieces:
            starts = torch.tensor([0, length], dtype=torch.int32)
            step = StateStep(case.step.tables[1:2], starts, torch.arange(begin, begin + length))
            piece = slice(begin, begin + length)
            rows = {name: getattr(tokens, name)[piece] for name in ("query", "key", "value", "decay", "strength")}
            kernels.delta_rule(rule, DeltaTokens(**rows, out=found[piece]), case.rows, step)
            begin += length
        results.append((found, case.rows.load(case.step.tables[1])))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_threads_give_the_same_numbers(kernels: CpuStates) -> None:
    rule = rule_of(SIZES["odd"])
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            tokens, case = tokens_of(rule, torch.float32), case_of(rule, torch.float32)
            kernels.delta_rule(rule, tokens, case.rows, case.step)
            results.append((tokens.out[rows_of_sequences()], case.rows.blocks))
    finally:
        torch.set_num_threads(before)
    for out, blocks in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(blocks, results[0][1])


def test_wrong_arguments(kernels: CpuStates) -> None:
    rule = rule_of(SIZES["narrow"])
    tokens, case = tokens_of(rule, torch.float32), case_of(rule, torch.float32)
    with pytest.raises(ValueError, match="query is"):
        kernels.delta_rule(rule, replace(tokens, query=tokens.query[:, :-1]), case.rows, case.step)
    with pytest.raises(ValueError, match="come with a bias"):
        kernels.delta_rule(rule, replace(tokens, decay=None), case.rows, case.step)
    case.step.tables[1, 1] = len(case.rows.blocks)
    with pytest.raises(IndexError, match="outside of its pool"):
        kernels.delta_rule(rule, tokens, case.rows, case.step)
    assert torch.equal(case.rows.blocks, case.before)
