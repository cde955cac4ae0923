"""How many launches one captured step of kvplan's own engine holds, part by part.

Counted from the engine's code for the parts that families share; tests/engine/cuda compares them with what is captured.
What few families add (scales and norms of the residual stream, softcaps, learned scales) is not counted.
"""

from __future__ import annotations

from kvplan.catalog.parts import LATENT_PROJECTIONS
from kvplan.catalog.spec import (
    CompressedAttention,
    DenseFeedForward,
    FeedForward,
    LatentAttention,
    LayerSpec,
    Mixer,
    ModelSpec,
    MoeFeedForward,
    SoftmaxAttention,
    StateMixer,
)
from kvplan.errors import unhandled_kind
from kvplan.estimate.adapters import num_engine_products
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.kvplan.held_weights import holds_experts_in_few_bits
from kvplan.units import MIB

_ENDS = 5
"""Embedding, first norm, the rows to choose for, head, choice."""
_LEARNED_POSITIONS = 2
"""Looked up and added."""
_ADDED_WITH_NORM = 1
"""Of a block's output, up to the next block's input; of two mixers side by side one is added by itself."""
_CORRECTION = 2
"""Of each product that adapters may correct: x A^T, and B times that."""
_DIVIDED_EMBEDDING = 7
"""Beside the look-up: which tokens are another rank's (4), their rows left out before and behind it (2), the sum."""
_GATHER = 1
"""The gathering of the logits; each rank's part is copied after it."""
_ATTENTION = 4
"""qkv product, rotation with KV write, attention, output product."""
_HEAD_NORMS = 2
_GATE = 3
"""Product, activation, multiplication."""
_PROMPTS = 1
"""More in each attention of a step with prompts: sequences with several new tokens."""
_LATENT_ATTENTION = 13
"""Query, latent and its norm, two rotations, write; a product of each head and a copy into the latents, a copy of what
turns, attention, a product of each head and a copy out of them, output product."""
_QUERY_LATENT = 2
"""Another product, and a norm."""
_STATES = {
    "gated_delta_net": 6,
    "kimi_delta": 10,
    "mamba1": 7,
    "mamba2": 5,
    "short_conv": 5,
    "ngram_conv": 8,
    "stream_conv": 8,
    "linear_attention": 6,
}
"""Products into and out of the layer, convolution, recurrence and gate, as far as a kind has them."""
_STEP_NORMS = 3
"""Of what Mamba's time steps are made of, of B and of C."""
_MLP = 3
"""Up product, activation, down product."""
_ROUTING = 2
"""The router's product, and the choice."""
_SORTING = 1
_UNSORTED_ROWS = 4
_EXPERTS_UP = 1
_EXPERTS_DOWN = 2
"""Their second product, and the sum."""
_SUM_BYTES = 64 * MIB
"""What the experts give is kept in float32 for as many outputs at a time as this holds, in multiples of 128."""
_OUTPUT_MULTIPLE = 128
_MOST_EXPERTS, _MOST_CHOICES = 1024, 32
"""That the routing kernel takes."""
_VECTOR_BYTES = 16
"""Of which an expert's inner values are made."""


def step_launches(
    spec: ModelSpec, num_rows: int, *, has_adapters: bool = False, has_prompts: bool = False, num_ranks: int = 1
) -> int:
    """Count the launches of one decode step of ``num_rows`` sequences, or of a step with prompts of so many tokens.

    num_ranks: that share every layer; then ``spec`` is the first one's part, and collectives count as launches.
    """
    ends = _ENDS + (_LEARNED_POSITIONS if any(tensor.role == "position" for tensor in spec.tensors) else 0)
    corrections = _CORRECTION * num_engine_products(spec) if has_adapters else 0
    layers = sum(
        count * _layer_launches(layer, spec, num_rows, has_prompts=has_prompts)
        for layer, count in spec.distinct_layers()
    )
    return ends + _num_plans(spec) + corrections + layers + (_of_ranks(spec, num_ranks) if num_ranks > 1 else 0)


def _of_ranks(spec: ModelSpec, num_ranks: int) -> int:
    """Sums behind each mixer and feed-forward, a divided embedding, and the parts of the logits."""
    sums = sum(len(layer.mixers) + (layer.feed_forward is not None) for layer in spec.layers)
    return sums + _DIVIDED_EMBEDDING + _GATHER + num_ranks


def launches_each_expert(spec: ModelSpec, dtype: str, quantization: str, group_size: int | None = None) -> bool:
    """Whether the engine computes one expert after the other on a GPU, and captures no step then.

    Those in few bits, behind a latent of their own, or of sizes that its kernels do not take. quantization, group_size:
    see ``held_weights.held_weight_bytes``.
    """
    parts = (layer.feed_forward for layer, _ in spec.distinct_layers())
    mixtures = [each for each in parts if isinstance(each, MoeFeedForward)]
    if any(_is_left_to_torch(each, element_bytes(dtype)) for each in mixtures):
        return True
    return bool(mixtures) and holds_experts_in_few_bits(spec, quantization, group_size)


def _is_left_to_torch(mixture: MoeFeedForward, itemsize: int) -> bool:
    has_latent = any(tensor.name.endswith(LATENT_PROJECTIONS) for tensor in mixture.tensors)
    sizes = (mixture.expert_intermediate_size, mixture.shared_intermediate_size)
    is_large = mixture.num_experts > _MOST_EXPERTS or mixture.experts_per_token > _MOST_CHOICES
    return has_latent or is_large or any(size * itemsize % _VECTOR_BYTES for size in sizes)


def _num_plans(spec: ModelSpec) -> int:
    """Attention is planned once for each shape and window."""
    mixers = [mixer for layer, _ in spec.distinct_layers() for mixer in layer.mixers]
    softmax = {
        (each.num_heads, each.num_kv_heads, each.head_size_k, each.head_size_v, each.window_tokens)
        for each in mixers
        if isinstance(each, SoftmaxAttention)
    }
    return len(softmax) + any(isinstance(each, LatentAttention) for each in mixers)


def _layer_launches(layer: LayerSpec, spec: ModelSpec, num_rows: int, *, has_prompts: bool) -> int:
    mixers = sum(_mixer_launches(mixer, spec, has_prompts=has_prompts) + _ADDED_WITH_NORM for mixer in layer.mixers)
    part = layer.feed_forward
    return mixers + (0 if part is None else _inner_launches(part, spec, num_rows) + _ADDED_WITH_NORM)


def _mixer_launches(mixer: Mixer, spec: ModelSpec, *, has_prompts: bool) -> int:
    of_prompts = _PROMPTS if has_prompts else 0
    match mixer:
        case SoftmaxAttention():
            norms = _HEAD_NORMS if mixer.qk_norm != "none" else 0
            return _ATTENTION + norms + (_GATE if mixer.output_gate != "none" else 0) + of_prompts
        case CompressedAttention():  # which the engine does not compute yet
            return _LATENT_ATTENTION + _QUERY_LATENT + of_prompts
        case LatentAttention():
            query = _QUERY_LATENT if mixer.q_lora_rank is not None else 0
            return _LATENT_ATTENTION + query + of_prompts
        case StateMixer():
            return _STATES[mixer.kind] + (_STEP_NORMS if _has_step_norms(mixer, spec) else 0)
    raise unhandled_kind(mixer, "step_launches")


def _has_step_norms(mixer: StateMixer, spec: ModelSpec) -> bool:
    """Falcon Mamba's have no weights."""
    named = any("dt_layernorm" in tensor.name for tensor in mixer.tensors)
    return named or (mixer.kind == "mamba1" and spec.model_type == "falcon_mamba")


def _inner_launches(part: FeedForward, spec: ModelSpec, num_rows: int) -> int:
    match part:
        case DenseFeedForward():
            return _MLP
        case MoeFeedForward():
            return _mixture_launches(part, spec.hidden_size, num_rows)
    raise unhandled_kind(part, "step_launches")


def _mixture_launches(mixture: MoeFeedForward, hidden_size: int, num_rows: int) -> int:
    """The shared expert has two products beside those of the others."""
    num_shared = 1 if mixture.shared_intermediate_size else 0
    num_sums = num_rows * (mixture.experts_per_token + num_shared)
    fitting = _SUM_BYTES // (4 * num_sums) // _OUTPUT_MULTIPLE * _OUTPUT_MULTIPLE
    num_slices = -(-hidden_size // max(_OUTPUT_MULTIPLE, fitting))
    sorting = _SORTING if num_rows > _UNSORTED_ROWS else 0
    return _ROUTING + sorting + _EXPERTS_UP + num_shared + num_slices * (_EXPERTS_DOWN + num_shared)
