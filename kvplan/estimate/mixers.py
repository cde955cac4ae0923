"""What a step asks of each kind of attention and state: the entries a token attends to, and the activations inside.

Together with ``kv_cache.layer_entries`` (what is cached) these are the questions that a new kind in
kvplan/catalog/spec.py has to answer. A kind without an answer is refused by name, never counted as 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from kvplan.catalog.spec import (
    CompressedAttention,
    LatentAttention,
    LayerSpec,
    Mixer,
    SoftmaxAttention,
    StateMixer,
)
from kvplan.caveats import Caveat
from kvplan.errors import unhandled_kind


@dataclass(frozen=True, slots=True)
class AttentionSpan:
    """Cached entries that each new token meets: one for every ``stride`` tokens before it, at most ``limit``.

    ``width``: multiply-adds per entry, over all heads: the key's elements for its score, the value's for the sum.
    """

    width: int
    stride: int = 1
    limit: int | None = None

    def multiply_adds(self, num_tokens: float) -> float:
        """Count the multiply-adds of one new token that comes after ``num_tokens`` others."""
        entries = num_tokens / self.stride
        return self.width * (entries if self.limit is None else min(entries, self.limit))

    @property
    def width_per_token(self) -> float:
        """Multiply-adds per new token and token before it, as if there were no limit."""
        return self.width / self.stride


def attention_spans(layer: LayerSpec) -> tuple[AttentionSpan, ...]:
    """What a new token attends to in the layer's own sequence. Cross attention is not in it: see ``speed_caveats``."""
    return tuple(span for mixer in layer.mixers for span in _mixer_spans(mixer))


def _mixer_spans(mixer: Mixer) -> tuple[AttentionSpan, ...]:
    if isinstance(mixer, SoftmaxAttention):
        width, indexer = mixer.num_heads * (mixer.head_size_k + mixer.head_size_v), mixer.indexer
        if indexer is None:
            return (AttentionSpan(width, limit=mixer.window_tokens),)
        # Each token's queries are scored with all keys of the index and meet only what was chosen, in prompts and
        # decode steps alike (vllm/models of 0.33: minimax_m3/common/ops, step5/nvidia/ops, qwen4_exp).
        scores = AttentionSpan(indexer.num_heads * indexer.head_size, stride=indexer.pool)
        return (AttentionSpan(width, limit=indexer.most_chosen), scores)
    if isinstance(mixer, LatentAttention):
        head = mixer.qk_nope_head_size + mixer.qk_rope_head_size + mixer.v_head_size
        return (AttentionSpan(mixer.num_heads * head, limit=mixer.chosen_tokens),)
    if isinstance(mixer, CompressedAttention):
        return _compressed_spans(mixer)
    if isinstance(mixer, StateMixer):
        # A state is as large after a million tokens as after one: nothing grows with the context. Its projections are
        # among the parameters that every token is multiplied with.
        return ()
    raise unhandled_kind(mixer, "attention_spans")


def _compressed_spans(mixer: CompressedAttention) -> tuple[AttentionSpan, ...]:
    """The window, one compressed entry per ``ratio`` tokens, and the indexer that chooses ``topk`` of these.

    An entry of ``head_size`` elements is key and value at once, so that it costs heads x 2 x head size; the indexer
    scores every compressed entry with its own heads, which have no value.
    (transformers, models/deepseek_v4/modeling_deepseek_v4.py: DeepseekV4Attention, DeepseekV4Indexer.)
    """
    width = 2 * mixer.num_heads * mixer.head_size
    window = AttentionSpan(width, limit=mixer.window_tokens)
    if mixer.ratio is None:
        return (window,)
    indexer = mixer.indexer
    if indexer is None:
        return (window, AttentionSpan(width, stride=mixer.ratio))
    chosen = AttentionSpan(width, stride=mixer.ratio, limit=indexer.topk)
    if not mixer.chooses:
        return (window, chosen)
    return (window, chosen, AttentionSpan(indexer.num_heads * indexer.head_size, stride=mixer.ratio))


def merged_spans(layers: Iterable[LayerSpec]) -> tuple[AttentionSpan, ...]:
    """The spans of all ``layers``, equal strides and limits added up."""
    widths: Counter[tuple[int, int | None]] = Counter()
    for layer in layers:
        for span in attention_spans(layer):
            widths[span.stride, span.limit] += span.width
    return tuple(AttentionSpan(width, stride, limit) for (stride, limit), width in widths.items())


def speed_caveats(layers: Iterable[LayerSpec]) -> tuple[str, ...]:
    """What predicted speeds leave out, one sentence each."""
    found, layers = list[str](), list(layers)
    if any(layer.cross_attention is not None for layer in layers):
        found.append(Caveat("Speeds leave out the encoder and the attention to its output."))
    if any(isinstance(layer.mixer, SoftmaxAttention) and layer.mixer.indexer is not None for layer in layers):
        found.append(
            "Sparse attention is timed as dense attention to the tokens that it chooses, and their index: nobody has "
            "published how fast its own kernels are."
        )
    return tuple(found)


def activation_width(mixer: Mixer, tensor_parallel_size: int) -> int:
    """Elements per token that are alive inside a mixer at its widest point, on one rank: projections and output."""
    tp = tensor_parallel_size
    if isinstance(mixer, SoftmaxAttention):
        kv_heads = max(mixer.num_kv_heads // tp, 1)
        return (mixer.num_heads // tp + kv_heads) * (mixer.head_size_k + mixer.head_size_v)
    if isinstance(mixer, LatentAttention):
        heads = mixer.num_heads // tp
        query = heads * (mixer.qk_nope_head_size + mixer.qk_rope_head_size)
        expanded = heads * (mixer.qk_nope_head_size + mixer.v_head_size)
        return 2 * query + expanded + heads * mixer.v_head_size + mixer.kv_lora_rank + (mixer.q_lora_rank or 0)
    if isinstance(mixer, CompressedAttention):
        # Queries and output of every head, the one vector that is key and value, and the indexer's queries, which
        # every rank has.
        indexer = mixer.indexer.num_heads * mixer.indexer.head_size if mixer.indexer and mixer.chooses else 0
        return (2 * (mixer.num_heads // tp) + 1) * mixer.head_size + indexer
    if isinstance(mixer, StateMixer):
        # Projected inputs, their convolution, and the gate beside them.
        return 3 * (mixer.conv_channels + mixer.conv_group_channels) // tp
    raise unhandled_kind(mixer, "activation_width")
