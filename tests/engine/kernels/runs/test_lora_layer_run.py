"""Adapters are part of the call for all layers: what it computes is what the decoder's own loop does, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from adapter_files import save_adapter
from transformers import LlamaConfig, LlamaForCausalLM

from kvplan_engine import LLM, LoRARequest, SamplingParams
from kvplan_engine.adapters.lora_linear import PackedLoraLinear
from kvplan_engine.layers import onednn

PROMPT_LENGTHS = (3, 40, 17, 1)
SIZES = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 6}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint and two adapters, on a CPU without AMX, where bfloat16 is ours too."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)
    monkeypatch.setattr(onednn, "packs_for_amx", lambda dtype: False)
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, num_key_value_heads=2, vocab_size=199, initializer_range=0.2)
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "model")
    for index in range(2):
        save_adapter(model, tmp_path / f"adapter-{index}", seed=index, r=3 + index)
    return tmp_path


def _run(folder: Path, dtype: str, one_call: bool) -> tuple[list[list[int]], torch.Tensor]:
    """Tokens of prompts with either adapter or none, one longer than a step, and the pool afterwards."""
    settings = {"dtype": dtype, "device": "cpu", "device_memory": "256MiB", "max_num_batched_tokens": 24}
    with LLM(str(folder / "model"), **settings, max_model_len=96, enable_lora=True, max_loras=2) as llm:
        decoder, kv = llm.engine.model.decoder, llm.engine.serving.runner.kv
        assert decoder.layer_run is not None, "this model's layers are all the kernels', yet the slow loop runs"
        if not one_call:
            decoder.layer_run = None
        kv.planes.zero_()
        own = [LoRARequest(f"adapter-{index}", str(folder / f"adapter-{index}")) for index in range(2)]
        prompts = [{"prompt_token_ids": [(7 * n + 3 * i) % 190 for i in range(n)]} for n in PROMPT_LENGTHS]
        params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
        outputs = llm.generate(prompts, params, lora_request=[own[0], own[1], None, own[0]])
        return [list(output.outputs[0].token_ids) for output in outputs], kv.planes.view(kv.dtype).clone()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_call_corrects_as_the_loop_does(folder: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    plain = PackedLoraLinear.__call__

    def counted(self: PackedLoraLinear, x: torch.Tensor, out: torch.Tensor) -> None:
        calls.append(x.shape[0])
        plain(self, x, out)

    monkeypatch.setattr(PackedLoraLinear, "__call__", counted)
    one_call = _run(folder, dtype, one_call=True)
    assert not calls, "products of a step were called one by one"
    loop = _run(folder, dtype, one_call=False)
    assert calls
    assert one_call[0] == loop[0]
    assert torch.equal(one_call[1], loop[1])
