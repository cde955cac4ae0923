"""Devices that people ask for and that have no profile: what can be said instead of "unknown"."""

from __future__ import annotations

import re
from typing import Final

_SIZES_ONLY: Final = "sizes the memory of one with 24 GiB, not its speed"

_HINTS: Final[tuple[tuple[str, str], ...]] = (
    (
        r"(apple\b.*|(apple )?m[1-9]( (pro|max|ultra))?( \d+ ?gb)?|mac( ?book| ?studio| ?mini|\b).*|metal|mps)",
        "Apple's GPUs share the machine's memory, and vLLM runs there on the CPU: --gpu cpu --device-memory 64GiB "
        "sizes that; on the GPU itself run the model's GGUF file in llama.cpp",
    ),
    (
        r"((amd |ati )?(radeon )?(rx ?[5-9]\d{3}|[79][079]00|pro w[67]\d{3}|w[67]\d{3}|vii\b|r9700|ai pro).*|radeon.*)",
        f"Radeon cards have no profile; vLLM's ROCm builds run on some of them. --gpu mi300x --device-memory 24GiB "
        f"{_SIZES_ONLY}",
    ),
    (
        r"((nvidia )?(jetson|orin|xavier|thor|(agx|tx2|t[45]000)\b).*|(nvidia )?(agx|drive) (orin|thor|xavier).*)",
        "Jetson modules have no profile: they share the host's memory, of which the system keeps its part, and vLLM's "
        "builds run on some of them (Orin, Thor). --gpu gb10 --device-memory 56GiB sizes the memory of one with 64 GB, "
        "not its speed",
    ),
    (
        r"((amd )?(strix.*|ryzen ai.*|ai max.*))",
        "AMD's processors with built-in graphics share the machine's memory and have no profile: --gpu cpu "
        "--device-memory 96GiB sizes the model on the processor",
    ),
    (
        r"((amd )?(instinct )?mi(8|25|50|60|100|210|300a|308x?|350x?)\b.*)",
        "this Instinct has no profile: --gpu mi250x or mi300x with --device-memory 64GiB sizes one of that memory, "
        "not its speed",
    ),
    (
        r"((intel )?(arc|gaudi|max \d+|pvc|flex|b[56]0|b580|a770).*|hpu|xpu)",
        "Intel's GPUs and Gaudi have no profile; vLLM runs on them through plugins with budgets of their own",
    ),
    (
        r"((google )?tpu.*|v[4-7][ep]?( \d+)?|trillium|ironwood|(aws )?(inferentia|trainium|inf|trn)\d?.*)",
        "TPUs and AWS's accelerators have no profile; vLLM runs on them through plugins with budgets of their own",
    ),
    (
        r"((nvidia )?(geforce )?((gtx |titan (x|z|black|k)).*|[kmp]\d{1,3}0|10[5-8]0 ?(ti)?)"
        r"|(nvidia )?(tesla|quadro) [kmp]\d+.*)",
        "vLLM needs compute capability 7.0 or more (Volta and later). Of a newer card without a profile, "
        f"--gpu t4 --device-memory 24GiB {_SIZES_ONLY}",
    ),
)
"""Names as people write them, in lower case with spaces for hyphens (a pattern for the whole name), and the hint."""


def unlisted_hint(name: str) -> str | None:
    """The way out for a device that kvplan has no profile of; None where nothing is known of it."""
    words = " ".join(re.sub(r"[-_]", " ", name.casefold()).split())
    return next((hint for pattern, hint in _HINTS if re.fullmatch(pattern, words)), None)
