"""Trained weights and real text over three ranks, which 9 attention heads and 3 KV heads are divided over."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rank_cases import CELLS, SMOLLM2_SETTINGS, load, real_text
from small_models import greedy

from kvplan_engine import LLM, EngineError

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("smollm2")]


@pytest.mark.exhaustive  # test_rank_equality has the same cells with random weights
def test_tokens_are_those_of_transformers(smollm2_path: Path, smollm2_model: torch.nn.Module, tmp_path: Path) -> None:
    with load(smollm2_path, num_ranks=3, **SMOLLM2_SETTINGS) as llm:
        asked = real_text(llm)
        expected = greedy(smollm2_model, asked.prompts, asked.num_tokens)
        for number, answers in asked.answers(llm, CELLS[0], tmp_path).items():
            assert all(tokens == expected[number] for tokens in answers)


def test_heads_that_do_not_divide_are_refused_before_anything_is_loaded(smollm2_path: Path) -> None:
    with pytest.raises(EngineError, match="9 attention heads cannot be divided over 2 ranks"):
        LLM(str(smollm2_path), device="cpu", tensor_parallel_size=2)


def test_weights_in_few_bits_are_refused_by_name(smollm2_path: Path) -> None:
    with pytest.raises(EngineError, match="does not divide weights in few bits over ranks yet"):
        LLM(str(smollm2_path), device="cpu", device_memory="512MiB", tensor_parallel_size=3)
