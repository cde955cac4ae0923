"""All layers in one call against the decoder's own loop: the same logits and the same pool, bit for bit."""

from __future__ import annotations

import pytest
import torch

from kvplan_engine import Engine, EngineConfig, SamplingParams

_SHARED = {"vocab_size": 199, "max_position_embeddings": 96, "torch_dtype": "float32"}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 96,
    **_SHARED,
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    **_SHARED,
}


def make_engine(config: dict[str, object], dtype: str, one_call: bool) -> Engine:
    """An engine with 24 tokens a step and a pool of zeros, that runs its layers in one call or in a loop."""
    engine = Engine(
        EngineConfig(
            model=config,
            device="cpu",
            dtype=dtype,
            load_format="dummy",
            device_memory=160 * 1024**2,
            max_num_batched_tokens=24,
            max_num_seqs=4,
            max_model_len=96,
        )
    )
    decoder = engine.model.decoder
    assert decoder.layer_run is not None, "this model's layers are all the kernels', yet the slow loop runs"
    if not one_call:
        decoder.layer_run = None
    assert engine._runner.kv is not None
    engine._runner.kv.zero_()
    return engine


def _run(config: dict[str, object], dtype: str, one_call: bool) -> tuple[list[tuple[str, list[int]]], torch.Tensor]:
    """Tokens of each step, and the pool afterwards. Prompts of different lengths, one longer than a step."""
    engine = make_engine(config, dtype, one_call)
    for index, length in enumerate((3, 40, 17, 1)):
        prompt = [(7 * index + 3 * i) % 190 for i in range(length)]
        engine.add_request(str(index), prompt, SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True))
    tokens = []
    while engine.has_unfinished_requests():
        tokens += [(output.request_id, list(output.new_token_ids)) for output in engine.step()]
    kv = engine._runner.kv.clone()
    engine.close()
    return tokens, kv


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_one_call_computes_what_the_loop_computes(config: dict[str, object], dtype: str) -> None:
    one_call, loop = _run(config, dtype, True), _run(config, dtype, False)
    assert one_call[0] == loop[0]
    assert torch.equal(one_call[1], loop[1])
