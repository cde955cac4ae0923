"""Which architectures vLLM serves no longer, or never did."""

from __future__ import annotations

from typing import Final

from kvplan.catalog.releases.vllm import vllm_release

NEVER_SERVED: Final = frozenset(
    {"MT5ForConditionalGeneration", "T5ForConditionalGeneration", "UMT5ForConditionalGeneration"}
)
"""Encoder-decoder models that no release has a class of, nor a backend for (vllm/model_executor/models/registry.py)."""


def has_class(architecture: str, version: str) -> bool:
    """Whether vLLM ``version`` serves ``architecture``; True of those that nothing is known about."""
    return architecture not in NEVER_SERVED and architecture not in vllm_release(version).ended_architectures


def service_note(architecture: str, version: str) -> str | None:
    """What a user has to know of an architecture that vLLM ``version`` does not serve; None of any other."""
    if has_class(architecture, version):
        return None
    if architecture in NEVER_SERVED:
        return f"vLLM serves no {architecture}: sized as if it did."
    release = vllm_release(version)
    last = release.ended_architectures[architecture]
    ended = f"vLLM {release.text} no longer serves {architecture}"
    return f"{ended}; the last release that does is {last} (--engine vllm@{last})."
