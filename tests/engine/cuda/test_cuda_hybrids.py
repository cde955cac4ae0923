"""Models with states over the emulated kernels: steps with prompts, and decode steps that are captured and replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dense_models import DenseCheckpoint
from fake_gpu import FakeGpu, take_gpu
from mamba_models import MAMBA
from small_models import VOCAB_SIZE
from state_models import STATES

from kvplan_engine import LLM, SamplingParams

_WIDE = {"hidden_size": 64, "mamba_n_heads": 8, "num_hidden_layers": 2}
MODELS = {
    "qwen3_next": STATES["qwen3_next"],
    "bamba": replace(MAMBA["bamba"], values=MAMBA["bamba"].values | _WIDE | {"attn_layer_indices": [1]}),
    "jamba": replace(MAMBA["jamba"], values=MAMBA["jamba"].values | {"hidden_size": 64}),
}
KERNELS = {"qwen3_next": "delta_rule", "bamba": "scan_mamba2", "jamba": "scan_mamba1"}


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = take_gpu(monkeypatch, FakeGpu())
    checkpoint = DenseCheckpoint(name, tmp_path, MODELS)
    llm = LLM(str(checkpoint.path), dtype="float32", max_num_batched_tokens=24, max_num_seqs=4, max_model_len=48)
    prompts = [np.random.default_rng(3).integers(1, VOCAB_SIZE, length).tolist() for length in (1, 9, 30)]
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = list(output.outputs[0].token_ids)
        with torch.no_grad():  # all at once: transformers' own decoding treats the limits of steps in another way
            logits = checkpoint.model(torch.tensor([prompt + tokens])).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == tokens
    assert KERNELS[name] in gpu.runtime.launched
    assert gpu.events.count("start") > 0
