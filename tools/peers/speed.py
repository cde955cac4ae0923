"""kvplan's step times by the data sheet as ratios to aiconfigurator's, which rest on measured kernels.

Ratios only: the terms of its measured rows are not stated beside them, so none of them is shown or kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.estimate.dtypes import cache_dtype, serving_dtype
from kvplan.estimate.kv_cache import CacheSettings
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.latency import Range, decode_step_seconds, prefill_seconds
from kvplan.estimate.speed.steps.work import kv_read_bytes, model_work
from kvplan.estimate.weights import size_weights
from kvplan.settings import ServingSettings
from peers.asking import ask
from peers.questions import GPU, write_config

PEER = "aiconfigurator"
MODELS = ("llama-3.1-8b", "qwen3-32b", "gpt-oss-20b")
DECODE_STEPS = ((1, 1024), (8, 1024), (32, 1024))
"""Sequences in the step, and tokens that each has already."""
PROMPTS = (512, 2048, 8192)


@dataclass(frozen=True, slots=True)
class Ratios:
    """kvplan's best and usual time, each divided by the peer's; None and the reason where the peer did not answer."""

    model: str
    decode: tuple[Range, ...] | None
    prefill: tuple[Range, ...] | None
    reason: str | None = None


def speed_ratios(python: Path, folder: Path) -> list[Ratios]:
    """One entry per model; the peer is asked in its own interpreter."""
    return [_ratios(model, python, folder) for model in MODELS]


def _ratios(model: str, python: Path, folder: Path) -> Ratios:
    question: dict[str, object] = {"directory": str(write_config(model, folder)), "prompts": PROMPTS}
    question |= {"decode_steps": DECODE_STEPS, "max_num_batched_tokens": max(PROMPTS)}
    answer = ask(PEER, python, json.dumps(question), ("step_times",)).answer("step_times")
    if not isinstance(answer.value, dict):
        return Ratios(model, None, None, answer.reason or "no answer")
    decode, prefill = our_times(model)
    return Ratios(model, _divided(decode, answer.value["decode_ms"]), _divided(prefill, answer.value["prefill_ms"]))


def our_times(model: str) -> tuple[list[Range], list[Range]]:
    """Seconds of the decode steps and of the prompts, from the best that is reached to what is usual."""
    spec, gpu = resolve_model(model), find_gpu(GPU)
    dtype = serving_dtype(spec.dtype)
    cache = CacheSettings(model_dtype=dtype, kv_dtype=cache_dtype(dtype))
    work = model_work(spec, size_weights(spec, dtype).total_bytes, dtype, ParallelLayout.of(ServingSettings()))
    steps = [decode_step_seconds(work, gpu, batch, kv_read_bytes(spec, held, cache)) for batch, held in DECODE_STEPS]
    return steps, [prefill_seconds(work, gpu, tokens) for tokens in PROMPTS]


def _divided(ours: Sequence[Range], theirs_ms: Sequence[float]) -> tuple[Range, ...]:
    pairs = zip(ours, theirs_ms, strict=True)
    return tuple(Range(1000 * each.low / theirs, 1000 * each.high / theirs) for each, theirs in pairs)


def speed_table(found: Sequence[Ratios]) -> list[str]:
    """Markdown: one line per model and kind of step."""
    steps = [f"decode {batch} x {held:,}" for batch, held in DECODE_STEPS]
    names = ["model", *steps, *(f"prompt {tokens:,}" for tokens in PROMPTS)]
    lines = [f"| {' | '.join(names)} |", f"| {' | '.join(['---'] * len(names))} |"]
    for each in found:
        if each.decode is None or each.prefill is None:
            cells = [each.reason or "no answer", *[""] * (len(names) - 2)]
        else:
            cells = [f"{ratio.low:.2f} to {ratio.high:.2f}" for ratio in (*each.decode, *each.prefill)]
        lines.append(f"| {' | '.join([each.model, *cells])} |")
    return lines
