"""Models from GGUF files answer as the models of transformers that they were written from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_answers import answer
from gguf_files import FILES, GgufCheckpoint
from test_dense_equality import NUM_TOKENS, engine_of, prompts_of

from kvplan.catalog.models import resolve_model
from kvplan.estimate.kvplan.held_weights import held_weight_bytes


@pytest.mark.parametrize("name", FILES)
def test_answers_are_those_of_the_model_it_was_written_from(name: str, tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(name, tmp_path)
    prompts = prompts_of(checkpoint)
    answers = answer(engine_of(checkpoint.path), prompts, NUM_TOKENS)
    for prompt, tokens in zip(prompts, answers, strict=True):
        with torch.no_grad():
            logits = checkpoint.model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == tokens


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_file_of_several_types_is_one_call_and_takes_the_predicted_bytes(dtype: str, tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint("q4_k_m", tmp_path)
    llm = engine_of(checkpoint.path, dtype=dtype)
    assert llm.engine.model.decoder.layer_run is not None
    assert llm.engine.memory.weight_bytes == held_weight_bytes(resolve_model(str(checkpoint.path)), dtype, "auto")
