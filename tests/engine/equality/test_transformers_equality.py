"""Models in their class of transformers answer over the pool as that class does alone, in float32.

A part of what ``tools/check_transformers_models.py`` runs: each way, and each thing that a layer may keep.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from transformers_checkpoints import check_class, config_of, tabled_models

from kvplan_engine.transformers_backend.model import TransformersDecoder

TRANSFORMERS = tuple(int(number) for number in transformers.__version__.split(".")[:2])
TOGETHER = "all sequences in one forward pass"
ONE_BY_ONE = "one sequence after the other"
BY_TOKEN = "one sequence after the other, token by token"
MODELS = {
    "gpt2": TOGETHER,  # learned positions
    "opt": TOGETHER,  # layers within a part of their own
    "gemma3": TOGETHER,  # windows
    "gemma4-shared": TOGETHER,  # layers that read others' keys and values
    "gpt-oss": TOGETHER,  # sinks, experts
    "granite": TOGETHER,  # scaled logits
    "phi": TOGETHER,
    "qwen3_moe": TOGETHER,
    "bloom": ONE_BY_ONE,  # slopes
    "falcon-40b": ONE_BY_ONE,  # caches each KV head several times
    "gptj": TOGETHER if TRANSFORMERS >= (5, 24) else ONE_BY_ONE,  # attended by itself before
    "Llama4ForCausalLM": ONE_BY_ONE,  # chunks
    "deepseek_v3": ONE_BY_ONE,  # latents
    "lfm2": ONE_BY_ONE,  # convolutions
    "falcon-h1": ONE_BY_ONE,  # a state beside attention
    "olmo_hybrid": ONE_BY_ONE,  # a recurrent state
    "jamba": BY_TOKEN,  # goes on from a state only so
}


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_the_class(name: str, tmp_path: Path) -> None:
    llm = check_class(config_of(*tabled_models()[name]), tmp_path / "model", lengths=(1, 17, 40, 33), num_tokens=5)
    decoder = llm.engine.decoder
    assert isinstance(decoder, TransformersDecoder)
    assert decoder.way.name == MODELS[name]
    assert llm.get_stats()["prefix_cache_hits"] > 0
