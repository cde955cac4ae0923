"""Beam search is transformers' `generate(num_beams=...)`, token for token, whatever memory and batch allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from beam_reference import END_TOKENS, assert_same, reference
from engine_answers import hold_blocks, random_prompts, small_llm
from small_models import ARCHITECTURES, Checkpoint

from kvplan_engine import LLM, BeamSearchParams, EngineError, SamplingParams
from kvplan_engine.blocks.block_table import BlockCopy

VOCAB = 384
LENGTHS = (5, 30, 17)


def make_llm(checkpoint: Checkpoint, *, end_tokens: tuple[int, ...] = END_TOKENS, **settings: Any) -> LLM:
    settings = {"max_num_batched_tokens": 48, "max_num_seqs": 32, "block_size": 8, **settings}
    llm = small_llm(checkpoint.path, **settings)
    llm.engine.model.config = replace(llm.engine.model.config, eos_token_ids=end_tokens)
    return llm


def prompts() -> list[list[int]]:
    return random_prompts(*LENGTHS)


def as_given(token_ids: list[list[int]]) -> list[dict[str, Any]]:
    return [{"prompt_token_ids": ids} for ids in token_ids]


@pytest.mark.parametrize(
    ("name", "length_penalty"), [*((name, 1.0) for name in ARCHITECTURES), ("llama", -0.5), ("qwen3", 2.0)]
)
def test_as_transformers(checkpoints: dict[str, Checkpoint], name: str, length_penalty: float) -> None:
    """Three prompts at once, each by itself in transformers; answers end at different lengths."""
    params = BeamSearchParams(beam_width=4, max_tokens=14, length_penalty=length_penalty)
    llm = make_llm(checkpoints[name])
    hold_blocks(llm, 96)
    outputs = llm.beam_search(as_given(prompts()), params)
    for output, prompt in zip(outputs, prompts(), strict=True):
        assert_same(output.sequences, reference(checkpoints[name].model, prompt, params, END_TOKENS))
    assert llm.get_stats()["num_free_blocks"] == 96


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block_size", "beam_width", "early_stopping"), [(1, 2, True), (16, 1, False), (32, 7, False), (1, 7, False)]
)
def test_widths_and_block_sizes(
    checkpoints: dict[str, Checkpoint], block_size: int, beam_width: int, early_stopping: bool
) -> None:
    params = BeamSearchParams(beam_width=beam_width, max_tokens=12, early_stopping=early_stopping)
    llm = make_llm(checkpoints["qwen3"], block_size=block_size, attention_backend="reference")
    hold_blocks(llm, 1024 // block_size)
    if beam_width == 1:  # transformers takes one beam for greedy search
        greedy = SamplingParams(temperature=0.0, max_tokens=12)
        want = [output.outputs[0].token_ids for output in llm.generate(as_given(prompts()), greedy)]
        for output, prompt, tokens in zip(
            llm.beam_search(as_given(prompts()), BeamSearchParams(1, 12, ignore_eos=True)), prompts(), want, strict=True
        ):
            assert output.sequences[0].tokens[: len(prompt) + len(tokens)] == prompt + tokens
        return
    for output, prompt in zip(llm.beam_search(as_given(prompts()), params), prompts(), strict=True):
        assert_same(output.sequences, reference(checkpoints["qwen3"].model, prompt, params, END_TOKENS))


@pytest.mark.slow
@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize(
    ("num_blocks", "max_num_seqs", "swap_space"), [(7, 32, 0), (11, 32, 0), (11, 32, 1 << 20), (96, 2, 0), (7, 3, 0)]
)
def test_no_beam_is_lost_when_memory_or_seats_are_short(
    checkpoints: dict[str, Checkpoint], num_blocks: int, max_num_seqs: int, swap_space: int, prefix_caching: bool
) -> None:
    """Down to a pool that holds one sequence: beams take turns, are preempted, come back, and nothing changes."""
    params = BeamSearchParams(beam_width=4, max_tokens=16)
    settings = {"max_model_len": 48, "swap_space": swap_space, "enable_prefix_caching": prefix_caching}
    settings["preemption_mode"] = "swap" if swap_space else "recompute"
    llm = make_llm(checkpoints["llama"], max_num_seqs=max_num_seqs, **settings)
    hold_blocks(llm, num_blocks)
    outputs = llm.beam_search(as_given(prompts()), params)
    for output, prompt in zip(outputs, prompts(), strict=True):
        assert_same(output.sequences, reference(checkpoints["llama"].model, prompt, params, END_TOKENS))
    stats = llm.get_stats()
    assert stats["num_free_blocks"] == num_blocks
    assert stats["num_preemptions"] > 0
    assert (stats["num_swaps"] > 0) == (swap_space > 0)


def test_beside_other_requests(checkpoints: dict[str, Checkpoint]) -> None:
    """Searches and samples in one batch, in a pool that preempts both."""
    checkpoint = checkpoints["gpt2"]
    llm = make_llm(checkpoint, enable_prefix_caching=False, max_model_len=48)
    hold_blocks(llm, 8)
    engine = llm.engine
    sampled = SamplingParams(n=2, seed=4, max_tokens=20, ignore_eos=True)
    alone = [tuple(c.token_ids) for c in llm.generate(as_given(prompts()[:1]), sampled)[0].outputs]
    params = BeamSearchParams(beam_width=3, max_tokens=16)
    search = engine.add_beam_search("search", prompts()[1], params)
    samples = engine.add_request("samples", prompts()[0], sampled)
    while engine.has_unfinished_requests():
        engine.step()
    assert [tuple(sequence.output_token_ids) for sequence in samples.sequences] == alone
    assert search.beams is not None
    assert_same(search.beams.finished, reference(checkpoint.model, prompts()[1], params, END_TOKENS))
    assert llm.get_stats()["num_preemptions"] > 0


def test_beams_share_blocks_and_copy_only_tails(checkpoints: dict[str, Checkpoint]) -> None:
    """A fork copies at most its last, partly filled block, and the prompt is held once."""
    llm = make_llm(checkpoints["llama"], end_tokens=(), enable_prefix_caching=False)
    hold_blocks(llm, 96)
    engine = llm.engine
    prompt = np.random.default_rng(1).integers(1, VOCAB, 61).tolist()
    request = engine.add_beam_search("r", prompt, BeamSearchParams(beam_width=6, max_tokens=20))
    num_copies = num_forks = most_blocks = 0
    seen = set(request.sequences)
    while engine.has_unfinished_requests():
        num_copies += count_copies(engine)
        num_forks += len(set(request.sequences) - seen)
        seen |= set(request.sequences)
        most_blocks = max(most_blocks, engine.stats.num_used_blocks)
    assert num_forks >= 6
    assert 0 < num_copies <= num_forks
    alone = -(-(61 + 20) // 8)
    assert most_blocks <= 61 // 8 + 6 * (alone - 61 // 8)
    assert most_blocks < 6 * alone * 0.55


def count_copies(engine: Any) -> int:
    """Run one step; the copies-on-write it began with."""
    run, seen = engine.serving.offload.mover.run, []
    engine.serving.offload.mover.run = lambda transfers: (seen.extend(transfers), run(transfers))
    try:
        engine.step()
    finally:
        engine.serving.offload.mover.run = run
    return sum(isinstance(transfer, BlockCopy) for transfer in seen)


def test_abort_returns_every_block(checkpoints: dict[str, Checkpoint]) -> None:
    llm = make_llm(checkpoints["llama"], enable_prefix_caching=False, max_model_len=96)
    hold_blocks(llm, 13)
    for num_steps in (1, 4, 9, 14):
        llm.engine.add_beam_search("r", prompts()[1], BeamSearchParams(beam_width=4, max_tokens=30, ignore_eos=True))
        for _ in range(num_steps):
            llm.engine.step()
        llm.engine.abort("r")
        assert not llm.engine.has_unfinished_requests()
        assert llm.get_stats()["num_free_blocks"] == 13


def test_answers_end_at_the_longest_sequence_the_engine_serves(checkpoints: dict[str, Checkpoint]) -> None:
    llm = make_llm(checkpoints["llama"], end_tokens=(), max_model_len=36)
    (output,) = llm.beam_search(as_given(prompts()[1:2]), BeamSearchParams(beam_width=2, max_tokens=64))
    assert [len(sequence.tokens) for sequence in output.sequences] == [36, 36]
    assert {sequence.finish_reason for sequence in output.sequences} == {"length"}


def test_bad_values_are_named(checkpoints: dict[str, Checkpoint]) -> None:
    with pytest.raises(EngineError, match="beam_width"):
        BeamSearchParams(beam_width=0)
    with pytest.raises(EngineError, match="max_tokens"):
        BeamSearchParams(max_tokens=0)
    llm = make_llm(checkpoints["gpt2"], end_tokens=(0,))
    with pytest.raises(EngineError, match="vocabulary"):
        llm.beam_search(as_given([[1, 2]]), BeamSearchParams(beam_width=VOCAB))
    assert not llm.engine.has_unfinished_requests()
