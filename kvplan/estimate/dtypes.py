"""Number formats by name: bytes per element, scales beside them, and which one a model is served in by default."""

from __future__ import annotations

from kvplan.errors import KvplanError

BYTES_PER_ELEMENT: dict[str, float] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
    "fp8_ds_mla": 1,
    "mxfp8": 1,
    "int8": 1,
    "int8_per_token_head": 1,
}

_HEAD_SCALE_BYTES = {"int8_per_token_head": 4}
"""A float32 for each token and KV head, of its key and of its value (vllm/v1/attention/backends/triton_attn.py,
customize_spec, read in 0.32.0)."""


def head_scale_bytes(dtype: str) -> int:
    """Bytes of the scale that a cache in ``dtype`` keeps beside each key and each value of a KV head; 0 without."""
    return _HEAD_SCALE_BYTES.get(dtype, 0)


def element_bytes(dtype: str) -> int:
    """Bytes of one element of a cache or a weight in ``dtype``. KvplanError for one that only another program knows."""
    if dtype not in BYTES_PER_ELEMENT:
        raise KvplanError(f"Unknown dtype '{dtype}'.", hint=f"one of {', '.join(BYTES_PER_ELEMENT)}")
    return int(BYTES_PER_ELEMENT[dtype])


def serving_dtype(published: str, requested: str = "auto") -> str:
    """The dtype weights and activations have while serving: what was asked for, else as published.

    Weights published in float32 are served in the first dtype that vLLM names for the platform: bfloat16 from Ampere on
    (vllm/config/model.py, _resolve_auto_dtype, since 0.9.0; float16 before, of the same size). What an older GPU lacks
    is kvplan.catalog.devices.device_support's.
    """
    if requested != "auto":
        return requested
    return "bfloat16" if published in ("float32", "float64") else published


def cache_dtype(serving: str, requested: str = "auto") -> str:
    """The dtype of the KV cache: what was asked for, else that of the activations, independent of the weights."""
    return serving if requested == "auto" else requested
