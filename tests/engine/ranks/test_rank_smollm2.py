"""Trained weights and real text over three ranks, which 9 attention heads and 3 KV heads are divided over."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from matrix_cells import Cell, Watch, add_greedy, greedy_tokens, set_up
from small_models import greedy

from kvplan_engine import LLM, EngineError

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("smollm2")]

TEXTS = (
    "The history of the printing press began in the middle of the fifteenth century, when Johannes Gutenberg, a "
    "goldsmith from Mainz, cast letters of metal that could be used again and again, in another order each time",
    "In the year 1492, three ships left the harbour of Palos in the south of Spain, and after five weeks on the open "
    "sea, out of sight of any land, a sailor in the bow of the",
)
PROMPT_LENGTHS = (36, 30)
POOL_TOKENS = 68
NUM_TOKENS = 6
CELL = Cell(prefix_caching=True, chunked=True, keeping="swap", block_size=16)


def test_tokens_are_those_of_transformers(smollm2_path: Path, smollm2_model: torch.nn.Module, tmp_path: Path) -> None:
    settings = {"dtype": "float32", "device": "cpu", "device_memory": "1GiB", "quantization": "none"}
    settings |= {"max_model_len": 64, "max_num_batched_tokens": 256, "max_num_seqs": 6}
    with LLM(str(smollm2_path), **settings, tensor_parallel_size=3) as llm:
        prompts = [llm.tokenizer.encode(text)[:length] for text, length in zip(TEXTS, PROMPT_LENGTHS, strict=True)]
        set_up(llm, CELL, tmp_path, pool_tokens=POOL_TOKENS)
        watch = Watch(llm.engine)
        expected = greedy(smollm2_model, prompts, NUM_TOKENS)
        for order in [(0, 1), (0,)]:
            requests = add_greedy(llm.engine, [prompts[index] for index in order], NUM_TOKENS)
            watch.run()
            assert greedy_tokens(requests) == [expected[index] for index in order]
        watch.check(CELL)


def test_heads_that_do_not_divide_are_refused_before_anything_is_loaded(smollm2_path: Path) -> None:
    with pytest.raises(EngineError, match="9 attention heads cannot be divided over 2 ranks"):
        LLM(str(smollm2_path), device="cpu", tensor_parallel_size=2)


def test_weights_in_few_bits_are_refused_by_name(smollm2_path: Path) -> None:
    with pytest.raises(EngineError, match="does not divide weights in few bits over ranks yet"):
        LLM(str(smollm2_path), device="cpu", device_memory="512MiB", tensor_parallel_size=3)
