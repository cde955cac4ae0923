"""Greedy answers of an engine, over a pool as small as a test needs it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from small_models import VOCAB_SIZE

from kvplan_engine import LLM, SamplingParams

NUM_TOKENS = 20
PROMPT_LENGTHS = (1, 5, 17, 33, 64, 40)  # ragged, a single token, longer than a chunk


class ByteTokenizer:
    """Token i is byte i mod 256, as in a byte-level vocabulary; counts what it is asked to decode."""

    def __init__(self) -> None:
        self.num_decoded = 0

    def decode(self, token_ids: list[int], **options: Any) -> str:
        self.num_decoded += len(token_ids)
        return bytes(token % 256 for token in token_ids).decode("utf-8", errors="replace")


def answers_with_text(llm: LLM, prompts: list[list[int]], params: Sequence[SamplingParams]) -> list[tuple[Any, ...]]:
    """Of each prompt's first sample: tokens, why and with what it ended, text, log-probabilities.

    With a tokenizer put into an engine whose checkpoint has none.
    """
    llm.engine._stops._tokenizer = ByteTokenizer()
    requests = [
        llm.engine.add_request(f"r{i}", prompt, own)
        for i, (prompt, own) in enumerate(zip(prompts, params, strict=True))
    ]
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
    found = []
    for request in requests:
        one = request.sequences[0]
        text = None if one.detokenizer is None else one.detokenizer.text
        found.append((one.output_token_ids, one.finish_reason, one.stop_match, text, one.logprobs))
    return found


def in_planes(blocks: torch.Tensor, num_planes: int) -> torch.Tensor:
    """A copy of ``blocks`` [num_blocks, size] as a pool [num_planes, num_blocks, size / num_planes]."""
    return blocks.view(len(blocks), num_planes, -1).transpose(0, 1).contiguous()


def ragged_prompts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(1, VOCAB_SIZE, length).tolist() for length in PROMPT_LENGTHS]


def branching_prompts(seed: int) -> list[list[int]]:
    """Three of their own, one more, and one that goes on from it."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(1, 384, 34).tolist()
    own = [rng.integers(1, 384, length).tolist() for length in (3, 50, 17)]
    return [*own, shared, shared + own[0]]


def answer(llm: LLM, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """Greedy answers; conftest checks every invariant after every step."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    requests = [llm.engine.add_request(f"r{i}", prompt, params) for i, prompt in enumerate(prompts)]
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
    return [request.sequences[0].output_token_ids for request in requests]


def shrink_pool(llm: LLM, num_tokens: int) -> None:
    """Lower the utilization until the pool holds ``num_tokens`` tokens: the way a user would get there."""
    memory = llm.engine.memory
    num_blocks = -(-num_tokens // memory.block_size)
    taken = memory.weight_bytes + memory.activation_bytes + memory.overhead_bytes
    wanted = taken + num_blocks * memory.block_bytes + memory.block_bytes // 2
    llm.engine.reconfigure(gpu_memory_utilization=wanted / memory.device_total_bytes)
    assert llm.engine.memory.num_blocks == num_blocks


def shrink(llm: LLM, num_sequences: float) -> None:
    """Lower the utilization until the pool holds so many of the longest sequences."""
    engine = llm.engine
    layout = engine.scheduler.pool.layout
    needed = layout.blocks_for(engine.max_model_len, engine.config.max_num_batched_tokens)
    shrink_pool(llm, num_tokens=int(num_sequences * needed) * layout.block_size)
