"""llama.cpp's server: the cells of its KV cache, their bytes, and what lies beside them.

Rules read in llama.cpp b11434 (src/llama-context.cpp, llama-kv-cache.cpp, llama-kv-cache-iswa.cpp,
tools/server/server.cpp), compared with the start-ups in tests/data/engine_outputs/llamacpp.

A *cell* holds one token in every layer. The context is padded to 256 tokens, and divided in one of two ways:

* by slots (the default where ``--parallel`` is given): each of the ``n`` slots has ``ctx / n`` cells of its own, padded
  to 256 again, whatever the others leave unused;
* unified (``--kv-unified``; the default where ``--parallel`` is not given): all slots draw on one pool, and each
  takes up to ``--kv-unified-per-slot`` cells of it.

Layers with a window have cells of their own: as many as the window and a physical batch, for each slot (unified: for
all of them). Nothing is allocated later, and no sequence is ever preempted: a pool that runs out fails requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvplan.catalog.gguf.header import BLOCK_SIZES
from kvplan.catalog.spec import (
    DenseFeedForward,
    FeedForward,
    LatentAttention,
    ModelSpec,
    MoeFeedForward,
    SoftmaxAttention,
)
from kvplan.errors import KvplanError, UsageError, unhandled_kind
from kvplan.estimate.weights import size_weights

PADDING: Final = 256
"""Contexts and windows are padded to a multiple of this."""
DEFAULT_SLOTS: Final = 4
DEFAULT_BATCH: Final = 2048
DEFAULT_PHYSICAL_BATCH: Final = 512
MOST_SLOTS: Final = 256

CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""What ``--cache-type-k`` and ``--cache-type-v`` take."""
_BYTES_BY_TYPE: Final = {name.casefold(): (elements, size) for name, elements, size in BLOCK_SIZES.values()}

_WITH_WINDOWS: Final = (
    "Cohere2ForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Gemma3nForConditionalGeneration",
    "GptOssForCausalLM",
    "Olmo3ForCausalLM",
)
"""Architectures whose windows have cells of their own; those of others (Phi 3) are computed as full attention."""
_FLOAT_BYTES, _MASK_BYTES = 4, 2


@dataclass(frozen=True, slots=True)
class LlamaServerSettings:
    """What the command line says. context_tokens: ``--ctx-size``, of all slots together; None: what the slots ask for.

    num_slots: None: 4, unified. slot_tokens: ``--kv-unified-per-slot``. batch_tokens, physical_batch_tokens:
    ``--batch-size``, ``--ubatch-size``. keeps_windows_whole: ``--swa-full``.
    """

    num_slots: int | None = None
    context_tokens: int | None = None
    is_unified: bool = False
    slot_tokens: int | None = None
    key_type: str = "f16"
    value_type: str = "f16"
    batch_tokens: int = DEFAULT_BATCH
    physical_batch_tokens: int = DEFAULT_PHYSICAL_BATCH
    keeps_windows_whole: bool = False


@dataclass(frozen=True, slots=True)
class LlamaCppPrediction:
    """Bytes of one start. num_cells: of one stream; a stream is a slot's part of the cache, or all of it if unified.

    kv_cache_tokens: cells of all streams, in layers that keep every token. slot_tokens: the longest sequence.
    kv_cache_bytes: K and V, as printed. bytes_per_token: of one more cell, windows left out. compute_bytes: an estimate
    of the graph's scratch, for the check whether a start fits; the other figures follow from the rules above.
    """

    num_slots: int
    num_streams: int
    num_cells: int
    num_window_cells: int
    kv_cache_tokens: int
    slot_tokens: int
    bytes_per_token: int
    kv_cache_bytes: int
    weight_bytes: int
    output_bytes: int
    compute_bytes: int

    @property
    def fixed_bytes(self) -> int:
        """Everything beside the KV cache."""
        return self.weight_bytes + self.output_bytes + self.compute_bytes


def predict_llamacpp(spec: ModelSpec, settings: LlamaServerSettings) -> LlamaCppPrediction:
    """The memory of one server with ``spec``. UsageError for a cache type or a number of slots that it refuses.

    KvplanError for caches whose layout in llama.cpp is not modelled (states, encoders, sparse attention).
    """
    slots = DEFAULT_SLOTS if settings.num_slots is None else settings.num_slots
    _refuse(settings, slots)
    is_unified = settings.is_unified or settings.num_slots is None
    asked = _context(spec, settings, slots, is_unified)
    stream_tokens = asked if is_unified else _padded(asked // slots)
    streams = 1 if is_unified else slots
    total = streams * stream_tokens
    batch = min(settings.physical_batch_tokens, settings.batch_tokens, total)
    window_cells = _window_cells(spec, settings, stream_tokens, slots if is_unified else 1, batch)
    per_token, per_window_token = _cell_bytes(spec, settings)
    limit = settings.slot_tokens if is_unified and settings.slot_tokens else stream_tokens
    return LlamaCppPrediction(
        num_slots=slots,
        num_streams=streams,
        num_cells=stream_tokens,
        num_window_cells=window_cells,
        kv_cache_tokens=total,
        slot_tokens=min(limit, stream_tokens),
        bytes_per_token=per_token,
        kv_cache_bytes=streams * (stream_tokens * per_token + window_cells * per_window_token),
        weight_bytes=stored_weight_bytes(spec),
        output_bytes=slots * spec.vocab_size * _FLOAT_BYTES,
        compute_bytes=_compute_bytes(spec, batch, stream_tokens),
    )


def stored_weight_bytes(spec: ModelSpec) -> int:
    """The weights as the file holds them, which is how they are computed with."""
    if spec.checkpoint is None:
        return size_weights(spec, "float16").total_bytes
    return sum(each.num_bytes for each in (*spec.checkpoint.language_model, *spec.checkpoint.towers))


def _refuse(settings: LlamaServerSettings, slots: int) -> None:
    if not 1 <= slots <= MOST_SLOTS:
        raise UsageError(f"llama.cpp has no {slots:,} slots.", hint=f"1 to {MOST_SLOTS} of them (max_num_seqs)")
    for each in (settings.key_type, settings.value_type):
        if each not in CACHE_TYPES:
            raise UsageError(f"llama.cpp keeps no KV cache in '{each}'.", hint="one of " + ", ".join(CACHE_TYPES))


def _context(spec: ModelSpec, settings: LlamaServerSettings, slots: int, is_unified: bool) -> int:
    """Tokens of all slots together, padded."""
    if settings.context_tokens:
        return _padded(settings.context_tokens)
    if is_unified and settings.slot_tokens:
        return _padded(slots * settings.slot_tokens)
    longest = spec.max_position_embeddings
    if longest is None:
        raise KvplanError(f"{spec.served_id} does not say how long its context is.", hint="give --ctx-size")
    # Where only --parallel is given, each slot gets the model's whole context.
    return _padded(longest if is_unified else slots * longest)


def _window_cells(
    spec: ModelSpec, settings: LlamaServerSettings, stream_tokens: int, sequences_per_stream: int, batch: int
) -> int:
    windows = {mixer.window_tokens for mixer in _windowed(spec) if mixer.window_tokens}
    if not windows:
        return 0
    if len(windows) > 1:
        raise _not_modelled(spec)
    if settings.keeps_windows_whole:
        return stream_tokens
    return _padded(min(stream_tokens, windows.pop() * sequences_per_stream + batch))


def _cell_bytes(spec: ModelSpec, settings: LlamaServerSettings) -> tuple[int, int]:
    """K and V of one token: in all layers that keep every token, and in all that have a window."""
    windowed = set(map(id, _windowed(spec)))
    full = in_windows = 0
    for mixer in _attention(spec):
        size = _row_bytes(mixer, settings)
        if id(mixer) in windowed:
            in_windows += size
        else:
            full += size
    return full, in_windows


def _row_bytes(mixer: SoftmaxAttention | LatentAttention, settings: LlamaServerSettings) -> int:
    if isinstance(mixer, LatentAttention):
        # One row for latent and rotary part, of which the values are a view.
        return _packed_bytes(settings.key_type, mixer.cache_elements_per_token)
    if mixer.kv_shared_with is not None:
        return 0
    keys = _packed_bytes(settings.key_type, mixer.num_kv_heads * mixer.head_size_k)
    return keys + _packed_bytes(settings.value_type, mixer.num_kv_heads * mixer.head_size_v)


def _packed_bytes(cache_type: str, num_elements: int) -> int:
    """A row in whole blocks of the type: UsageError where it does not divide into them."""
    elements, size = _BYTES_BY_TYPE[cache_type]
    if num_elements % elements:
        raise UsageError(
            f"A row of {num_elements} elements does not divide into {cache_type}'s blocks of {elements}.",
            hint="use f16",
        )
    return num_elements // elements * size


def _attention(spec: ModelSpec) -> Iterable[SoftmaxAttention | LatentAttention]:
    for layer in spec.layers:
        if layer.cross_attention is not None:
            raise _not_modelled(spec)
        for mixer in layer.mixers:
            if not isinstance(mixer, SoftmaxAttention | LatentAttention) or mixer.indexer is not None:
                raise _not_modelled(spec)
            yield mixer


def _windowed(spec: ModelSpec) -> list[SoftmaxAttention]:
    if spec.architecture not in _WITH_WINDOWS:
        return []
    return [
        mixer
        for layer in spec.layers
        for mixer in layer.mixers
        if isinstance(mixer, SoftmaxAttention) and mixer.window_kind != "full"
    ]


def _compute_bytes(spec: ModelSpec, batch: int, stream_tokens: int) -> int:
    """An estimate: a physical batch's activations in float32 (gate, up and their product; five vectors) and its mask.

    Fitted to the 18 start-ups of one dense model, where it is within 5 % from two slots up.
    """
    widths = [_intermediate(layer.feed_forward) for layer in spec.layers]
    per_token = _FLOAT_BYTES * (3 * max(widths, default=0) + 5 * spec.hidden_size)
    return batch * (per_token + _MASK_BYTES * stream_tokens)


def _intermediate(feed_forward: FeedForward | None) -> int:
    if feed_forward is None:
        return 0
    if isinstance(feed_forward, DenseFeedForward):
        return feed_forward.intermediate_size
    if isinstance(feed_forward, MoeFeedForward):
        return feed_forward.experts_per_token * feed_forward.expert_intermediate_size
    raise unhandled_kind(feed_forward, "_intermediate")


def _padded(tokens: int) -> int:
    return -(-tokens // PADDING) * PADDING


def _not_modelled(spec: ModelSpec) -> KvplanError:
    return KvplanError(
        f"{spec.served_id} has caches whose layout in llama.cpp is not modelled.",
        hint="plan it for vLLM, or for kvplan",
    )
