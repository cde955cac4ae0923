"""Settings that a release of vLLM does not start with, whatever the model and the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvplan.catalog.releases.vllm import VllmRelease, vllm_release
from kvplan.settings import ServingSettings

LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as ``max_lora_rank`` (MaxLoRARanks in vllm/config/lora.py of 0.33.0)."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why vLLM refuses settings, in one phrase, and what it takes instead."""

    reason: str
    hint: str = "leave it out, and vLLM decides"

    @property
    def sentence(self) -> str:
        start = self.reason if self.reason.startswith("vLLM") else self.reason[:1].upper() + self.reason[1:]
        return f"{start}."


def vllm_refusal(
    settings: ServingSettings, release: VllmRelease | None = None, model_dtype: str | None = None
) -> Refusal | None:
    """Why a release of vLLM (by default the latest) refuses these settings on a GPU; None if it does not.

    ``model_dtype``: what the model runs in, where it is known; ``dtype`` says it unless that is auto.
    """
    release = release or vllm_release("latest")
    return _batch_refusal(settings) or _lora_refusal(settings) or _cache_refusal(settings, release, model_dtype)


def drafter_refusal(method: str, release: VllmRelease) -> Refusal | None:
    """Why a release of vLLM refuses a speculative method; None if it does not."""
    if method not in release.removed_drafters:
        return None
    return Refusal(
        f"vLLM {release.text} has no speculative method {method}", hint="another drafter, or an older release"
    )


def _batch_refusal(settings: ServingSettings) -> Refusal | None:
    """Refuse as every release does (vllm/config/scheduler.py, verify_max_model_len in 0.33.0)."""
    tokens, rows = settings.max_num_batched_tokens, settings.max_num_seqs
    if tokens is None or rows is None or tokens >= rows:
        return None
    return Refusal(
        f"vLLM takes no max_num_batched_tokens ({tokens:,}) below max_num_seqs ({rows:,})",
        hint=f"use --max-num-batched-tokens {rows} or more, or --max-num-seqs {tokens} or less",
    )


def _lora_refusal(settings: ServingSettings) -> Refusal | None:
    slots = settings.lora_slots
    if slots is None or slots.rank in LORA_RANKS:
        return None
    larger = next((rank for rank in LORA_RANKS if rank > slots.rank), None)
    return Refusal(
        f"vLLM has no max_lora_rank {slots.rank}",
        hint=f"--max-lora-rank {larger} holds them" if larger else f"one of {', '.join(map(str, LORA_RANKS))}",
    )


def _cache_refusal(settings: ServingSettings, release: VllmRelease, model_dtype: str | None) -> Refusal | None:
    size, multiple = settings.block_size, release.block_size_multiple
    if size is not None and size % multiple:
        reason = (
            f"the attention kernels of vLLM {release.text} take a block_size in multiples of {multiple}, not {size}"
        )
        return Refusal(reason)
    if settings.kv_cache_dtype == "float32" and settings.dtype not in ("auto", "float32"):
        return Refusal(f"vLLM {release.text} has no kv_cache_dtype float32")
    if settings.kv_cache_dtype == "int8_per_token_head" and not release.scaled_cache:
        return Refusal(f"vLLM {release.text} has no kv_cache_dtype int8_per_token_head, which 0.20 has")
    runs_in = model_dtype or settings.dtype
    is_float = settings.kv_cache_dtype in ("float16", "bfloat16") and runs_in != "auto"
    if release.keeps_float_cache and is_float and settings.kv_cache_dtype != runs_in:
        return Refusal(f"vLLM {release.text} keeps no KV cache in {settings.kv_cache_dtype} for a model in {runs_in}")
    return None
