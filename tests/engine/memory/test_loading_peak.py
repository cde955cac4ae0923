"""Loading holds the weights once: what it needs on its way is bounded by one tensor, not by the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvplan_engine import LLM
from kvplan_engine.checkpoints.quantised import rounding
from kvplan_engine.description.quantization import RECIPES
from kvplan_engine.device.process_memory import PeakMemory

HIDDEN, INNER = 768, 2304
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 10,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 128,
}
SETTINGS: dict[str, Any] = {"device": "cpu", "dtype": "bfloat16", "max_model_len": 64, "max_num_batched_tokens": 64}
LARGEST_TENSOR = 2 * HIDDEN * INNER * torch.float32.itemsize
"""Gate and up as they are read, widened."""


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_no_second_copy_of_the_weights(quantization: str) -> None:
    """At most weights, workspace, pool, what is kept back for everything else, and two tensors on their way.

    A second copy of the weights, as wide as they are read, would be beyond that in every format.
    """
    sizes = {"load_format": "none", "quantization": quantization, "device_memory": "1GiB", **SETTINGS}
    with LLM(CONFIG, **sizes) as llm:
        needed = llm.engine.memory
        wide = 2 * llm.engine.model.config.vocab_size * HIDDEN + 10 * (2 * HIDDEN**2 + 3 * HIDDEN * INNER)
    fixed = needed.weight_bytes + needed.activation_bytes + needed.overhead_bytes
    device_memory = int((fixed + 64 * needed.block_bytes) / 0.9)
    with PeakMemory() as peak:
        llm = LLM(CONFIG, load_format="dummy", quantization=quantization, device_memory=device_memory, **SETTINGS)
    with llm:
        memory = llm.engine.memory
    most = memory.weight_bytes + memory.activation_bytes + memory.kv_pool_bytes + memory.overhead_bytes
    most += 2 * LARGEST_TENSOR
    assert peak.bytes_above_start <= most
    assert memory.weight_bytes + wide * torch.float32.itemsize > most


@pytest.mark.parametrize("name", RECIPES)
def test_rows_at_a_time_make_the_same_codes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(600, 256, generator=torch.Generator().manual_seed(3)).bfloat16()
    whole = rounding.rounded(weight, RECIPES[name])
    monkeypatch.setattr(rounding, "_ELEMENTS_AT_ONCE", 256 * 128)
    parts = rounding.rounded(weight, RECIPES[name])
    assert torch.equal(whole.codes, parts.codes) and torch.equal(whole.scales, parts.scales)
    assert (whole.minimums is None) == (parts.minimums is None)
    assert whole.minimums is None or torch.equal(whole.minimums, parts.minimums)  # type: ignore[arg-type]
