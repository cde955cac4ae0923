"""Layers that share dummy weights: which do, what is held and counted, and that nothing else changes."""

from __future__ import annotations

import re
import zlib
from dataclasses import replace

import pytest
import torch
from small_models import Checkpoint

from kvplan_engine import LLM, EngineConfig, EngineError, SamplingParams
from kvplan_engine.checkpoints import dummy
from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.checkpoints.dummy import weight_owners
from kvplan_engine.models import loaded_model

MIB = 1024**2


@pytest.fixture
def one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dummy, "LARGER_THAN_CACHES_BYTES", 1)


def _load(checkpoint: Checkpoint, backend: str = "auto", **settings: object) -> LLM:
    return LLM(
        str(checkpoint.path),
        load_format="dummy",
        dtype="float32",
        device="cpu",
        device_memory=256 * MIB,
        max_model_len=64,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        attention_backend=backend,
        **settings,
    )


def test_equal_layers_take_turns_over_more_bytes_than_caches_hold() -> None:
    """A layer of Llama 3.1 8B takes 416 MiB in bfloat16, and twice that in float32."""
    model = load_model_config("llama-3.1-8b")
    assert weight_owners(model, 2) == [0, 1] + [index % 2 for index in range(30)]
    assert weight_owners(model, 4) == [0] * 32


def test_unlike_layers_share_nothing() -> None:
    """DeepSeek V3: three layers with an MLP of 1.1 GiB each, then experts."""
    owners = weight_owners(load_model_config("deepseek-v3"), 2)
    assert owners[:4] == [0, 0, 0, 3]
    assert set(owners[3:]) == {3}


@pytest.fixture
def equal_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dummy values that depend on a parameter's name without its layer."""

    def fill(weights: dict[str, torch.Tensor], *_: object) -> bool:
        for name, tensor in weights.items():
            seed = zlib.crc32(re.sub(r"layers\.\d+", "layers", name).encode())
            tensor.copy_(0.15 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed)))
        return True

    monkeypatch.setattr(loaded_model, "load_weights", fill)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_shared_layer_computes_what_an_equal_one_of_its_own_does(
    name: str, backend: str, one_copy: None, equal_layers: None, checkpoints: dict[str, Checkpoint]
) -> None:
    prompts = [{"prompt_token_ids": [5, 6, 7, 8]}, {"prompt_token_ids": list(range(20, 50))}]
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    answers, logits = [], []
    for dummy_layers, num_held in (("full", 3), ("shared", 1)):
        llm = _load(checkpoints[name], backend, dummy_layers=dummy_layers)
        parts = [layer.attention for layer in llm.engine.decoder._layers]
        assert len({id(part.qkv) for part in parts}) == num_held
        assert [part.index for part in parts] == [0, 1, 2]
        answers.append([output.outputs[0].token_ids for output in llm.generate(prompts, params)])
        logits.append(llm.engine.serving.runner.workspace["logits"][:2].clone())
    assert answers[0] == answers[1]
    assert torch.equal(*logits)
    assert logits[0].std() > 0


def test_the_account_is_that_of_all_layers(one_copy: None, checkpoints: dict[str, Checkpoint]) -> None:
    shared, full = _load(checkpoints["qwen3"], dummy_layers="shared"), _load(checkpoints["qwen3"])
    measured = {"activation_peak_bytes": 0, "overhead_bytes": 0}
    assert replace(shared.engine.memory, **measured) == replace(full.engine.memory, **measured)
    assert shared.engine.model.weight_bytes == full.engine.model.weight_bytes
    held = [sum(t.numel() for t in each.engine.model.weights.values()) for each in (shared, full)]
    assert held[0] < held[1]


def test_a_device_may_be_larger_than_this_machine(one_copy: None, checkpoints: dict[str, Checkpoint]) -> None:
    llm = LLM(
        str(checkpoints["gpt2"].path),
        load_format="dummy",
        dummy_layers="shared",
        device="cpu",
        device_memory="900TiB",
        gpu_memory_utilization=4e-7,
        max_model_len=64,
        max_num_batched_tokens=32,
    )
    assert llm.engine.memory.device_total_bytes == 900 * 1024**4


def test_real_weights_are_not_shared() -> None:
    with pytest.raises(EngineError, match="dummy_layers 'shared' is for load_format 'dummy'") as caught:
        EngineConfig(model="gpt2", dummy_layers="shared")
    assert caught.value.hint
