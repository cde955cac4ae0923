"""RoPE of models whose layers turn in more than one way: tables of cosines and sines, each once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import Body, read_rope
from kvplan.catalog.spec import RopeSpec

FULL_TYPE, WINDOW_TYPE = "full_attention", "sliding_attention"
_LOCAL_THETA = 10_000.0


def with_ropes(body: Body, ropes: Iterable[RopeSpec]) -> Body:
    """``body`` with the ways in which its layers turn, alike ones once; the first is its main one."""
    main, *further = dict.fromkeys(ropes)
    return replace(body, rope=main, further_ropes=tuple(further))


def rope_of_type(
    view: ConfigView, head_size: int, layer_type: str, *, theta: float = _LOCAL_THETA, share: float = 1.0
) -> RopeSpec:
    """Read the RoPE of layers of ``layer_type``: their own part of ``rope_parameters``, or what it says for all."""
    parameters = view.section("rope_parameters")
    own = None if parameters is None else parameters.section(layer_type)
    if own is not None:
        view = ConfigView({"rope_parameters": own.config}, path=view.path, assumptions=view.assumptions)
    return read_rope(view, head_size, default_share=share, default_theta=theta)


def gemma3_ropes(view: ConfigView, head_size: int) -> tuple[RopeSpec, ...]:
    """Full layers with a large base and a scaling, windows with ``rope_local_base_freq`` and none."""
    full = rope_of_type(view, head_size, FULL_TYPE, theta=1_000_000.0)
    if view.section("rope_parameters") is not None:
        return full, rope_of_type(view, head_size, WINDOW_TYPE)
    return full, RopeSpec(view.number("rope_local_base_freq", default=_LOCAL_THETA), head_size)


def olmo3_ropes(view: ConfigView, head_size: int) -> tuple[RopeSpec, ...]:
    """A scaling is for the full layers alone."""
    full = rope_of_type(view, head_size, FULL_TYPE)
    if view.section("rope_parameters") is not None:
        return full, rope_of_type(view, head_size, WINDOW_TYPE)
    return full, RopeSpec(full.theta, head_size)


def mellum_ropes(view: ConfigView, head_size: int) -> tuple[RopeSpec, ...]:
    """A base of each type of layers: 500,000 for full ones where the config says none."""
    return rope_of_type(view, head_size, FULL_TYPE, theta=500_000.0), rope_of_type(view, head_size, WINDOW_TYPE)


def plamo3_ropes(view: ConfigView, head_size: int) -> tuple[RopeSpec, ...]:
    """A base of each type of layers, or ``rope_local_theta`` for the windows."""
    full = rope_of_type(view, head_size, FULL_TYPE)
    parameters = view.section("rope_parameters")
    if parameters is not None and parameters.has(WINDOW_TYPE):
        return full, rope_of_type(view, head_size, WINDOW_TYPE)
    return full, RopeSpec(view.number("rope_local_theta", default=_LOCAL_THETA), head_size)


def granite_swa_ropes(view: ConfigView, head_size: int) -> tuple[RopeSpec, ...]:
    """A base of each layer's own, where ``layer_rope_theta`` lists them; 0 turns nothing."""
    shared = read_rope(view, head_size)
    thetas = [theta for theta in view.numbers("layer_rope_theta") or [] if theta]
    return tuple(replace(shared, theta=theta) for theta in thetas) or (shared,)
