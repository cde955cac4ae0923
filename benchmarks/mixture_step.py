"""A mixture of experts on the CPU: the kernel beside reading the experts that are touched, and a small model's steps.

    python benchmarks/mixture_step.py [--dtype bfloat16|float32] [--skip-model]

First one layer of Qwen3-30B-A3B's shape (hidden size 2048, 128 experts of 768, 8 for each token): its floor is the
bytes of the experts that its rows chose, at the read bandwidth measured in the same run. Then decode steps and a
prefill of a model of 0.5 billion parameters in 12 layers (hidden size 1024, 32 experts of 384), random weights. Minima;
on a busy machine give the command priority (``chrt -f 10``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))

from decode_step import best_seconds
from layer_then_model import main, make_model, print_steps

from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.kernels.cpu.library import load_kernels
from kvplan_engine.kernels.cpu.mixture import PackedMixture
from kvplan_engine.kernels.mixture_weights import ExpertWeights, MixtureWeights

HIDDEN = 2048
LAYER = Mixture(128, 8, Mlp(768, "silu"))
ROWS = (1, 8, 64, 512, 2048)
MODEL: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "moe_intermediate_size": 384,
    "num_experts": 32,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}


def time_layer(dtype: torch.dtype, bandwidth: float) -> None:
    """Milliseconds for each number of rows, and how fast the chosen experts were read."""

    def random(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype).normal_(0, 0.02)

    size, experts = LAYER.expert.size, LAYER.num_experts
    weights = ExpertWeights(random(experts, 2 * size, HIDDEN), random(experts, HIDDEN, size))
    packed = PackedMixture(load_kernels(), LAYER, MixtureWeights(random(experts, HIDDEN), weights))
    del weights
    expert_bytes = 3 * size * HIDDEN * dtype.itemsize
    print(f"one layer, {dtype}; read bandwidth {bandwidth / 1e9:.1f} GB/s")
    for rows in ROWS:
        inputs, out = [random(rows, HIDDEN) for _ in range(8)], random(rows, HIDDEN)  # other experts in each call
        ids = torch.empty(rows, LAYER.top_k, dtype=torch.int32)
        shares, inner = torch.empty(ids.shape), random(rows * packed.num_inner_columns)
        turn = cycle(inputs)
        run = partial(_run_next, packed, turn, out, ids, shares, inner)
        seconds = best_seconds(run, 24 if rows < 512 else 5)
        touched = ids.unique().numel()
        floor = touched * expert_bytes / bandwidth
        operations = rows * LAYER.top_k * 6 * size * HIDDEN
        print(
            f"  {rows:5} rows, {touched:3} experts: {seconds * 1e3:8.2f} ms, floor {floor * 1e3:7.2f} ms, "
            f"{touched * expert_bytes / seconds / 1e9:5.1f} GB/s, {operations / seconds / 1e9:5.0f} GFLOP/s"
        )


def _run_next(packed: PackedMixture, inputs: Iterator[torch.Tensor], *others: torch.Tensor) -> None:
    packed.run(next(inputs), *others)


def time_model(dtype: str) -> None:
    """The small model's decode steps and a prefill."""
    llm = make_model(MODEL, dtype, "6GiB")
    print(f"a model of 0.5 billion parameters, {dtype}")
    print_steps(llm)


if __name__ == "__main__":
    main(__doc__, time_layer, time_model)
