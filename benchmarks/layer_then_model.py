"""What benchmarks of one layer and of a small model have in common: the command line, and the model's steps."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))

from decode_step import read_bandwidth

from kvplan_engine import LLM, SamplingParams

BATCHES = (1, 8, 64)
DECODE_STEPS = 32


def main(
    description: str | None, time_layer: Callable[[torch.dtype, float], None], time_model: Callable[[str], None]
) -> None:
    """``time_layer`` is given the read bandwidth that was measured just before."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--skip-model", action="store_true")
    arguments = parser.parse_args()
    time_layer(getattr(torch, arguments.dtype), read_bandwidth())
    if not arguments.skip_model:
        time_model(arguments.dtype)


def make_model(config: dict[str, Any], dtype: str, device_memory: str) -> LLM:
    """Random weights, after a few steps."""
    llm = LLM(
        config,
        load_format="dummy",
        dtype=dtype,
        device="cpu",
        device_memory=device_memory,
        max_model_len=1024,
        max_num_seqs=max(BATCHES),
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
    )
    _seconds(llm, 4, 64, 4)
    return llm


def print_steps(llm: LLM) -> None:
    """Milliseconds of a decode step, from runs that differ by their number of tokens; prompt tokens per second."""
    for batch in BATCHES:
        short, long = (min(_seconds(llm, batch, 32, tokens) for _ in range(3)) for tokens in (1, 1 + DECODE_STEPS))
        print(f"  decode, batch {batch:2}: {(long - short) / DECODE_STEPS * 1e3:.2f} ms a step")
    print(f"  prefill of 4 x 512 tokens: {2048 / min(_seconds(llm, 4, 512, 1) for _ in range(3)):.0f} tokens/s")


def _seconds(llm: LLM, batch: int, prompt_tokens: int, new_tokens: int) -> float:
    prompts = [{"prompt_token_ids": [7 + row] * prompt_tokens} for row in range(batch)]
    begin = time.perf_counter()
    llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True))
    return time.perf_counter() - begin
