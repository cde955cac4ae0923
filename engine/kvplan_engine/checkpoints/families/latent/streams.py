"""Hyper-connections: parameters that gate several residual streams, which only count."""

from __future__ import annotations

from typing import Any

from kvplan_engine.description.model import Shape


def stream_shapes(config: dict[str, Any], *, mixes: bool = True) -> tuple[Shape, ...]:
    """What gates the streams before and after each of a layer's two blocks. mixes: also with each other."""
    streams, hidden = int(config.get("hc_mult", 4)), int(config["hidden_size"])
    rows, scales = (streams * (2 + streams), 3) if mixes else (2 * streams, 2)
    return tuple(
        Shape(f"{block}_hyper_connection.{name}", sizes)
        for block in ("attention", "mlp")
        for name, sizes in (("fn", (rows, streams * hidden)), ("base", (rows,)), ("scale", (scales,)))
    )


def head_shapes(config: dict[str, Any]) -> tuple[Shape, ...]:
    """What makes one of the streams behind the last layer."""
    streams, hidden = int(config.get("hc_mult", 4)), int(config["hidden_size"])
    sizes = {"hc_fn": (streams, streams * hidden), "hc_base": (streams,), "hc_scale": (1,)}
    return tuple(Shape(f"hyper_head.{name}", size) for name, size in sizes.items())
