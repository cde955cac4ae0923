"""Seconds of decode steps, prompts and mixed steps, as aiconfigurator-core adds up its measured kernels."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiconfigurator_core
from aiconfigurator_core.sdk import EngineHandle
from aiconfigurator_core.sdk.errors import PerfDataNotAvailableError

from kernel_speeds.models import FORMATS, SampledModel

_DECODES = tuple((batch, context) for batch in (1, 4, 16, 64, 256) for context in (256, 1024, 4096, 16384))
_PROMPTS = ((1, 128), (1, 512), (1, 2048), (1, 8192), (4, 2048))
_MIXED = ((512, 16, 1024), (2048, 64, 1024), (2048, 256, 1024), (8192, 128, 2048))
_MOST_TOKENS = 1_100_000
"""In the caches of one step's sequences: more fit no GPU."""


@dataclass(frozen=True, slots=True)
class Point:
    """One step: tokens computed, sequences, tokens whose K and V are read, pairs of tokens that meet in attention."""

    model: SampledModel
    tensor_parallel_size: int
    tokens: int
    sequences: int
    kv_tokens: int
    pairs: float
    seconds: float


def sample(model: SampledModel, system: str, backend: str, name: str, work: Path) -> list[Point]:
    """All points that the tables can answer; none where they have no kernels of this model in this format."""
    logging.disable(logging.CRITICAL)
    dense, experts = FORMATS[name]
    found: list[Point] = []
    for size in model.sizes:
        options: dict[str, Any] = {"tp_size": size, "gemm_quant_mode": dense, "kvcache_quant_mode": "bfloat16"}
        options["fmha_quant_mode"] = "bfloat16"
        if model.kind != "dense":
            options |= {"moe_tp_size": size, "moe_ep_size": 1, "moe_quant_mode": experts}
        try:
            handle = EngineHandle.compile(_path(model, work), system, backend, **options)
        except (RuntimeError, ValueError):  # the package's own types are those: it lacks this format or model
            continue
        found += _points(model, size, handle)
    return found


def _points(model: SampledModel, size: int, handle: EngineHandle) -> Iterator[Point]:
    for batch, context in _DECODES:
        if batch * context <= _MOST_TOKENS:
            seconds = _answer(lambda b=batch, c=context: handle.decode_step_latency(b, c - 1, 2))
            if seconds:
                yield Point(model, size, batch, batch, batch * context, batch * context, seconds)
    for batch, length in _PROMPTS:
        seconds = _answer(lambda b=batch, n=length: handle.predict_prefill_latency(b, n))
        if seconds:
            tokens = batch * length
            yield Point(model, size, tokens, batch, tokens, batch * length**2 / 2, seconds)
    for prompt, decoding, context in _MIXED:
        seconds = _answer(lambda p=prompt, d=decoding, c=context: _mixed(handle, p, d, c))
        if seconds:
            kv_tokens = decoding * (prompt + context) + prompt
            pairs = decoding * (prompt + context) + prompt**2 / 2
            yield Point(model, size, prompt + decoding, decoding + 1, kv_tokens, pairs, seconds)


def _mixed(handle: EngineHandle, prompt: int, decoding: int, context: int) -> float:
    """A prompt of ``prompt`` tokens beside sequences that hold it and ``context`` tokens more on average."""
    return handle.mixed_step_latency(prompt, decoding, prompt, 2 * context)


def _answer(ask: Callable[[], float]) -> float | None:
    """In seconds; None where the tables have no kernels for the question."""
    try:
        return ask() / 1000
    except PerfDataNotAvailableError:
        return None


def _path(model: SampledModel, work: Path) -> str:
    """A folder with the config that the package ships: it would ask the hub for some of them."""
    name = model.tables.replace("/", "--")
    folder = work / name
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(
        Path(aiconfigurator_core.__file__).parent / "model_configs" / f"{name}_config.json", folder / "config.json"
    )
    return str(folder)
