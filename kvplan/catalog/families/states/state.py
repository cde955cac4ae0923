"""Mixers whose memory does not grow with the sequence, and models made only of them (Mamba, Mamba 2)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import HIDDEN_KEYS, LAYER_KEYS, Body, read_tied
from kvplan.catalog.parts import linear, norm, norms, outside
from kvplan.catalog.spec import LayerSpec, StateMixer
from kvplan.catalog.tensors import Tensor


def read_state_dtype(view: ConfigView) -> str | None:
    """The recurrent state's own dtype where the config states one (Nemotron-H, Qwen 3.5), else None: the model's."""
    for key in ("mamba_ssm_cache_dtype", "mamba_ssm_dtype"):
        if view.has(key):
            name = view.text(key).removeprefix("torch.")
            if name not in ("float32", "float16", "bfloat16"):
                raise view.reject(key, "float32, float16 or bfloat16")
            return name
    return None


def _convolution(name: str, channels: int, kernel: int, *, bias: bool) -> tuple[Tensor, ...]:
    weight = Tensor(f"{name}.conv1d", (channels, 1, kernel), "conv", "ranks")
    return (weight, Tensor(f"{name}.conv1d.bias", (channels,), "bias", "ranks")) if bias else (weight,)


def _per_head(name: str, heads: int, *names: str) -> tuple[Tensor, ...]:
    return tuple(Tensor(f"{name}.{each}", (heads,), "state", "ranks") for each in names)


@dataclass(frozen=True, slots=True)
class Mamba1Sizes:
    """Sizes of a Mamba mixer; ``inner_norms`` for Jamba's norms of time step, B and C."""

    intermediate: int
    state: int
    kernel: int
    time_step_rank: int
    conv_bias: bool = True
    bias: bool = False
    inner_norms: bool = False


def mamba1(hidden: int, sizes: Mamba1Sizes, *, name: str = "mixer") -> StateMixer:
    inner, state, rank = sizes.intermediate, sizes.state, sizes.time_step_rank
    tensors = linear(f"{name}.in_proj", 2 * inner, hidden, "column", bias=sizes.bias)
    tensors += _convolution(name, inner, sizes.kernel, bias=sizes.conv_bias)
    tensors += linear(f"{name}.x_proj", rank + 2 * state, inner, "row")
    tensors += linear(f"{name}.dt_proj", inner, rank, "column", bias=True)
    tensors += (Tensor(f"{name}.A_log", (inner, state), "state", "ranks"), *_per_head(name, inner, "D"))
    tensors += linear(f"{name}.out_proj", hidden, inner, "row", bias=sizes.bias)
    if sizes.inner_norms:
        tensors += norm(f"{name}.dt_layernorm", rank)
        tensors += norm(f"{name}.b_layernorm", state) + norm(f"{name}.c_layernorm", state)
    return StateMixer("mamba1", inner, sizes.kernel, (inner, state), step_rank=rank, tensors=tensors)


@dataclass(frozen=True, slots=True)
class Mamba2Sizes:
    """Sizes of a Mamba 2 mixer; ``gated_norm``: the output passes a norm of the inner size."""

    heads: int
    head: int
    state: int
    groups: int
    kernel: int
    intermediate: int
    conv_bias: bool = True
    bias: bool = False
    output_bias: bool = False
    gated_norm: bool = True


def mamba2(hidden: int, sizes: Mamba2Sizes, *, state_dtype: str | None = None, name: str = "mixer") -> StateMixer:
    inner, grouped = sizes.intermediate, 2 * sizes.groups * sizes.state
    tensors = linear(f"{name}.in_proj", 2 * inner + grouped + sizes.heads, hidden, "column", bias=sizes.bias)
    tensors += _convolution(name, inner + grouped, sizes.kernel, bias=sizes.conv_bias)
    tensors += _per_head(name, sizes.heads, "dt_bias", "A_log", "D")
    tensors += norm(f"{name}.norm", inner) if sizes.gated_norm else ()
    tensors += linear(f"{name}.out_proj", hidden, inner, "row", bias=sizes.output_bias)
    return StateMixer(
        "mamba2",
        conv_channels=inner,
        conv_kernel=sizes.kernel,
        recurrent_shape=(sizes.heads, sizes.head, sizes.state),
        conv_group_channels=grouped,
        num_groups=sizes.groups,
        recurrent_dtype=state_dtype,
        tensors=tensors,
    )


@dataclass(frozen=True, slots=True)
class DeltaSizes:
    """Sizes of a gated delta net: few key heads, more value heads, one state matrix per value head."""

    key_heads: int
    key_head: int
    value_heads: int
    value_head: int
    kernel: int


def gated_delta_net(hidden: int, sizes: DeltaSizes, *, state_dtype: str | None = None) -> StateMixer:
    """Qwen3-Next's linear attention. Its projections of q, k, v and the gate may stand fused or apart: same weights.

    A row of the state is what one element of a value has with each element of a key.
    """
    name = "linear_attn"
    key, value = sizes.key_heads * sizes.key_head, sizes.value_heads * sizes.value_head
    channels = 2 * key + value
    tensors = linear(f"{name}.in_proj_qkvz", channels + value, hidden, "column")
    tensors += linear(f"{name}.in_proj_ba", 2 * sizes.value_heads, hidden, "column")
    tensors += _convolution(name, channels, sizes.kernel, bias=False)
    tensors += _per_head(name, sizes.value_heads, "dt_bias", "A_log")
    tensors += norm(f"{name}.norm", sizes.value_head)
    tensors += linear(f"{name}.out_proj", hidden, value, "row")
    shape = (sizes.value_heads, sizes.value_head, sizes.key_head)
    return StateMixer("gated_delta_net", channels, sizes.kernel, shape, recurrent_dtype=state_dtype, tensors=tensors)


def kimi_delta(
    hidden: int,
    heads: int,
    head: int,
    kernel: int,
    *,
    full_gate: bool = False,
    full_decay: bool = False,
    bounded: bool = False,
) -> StateMixer:
    """Kimi Delta Attention: q, k and v each convolved, a forget gate per channel, the state always in float32.

    ``full_gate``: the output's gate is one matrix (Kimi K3), not two of low rank; ``full_decay``: decays too (Ling 3).
    ``bounded``: as ``StateMixer``'s.
    """
    name, width = "self_attn", heads * head
    tensors: tuple[Tensor, ...] = ()
    for each in ("q_proj", "k_proj", "v_proj"):
        tensors += linear(f"{name}.{each}", width, hidden, "column")
    tensors += _convolution(name, 3 * width, kernel, bias=False)
    if full_decay:
        tensors += linear(f"{name}.f_proj", width, hidden, "column")
    else:
        tensors += linear(f"{name}.f_a_proj", head, hidden) + linear(f"{name}.f_b_proj", width, head, "column")
    tensors += _per_head(name, width, "dt_bias") + _per_head(name, heads, "A_log")
    tensors += linear(f"{name}.b_proj", heads, hidden, "column")
    if full_gate:
        tensors += linear(f"{name}.g_proj", width, hidden, "column")
    else:
        tensors += linear(f"{name}.g_a_proj", head, hidden) + linear(f"{name}.g_b_proj", width, head, "column")
    tensors += norm(f"{name}.o_norm", head) + linear(f"{name}.o_proj", hidden, width, "row")
    return StateMixer(
        "kimi_delta",
        3 * width,
        kernel,
        (heads, head, head),
        recurrent_dtype="float32",
        bounded=bounded,
        tensors=tensors,
    )


def short_convolution(hidden: int, kernel: int, *, bias: bool) -> StateMixer:
    """LFM2's gated short convolution: it remembers the last ``kernel - 1`` inputs and nothing else."""
    tensors = linear("conv.in_proj", 3 * hidden, hidden, "column", bias=bias)
    tensors += _convolution("conv", hidden, kernel, bias=bias)
    tensors += linear("conv.out_proj", hidden, hidden, "row", bias=bias)
    return StateMixer("short_conv", hidden, kernel, (), tensors=tensors)


def lightning_attention(hidden: int, heads: int, head: int, *, bias: bool = False, norms: bool = False) -> StateMixer:
    """MiniMax's linear attention: one matrix of head x head per head, no convolution.

    ``bias``: of queries, keys and values; ``norms``: of each head's queries and keys (Ling 2.5).
    """
    name, width = "self_attn", heads * head
    tensors = linear(f"{name}.qkv_proj", 3 * width, hidden, "column", bias=bias)
    tensors += norm(f"{name}.q_norm", head) + norm(f"{name}.k_norm", head) if norms else ()
    tensors += linear(f"{name}.output_gate", width, hidden, "column")
    tensors += norm(f"{name}.norm", width) + linear(f"{name}.out_proj", hidden, width, "row")
    return StateMixer("linear_attention", 0, 1, (heads, head, head), tensors=tensors)


def time_step_rank(view: ConfigView, key: str, hidden: int) -> int:
    """``auto`` is a sixteenth of the hidden size, rounded up."""
    return ceil(hidden / 16) if view.config.get(key) in (None, "auto") else view.integer(key)


def _state_body(view: ConfigView, mixer: StateMixer, hidden: int) -> Body:
    vocab = view.integer("vocab_size")
    tied = read_tied(view, default=True)
    layer = LayerSpec(mixer, None, None, norms(1, hidden))
    return Body(
        layers=(layer,) * view.layers(*LAYER_KEYS),
        tensors=outside(hidden, vocab, tied=tied),
        hidden_size=hidden,
        vocab_size=vocab,
        tied=tied,
        max_position_embeddings=None,
    )


def read_mamba(view: ConfigView) -> Body:
    """Mamba and Falcon Mamba: one mixer per layer and nothing else."""
    hidden = view.integer(*HIDDEN_KEYS)
    inner = view.integer("intermediate_size", default=view.integer("expand", default=2) * hidden)
    sizes = Mamba1Sizes(
        intermediate=inner,
        state=view.integer("state_size"),
        kernel=view.integer("conv_kernel", default=4),
        time_step_rank=time_step_rank(view, "time_step_rank", hidden),
        conv_bias=view.flag("use_conv_bias", default=True),
        bias=view.flag("use_bias", default=False),
    )
    return _state_body(view, mamba1(hidden, sizes), hidden)


def read_mamba2(view: ConfigView) -> Body:
    hidden = view.integer(*HIDDEN_KEYS)
    heads, head = view.integer("num_heads", default=128), view.integer("head_dim", default=64)
    bias = view.flag("use_bias", default=False)
    sizes = Mamba2Sizes(
        heads=heads,
        head=head,
        state=view.integer("state_size"),
        groups=view.integer("n_groups"),
        kernel=view.integer("conv_kernel", default=4),
        intermediate=view.integer("expand", default=2) * hidden,
        conv_bias=view.flag("use_conv_bias", default=True),
        bias=bias,
        output_bias=bias,
    )
    return _state_body(view, mamba2(hidden, sizes), hidden)
