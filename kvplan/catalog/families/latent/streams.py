"""Hyper-connections: several residual streams side by side, and what gates and mixes them (DeepSeek V4 and later).

vLLM keeps these in float32 (vllm/models/deepseek_v4/nvidia/model.py and hy_v4/nvidia/hc.py, read in 0.33.0).
"""

from __future__ import annotations

from kvplan.catalog.tensors import Tensor


def hyper_connections(hidden: int, streams: int, *, mixes: bool = True) -> tuple[Tensor, ...]:
    """Return what gates one layer's streams before and after each of its parts; ``mixes``: also with each other."""
    found: tuple[Tensor, ...] = ()
    rows, scales = ((2 + streams) * streams, 3) if mixes else (2 * streams, 2)
    for part in ("attn_hc", "ffn_hc"):
        found += (
            Tensor(f"{part}.fn", (rows, streams * hidden), "router", in_float32=True),
            Tensor(f"{part}.base", (rows,), "bias"),
            Tensor(f"{part}.scale", (scales,), "norm"),
        )
    return found


def hyper_head(hidden: int, streams: int) -> tuple[Tensor, ...]:
    """What gates the streams into one behind the last layer."""
    return (
        Tensor("hc_head.fn", (streams, streams * hidden), "router", in_float32=True),
        Tensor("hc_head.base", (streams,), "bias"),
        Tensor("hc_head.scale", (1,), "norm"),
    )
