"""Greedy answers of an engine, over a pool as small as a test needs it."""

from __future__ import annotations

import numpy as np
from small_models import VOCAB_SIZE

from kvplan_engine import LLM, SamplingParams

NUM_TOKENS = 20
PROMPT_LENGTHS = (1, 5, 17, 33, 64, 40)  # ragged, a single token, longer than a chunk


def ragged_prompts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(1, VOCAB_SIZE, length).tolist() for length in PROMPT_LENGTHS]


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
