"""Models with states, latents or experts over the emulated kernels: prompts in pieces, all steps captured, and late."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dense_models import SIZES, Dense, DenseCheckpoint
from fake_gpu import take_gpu
from late_gpu import LateGpu
from mamba_models import MAMBA
from small_models import VOCAB_SIZE
from state_models import STATES

from kvplan_engine import LLM, SamplingParams

_WIDE = {"hidden_size": 64, "mamba_n_heads": 8, "num_hidden_layers": 2}
MODELS = {
    "qwen3_next": STATES["qwen3_next"],
    "bamba": replace(MAMBA["bamba"], values=MAMBA["bamba"].values | _WIDE | {"attn_layer_indices": [1]}),
    "deepseek_v3": Dense(
        "DeepseekV3Config",
        SIZES
        | {"num_key_value_heads": 4, "q_lora_rank": 40, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "v_head_dim": 16}
        | {"qk_rope_head_dim": 16, "moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 2}
        | {"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1},
    ),
    "jamba": replace(MAMBA["jamba"], values=MAMBA["jamba"].values | {"hidden_size": 64}),
}
KERNELS = {"qwen3_next": "delta_rule", "bamba": "scan_mamba2", "jamba": "scan_mamba1", "deepseek_v3": "choose_experts"}


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = take_gpu(monkeypatch, LateGpu())
    checkpoint = DenseCheckpoint(name, tmp_path, MODELS)
    llm = LLM(str(checkpoint.path), dtype="float32", max_num_batched_tokens=16, max_num_seqs=4, max_model_len=48)
    prompts = [np.random.default_rng(3).integers(1, VOCAB_SIZE, length).tolist() for length in (1, 9, 30)]
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    with gpu.late(llm.engine):
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = list(output.outputs[0].token_ids)
        with torch.no_grad():  # all at once: transformers' own decoding treats the limits of steps in another way
            logits = checkpoint.model(torch.tensor([prompt + tokens])).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == tokens
    assert KERNELS[name] in gpu.runtime.launched
    assert gpu.most_queued > 20, "nothing was late"
    stats = llm.get_stats()
    assert stats["num_graph_replays"] == stats["num_steps"] >= 7, "steps with prompts are replayed too"
