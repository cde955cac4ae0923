"""Gated delta rules on the CPU: a layer's kernels beside reading and writing its states, and a small hybrid's steps.

    python benchmarks/state_step.py [--dtype bfloat16|float32] [--skip-model]

The shape is Qwen3.5-0.8B's: hidden size 1024, 16 heads with a state of 128 x 128 float32 elements, 18 such layers and 6
with attention. First one layer's convolution, delta rule and gated norm; the delta rule's floor is its states, read and
written at the read bandwidth measured in the same run. Then decode steps and a prefill of the model, random weights.
Minima; on a busy machine give the command priority (``chrt -f 10``).
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))

from decode_step import best_seconds
from layer_then_model import main, make_model, print_steps

from kvplan_engine.kernels.cpu.library import load_kernels
from kvplan_engine.kernels.cpu.states import CpuStates
from kvplan_engine.kernels.states.convolution import make_convolution
from kvplan_engine.kernels.states.delta import DeltaRule, DeltaTokens
from kvplan_engine.kernels.states.gating import Gating
from kvplan_engine.kernels.states.rows import StateRows, StateStep

HEADS, SIZE, TAPS, LAYERS = 16, 128, 4, 18
CHANNELS = 3 * HEADS * SIZE
STATE_BYTES = HEADS * SIZE * SIZE * 4
STEPS = ((1, 1), (8, 1), (64, 1), (4, 512))
"""Sequences, and new tokens of each."""
MODEL: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": HEADS,
    "linear_num_value_heads": HEADS,
    "linear_key_head_dim": SIZE,
    "linear_value_head_dim": SIZE,
    "linear_conv_kernel_dim": TAPS,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}


def time_layer(dtype: torch.dtype, bandwidth: float) -> None:
    """Microseconds of each kernel for each kind of step; the states of all layers take turns."""
    states = CpuStates(load_kernels())
    convolution = make_convolution(torch.randn(CHANNELS, TAPS) * 0.3)
    rule = DeltaRule(HEADS, HEADS, SIZE, SIZE, torch.rand(HEADS), torch.randn(HEADS), SIZE**-0.5)
    gating = Gating(torch.ones(SIZE, dtype=dtype), 1e-6, HEADS, norm_first=True)
    print(f"one layer, {dtype}; read bandwidth {bandwidth / 1e9:.1f} GB/s")
    for sequences, length in STEPS:
        tokens = sequences * length
        projected = torch.randn(tokens, CHANNELS + HEADS * SIZE).to(dtype)
        rates = torch.randn(tokens, 2 * HEADS).to(dtype)
        qkv, gate = projected.split([CHANNELS, HEADS * SIZE], dim=1)
        query, key, value = qkv.split(HEADS * SIZE, dim=1)
        inputs = DeltaTokens(query, key, value, torch.empty_like(value), rates[:, :HEADS], rates[:, HEADS:])
        step = StateStep(
            torch.arange(sequences, dtype=torch.int32)[:, None],
            torch.arange(0, tokens + 1, length, dtype=torch.int32),
            torch.arange(1, length + 1).repeat(sequences),
        )
        pools = [torch.zeros(sequences, STATE_BYTES, dtype=torch.uint8) for _ in range(LAYERS)]
        rows = cycle([StateRows(pool, torch.float32, HEADS * SIZE, SIZE, 0, 0) for pool in pools])
        inputs_of_convolution = torch.zeros(sequences, 3 * CHANNELS * dtype.itemsize, dtype=torch.uint8)
        past = StateRows(inputs_of_convolution, dtype, TAPS - 1, CHANNELS, 0, 0)
        runs = {
            "convolution": partial(states.convolve, qkv, torch.empty_like(qkv), convolution, past, step),
            "delta rule": lambda rows=rows, inputs=inputs, step=step: states.delta_rule(rule, inputs, next(rows), step),
            "norm and gate": partial(states.gate_rows, inputs.out, gate, gating),
        }
        seconds = {name: best_seconds(run, 40 if length == 1 else 4) for name, run in runs.items()}
        floor = 2 * sequences * STATE_BYTES / bandwidth
        each = ", ".join(f"{name} {value * 1e6:.0f}" for name, value in seconds.items())
        print(f"  {sequences:2} x {length:3} tokens: {each} us; states read and written: {floor * 1e6:.0f} us")


def time_model(dtype: str) -> None:
    """The small model's decode steps and a prefill."""
    llm = make_model(MODEL, dtype, "8GiB")
    print(f"the model, {dtype}: {llm.engine.memory.weight_bytes / 2**30:.2f} GiB of weights")
    print_steps(llm)


if __name__ == "__main__":
    main(__doc__, time_layer, time_model)
