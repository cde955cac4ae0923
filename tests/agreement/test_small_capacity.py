"""An engine without tensors starts with every architecture, in the predicted blocks, and gives all of them back."""

from __future__ import annotations

from typing import Any

import pytest
from small_configs import small_configs

from kvplan.catalog.reader import read_config
from kvplan.estimate.kvplan.memory import predict
from kvplan.estimate.kvplan.settings import EngineDevice
from kvplan.settings import ServingSettings
from kvplan_engine import LLM, SamplingParams

SMALL = small_configs()
DEVICE_BYTES = 256 * 1024**2
SETTINGS: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 128,
    "block_size": 8,
    "dtype": "bfloat16",
}


@pytest.mark.parametrize("architecture", SMALL)
def test_blocks_are_as_predicted_and_come_back(architecture: str) -> None:
    config = SMALL[architecture]
    llm = LLM(config, load_format="none", device="cpu", device_memory=DEVICE_BYTES, **SETTINGS)
    predicted = predict(read_config(config, model_id="model"), ServingSettings(**SETTINGS), EngineDevice(DEVICE_BYTES))
    memory = llm.engine.memory
    assert memory.block_bytes == predicted.block_bytes
    assert memory.num_blocks == predicted.num_blocks
    prompts = [{"prompt_token_ids": list(range(1, length))} for length in (40, 70, 20, 9, 33)]
    answers = llm.generate(prompts, SamplingParams(max_tokens=20, ignore_eos=True))
    assert [len(answer.outputs[0].token_ids) for answer in answers] == [20] * len(prompts)
    stats = llm.get_stats()
    assert stats["num_free_blocks"] == stats["num_blocks"]
