"""Which architectures vLLM serves no longer, or never did."""

from __future__ import annotations

from typing import Final

from kvplan.catalog.engines import vllm_release

LAST_RELEASES: Final = {
    "MllamaForConditionalGeneration": (0, 10, 2),
    "BaiChuanForCausalLM": (0, 23, 0),
    "BaichuanForCausalLM": (0, 23, 0),
    "BambaForCausalLM": (0, 23, 0),
    "Dots1ForCausalLM": (0, 23, 0),
    "MiniMaxForCausalLM": (0, 23, 0),
    "MiniMaxText01ForCausalLM": (0, 23, 0),
    "QWenLMHeadModel": (0, 23, 0),
    "AquilaForCausalLM": (0, 24, 0),
    "AyaVisionForConditionalGeneration": (0, 24, 0),
    "MPTForCausalLM": (0, 28, 0),
    "MptForCausalLM": (0, 28, 0),
    "RWForCausalLM": (0, 28, 0),
}
"""The last release with a class of each: _PREVIOUSLY_SUPPORTED_MODELS in vllm/model_executor/models/registry.py of
0.33.0, as far as kvplan reads them. Later ones run some through transformers (Dots1), which is not sized."""

NEVER_SERVED: Final = frozenset(
    {"MT5ForConditionalGeneration", "T5ForConditionalGeneration", "UMT5ForConditionalGeneration"}
)
"""Encoder-decoder models that no release has a class of, nor a backend for (the same file)."""


def has_class(architecture: str, version: str) -> bool:
    """Whether vLLM ``version`` serves ``architecture``; True of those that nothing is known about."""
    last = LAST_RELEASES.get(architecture)
    return architecture not in NEVER_SERVED and (last is None or vllm_release(version).version <= last)


def service_note(architecture: str, version: str) -> str | None:
    """What a user has to know of an architecture that vLLM ``version`` does not serve; None of any other."""
    if has_class(architecture, version):
        return None
    if architecture in NEVER_SERVED:
        return f"vLLM serves no {architecture}: sized as if it did."
    release, last = vllm_release(version).text, ".".join(map(str, LAST_RELEASES[architecture]))
    return (
        f"vLLM {release} no longer serves {architecture}; the last release that does is {last} (--engine vllm@{last})."
    )
