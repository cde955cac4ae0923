"""Names of families of kernels: those that one verdict is about, and that one twin stands in for.

Kernels that read a cache of fp8 have conversions of their own, so they are families of their own too.
"""

from __future__ import annotations

import torch

DECODE_MMA, PREFILL_MMA, PREFILL_SHORT = "decode_mma", "prefill_mma", "prefill_short"
DECODE_SIMPLE, PREFILL_SIMPLE = "decode_simple", "prefill_simple"
PREFILL_WGMMA, LATENT_MMA, SHARED_PREFIX = "prefill_wgmma", "latent_mma", "shared_prefix"
WRITE_KV, DEPENDENT_LAUNCH = "write_kv", "dependent_launch"
SKINNY, QUANTISED_MMA, QUANTISED_SIMPLE = "skinny_mma", "quantised_mma", "quantised_simple"
QUANTISED_WIDEN = "quantised_widen"
FLOAT8_MMA, FLOAT8_SHORT = "float8_mma", "float8_short"
MIXTURE_MMA, MIXTURE_SIMPLE, MIXTURE_LARGE = "mixture_mma", "mixture_simple", "mixture_large"
STATES, DRAWS, LORA = "states", "draws", "lora"
ALL_REDUCE = "all_reduce"
OPERATIONS = (
    "rms_norm",
    "add_rms_norm",
    "layer_norm",
    "add_layer_norm",
    "rope_inplace",
    "silu_and_mul",
    "gelu_new_inplace",
    "gelu_inplace",
    "argmax_rows",
    "copy_blocks",
    "copy_inputs",
)
"""Of ``kernels.interface.Ops``, each a family."""

_OF_FP8 = "_fp8"


def of_cache(family: str, cache: torch.dtype) -> str:
    """``family`` over a cache of this type."""
    return family + _OF_FP8 if cache is torch.float8_e4m3fn else family
