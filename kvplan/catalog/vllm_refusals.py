"""What a release of vLLM does not serve: architectures, and settings that it does not start with on any GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvplan.catalog.architectures import ServedByVllm, architectures
from kvplan.catalog.releases.vllm import VllmRelease, vllm_release
from kvplan.caveats import Caveat
from kvplan.settings import ServingSettings

_SERVED = ServedByVllm()
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


def is_never_served(architecture: str) -> bool:
    """Return whether no release of vLLM has a class of ``architecture``, nor a backend for it."""
    return not _of(architecture).served


def has_class(architecture: str, version: str) -> bool:
    """Return whether vLLM ``version`` serves ``architecture``; True of those that nothing is known about."""
    served = _of(architecture)
    return served.served and vllm_release(version).is_within(served.last) and not _is_before(served.first, version)


def service_note(architecture: str, version: str) -> str | None:
    """Return what a user has to know of an architecture that vLLM ``version`` does not serve; None of any other."""
    if has_class(architecture, version):
        return None
    if is_never_served(architecture):
        return Caveat(f"vLLM serves no {architecture}: sized as if it did.")
    served, release = _of(architecture), vllm_release(version).text
    if _is_before(served.first, version):
        has_none = f"vLLM {release} has no class of {architecture}; the first release that has one is {served.first}"
        return Caveat(f"{has_none} (--engine vllm@{served.first}).")
    ended = f"vLLM {release} no longer serves {architecture}"
    return Caveat(f"{ended}; the last release that does is {served.last} (--engine vllm@{served.last}).")


def _is_before(first: str | None, version: str) -> bool:
    """Whether ``version`` is older than ``first``; a build between two releases may have what the next one has."""
    is_between = "dev" in version or "rc" in version
    return first is not None and not is_between and vllm_release(version).is_before(first)


def _of(architecture: str) -> ServedByVllm:
    row = architectures().get(architecture)
    return _SERVED if row is None else row.vllm
