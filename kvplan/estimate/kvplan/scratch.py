"""The scratch buffer of kvplan's engine: what one part of a layer writes for each token of a step, at its widest."""

from __future__ import annotations

from kvplan.catalog.spec import (
    DenseFeedForward,
    FeedForward,
    LatentAttention,
    Mixer,
    ModelSpec,
    MoeFeedForward,
    StateMixer,
)
from kvplan.errors import unhandled_kind
from kvplan.estimate.mixers import activation_width

_LAYER_INPUTS = "embed_tokens_per_layer"
_ELEMENTS_OF_EIGHT_CHOICES = 32
"""An expert's number and its weight are 8 bytes; 64 bytes for eight of them, in elements of 2 bytes."""


def scratch_elements(spec: ModelSpec) -> int:
    """Per token, the most that any mixer or feed-forward of ``spec`` needs at once; parts take turns."""
    mixers = (_mixer_elements(mixer) for layer in spec.layers for mixer in layer.mixers)
    parts = (_inner_elements(layer.feed_forward) for layer in spec.layers if layer.feed_forward is not None)
    return max([layer_input_elements(spec), *mixers, *parts])


def layer_input_elements(spec: ModelSpec) -> int:
    """Per token, of the second embedding that has an input for each layer (Gemma 3n, Gemma 4)."""
    return sum(tensor.shape[1] for tensor in spec.tensors if tensor.name == _LAYER_INPUTS)


def chosen_tokens(spec: ModelSpec) -> int:
    """The most tokens that a sparse attention's index takes in any layer; 0 without one."""
    latent = (mixer for layer in spec.layers for mixer in layer.mixers if isinstance(mixer, LatentAttention))
    return max((mixer.chosen_tokens or 0 for mixer in latent), default=0)


def _mixer_elements(mixer: Mixer) -> int:
    if isinstance(mixer, StateMixer):
        return _state_elements(mixer)
    return _latent_elements(mixer) if isinstance(mixer, LatentAttention) else activation_width(mixer, 1)


def _latent_elements(mixer: LatentAttention) -> int:
    """Queries (or outputs) of all heads, queries as wide as what is kept of a token, and the weighted latents.

    Queries attend to latents as they are kept, so no keys and values of heads lie anywhere. The query's latent and the
    row that is kept come and go before the weighted latents are there.
    """
    row = mixer.kv_lora_rank + mixer.qk_rope_head_size
    by_head = mixer.num_heads * max(mixer.qk_nope_head_size + mixer.qk_rope_head_size, mixer.v_head_size)
    weighted = max(mixer.num_heads * mixer.kv_lora_rank, (mixer.q_lora_rank or 0) + row)
    index = mixer.indexer
    # an index's queries, key and weights of its heads are done with before the wide queries are there
    indexed = 0 if index is None else index.num_heads * (index.head_size + 1) + index.head_size
    return by_head + max(mixer.num_heads * row, indexed) + weighted


def _state_elements(mixer: StateMixer) -> int:
    channels = mixer.conv_channels + mixer.conv_group_channels
    if mixer.kind == "mamba1":
        # inputs and gate side by side; what the time steps are made of, B and C; the time steps
        return 3 * channels + mixer.step_rank + 2 * mixer.recurrent_shape[-1]
    if mixer.kind == "mamba2":
        # one product gives gate, the convolution's inputs and a time step of each head
        return mixer.conv_channels + channels + mixer.recurrent_shape[0]
    if mixer.kind == "short_conv":
        return 3 * channels
    if mixer.kind in ("ngram_conv", "stream_conv"):
        # a key for every residual stream (or what comes out), and what is convolved
        return 2 * channels
    heads, value_size, key_size = mixer.recurrent_shape
    if mixer.kind == "linear_attention":
        return heads * (2 * key_size + 2 * value_size)
    # what is convolved and the gate of every value; a decay and a strength per head, or Kimi's decay per element of a
    # key, with one latent from which decays and gates are made in turn
    beside = heads * key_size + heads + key_size if mixer.kind == "kimi_delta" else 2 * heads
    return channels + heads * value_size + beside


def _inner_elements(part: FeedForward) -> int:
    if isinstance(part, DenseFeedForward):
        return part.intermediate_size * (2 if part.gated else 1)
    if isinstance(part, MoeFeedForward):
        inner = part.experts_per_token * part.expert_intermediate_size + part.shared_intermediate_size
        # without gates nothing is left over for what the router chose
        choice = -(-part.experts_per_token // 8) * _ELEMENTS_OF_EIGHT_CHOICES
        return 2 * inner if part.gated else inner + choice
    raise unhandled_kind(part, "_inner_elements")
