"""What each kind of attention and state keeps in the cache: one entry for each thing a layer keeps, on one rank.

How a rank divides them is vLLM's rule (vllm/v1/kv_cache_interface.py, vllm/model_executor/layers/mamba/mamba_utils.py):
at least one KV head per rank, a latent cache is not divided, states are divided along heads and channels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from kvplan.catalog.spec import (
    CompressedAttention,
    CrossAttention,
    LatentAttention,
    LayerSpec,
    Mixer,
    ModelSpec,
    SoftmaxAttention,
    SparseIndexer,
    StateMixer,
)
from kvplan.errors import UsageError, unhandled_kind
from kvplan.estimate.dtypes import element_bytes, head_scale_bytes

EntryKind = Literal[
    "full",
    "sliding",
    "chunked",
    "latent",
    "compressed",
    "indexer",
    "index_tail",
    "conv_state",
    "ngram_state",
    "recurrent_state",
    "cross",
]

KIND_NAMES: dict[EntryKind, str] = {
    "full": "full attention",
    "sliding": "sliding window",
    "chunked": "chunked attention",
    "latent": "latent attention (MLA)",
    "indexer": "indexer keys",
    "index_tail": "last tokens before a key",
    "compressed": "compressed attention",
    "conv_state": "convolution state",
    "ngram_state": "convolution state of n-grams",
    "recurrent_state": "recurrent state",
    "cross": "cross attention",
}
"""Each kind as it is called in tables and messages."""

DS_MLA_BYTES_PER_TOKEN = 656
"""One token of one MLA layer in fp8_ds_mla: 512 fp8 values, 4 float32 scales, 64 bfloat16 rotary values."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Everything but the model that decides the size of a cache."""

    model_dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    state_dtype: str | None = None
    """The recurrent state's dtype when the user overrides the model's."""
    tensor_parallel_size: int = 1
    encoder_tokens: int | None = None
    indexer_dtype: str | None = None
    """An indexer's keys where the engine stores them in a format of their own (vLLM: fp8), else as the KV cache."""
    num_speculative_tokens: int = 0
    """Draft tokens per step, each of which a convolution keeps an input for until it is accepted."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """What one layer keeps for one sequence, on one rank.

    ``token_bytes`` per token that it keeps (0 for states), or per ``tokens_per_row`` of them; ``window_tokens`` at most
    so many (None: all of them), ``state_bytes`` however long the sequence is. ``formula`` is one layer's arithmetic
    with its numbers. ``read_tokens``: at most so many are read for a new token, where an index chooses them (None: all
    that are kept).
    """

    kind: EntryKind
    num_kv_heads: int | None
    head_size: int | None
    window_tokens: int | None
    token_bytes: int
    state_bytes: int
    formula: str
    tokens_per_row: int = 1
    read_tokens: int | None = None

    def kept_bytes(self, context_tokens: int) -> int:
        """Bytes for a sequence of ``context_tokens``: what the architecture needs, without any rounding."""
        kept = context_tokens if self.window_tokens is None else min(context_tokens, self.window_tokens)
        return kept // self.tokens_per_row * self.token_bytes + self.state_bytes

    def read_bytes(self, context_tokens: int) -> int:
        """Bytes that a new token after ``context_tokens`` others makes an engine read, and of states write back.

        aiconfigurator-core 0.12.0 has Qwen3.5-27B's recurrence for 64 sequences at 104 us a layer on an H200 and at 70
        on a B200 (vLLM 0.24): twice its 201 MB in float32 at 0.80 and 0.73 of the memory's bandwidth.
        """
        read = self.kept_bytes(context_tokens if self.read_tokens is None else min(context_tokens, self.read_tokens))
        return read + self.state_bytes


def rank_kv_heads(num_kv_heads: int, tensor_parallel_size: int) -> int:
    """KV heads on one rank: divided evenly, or one replicated head when there are more ranks than heads."""
    if num_kv_heads >= tensor_parallel_size:
        if num_kv_heads % tensor_parallel_size:
            raise UsageError(
                f"{num_kv_heads} KV heads cannot be divided over {tensor_parallel_size} tensor-parallel ranks.",
                hint="choose a --tensor-parallel-size that divides the KV heads, or is a multiple of them",
            )
        return num_kv_heads // tensor_parallel_size
    if tensor_parallel_size % num_kv_heads:
        raise UsageError(
            f"{tensor_parallel_size} tensor-parallel ranks are not a multiple of {num_kv_heads} KV heads.",
            hint="choose a --tensor-parallel-size that divides the KV heads, or is a multiple of them",
        )
    return 1


def encoder_tokens_of(spec: ModelSpec, asked: int | None) -> int | None:
    """Encoder tokens per sequence: what is ``asked`` for, else what the config fixes; None where neither says it.

    UsageError where they are asked for of a model without cross attention.
    """
    fixed = fixed_encoder_tokens(spec)
    if asked is not None and not spec.attends_to_encoder:
        raise UsageError(f"{spec.served_id} has no cross attention.", hint="leave --encoder-tokens out")
    return fixed if asked is None else asked


def fixed_encoder_tokens(spec: ModelSpec) -> int | None:
    """What the config gives a sequence (Whisper: 1,500); None where the input decides."""
    crossed = (layer.cross_attention for layer in spec.layers if layer.cross_attention is not None)
    first = next(crossed, None)
    return None if first is None else first.encoder_tokens


def layer_entries(layer: LayerSpec, settings: CacheSettings) -> tuple[CacheEntry, ...]:
    """The cache entries of one layer on one rank; empty for a layer that caches nothing of its own."""
    entries: list[CacheEntry] = []
    for mixer in layer.mixers:
        entries.extend(_mixer_entries(mixer, settings))
    if layer.cross_attention is not None:
        entries.append(_cross_entry(layer.cross_attention, settings))
    return tuple(entries)


def _mixer_entries(mixer: Mixer, settings: CacheSettings) -> Iterable[CacheEntry]:
    if isinstance(mixer, SoftmaxAttention):
        return _softmax_entries(mixer, settings)
    if isinstance(mixer, LatentAttention):
        return _latent_entries(mixer, settings)
    if isinstance(mixer, CompressedAttention):
        return _compressed_entries(mixer, settings)
    if isinstance(mixer, StateMixer):
        return _state_entries(mixer, settings)
    raise unhandled_kind(mixer, "layer_entries")


def refuse_scales(kv_dtype: str, kept: str) -> None:
    """UsageError where a cache in ``kv_dtype`` has a scale for each head, and ``kept`` is not of heads."""
    if head_scale_bytes(kv_dtype):
        raise UsageError(
            f"A KV cache in {kv_dtype} is for keys and values of KV heads, and this model keeps {kept}.",
            hint="use --kv-cache-dtype fp8",
        )


def _heads_formula(kv_heads: int, head_k: int, head_v: int, size: int, scale: int = 0) -> str:
    if scale and head_k == head_v:
        return f"2 (K, V) x {kv_heads} KV heads x ({head_k} x {size} B + {scale} B scale)"
    if scale:
        return f"{kv_heads} KV heads x (({head_k} K + {head_v} V) x {size} B + 2 x {scale} B scale)"
    if head_k == head_v:
        return f"2 (K, V) x {kv_heads} KV heads x {head_k} x {size} B"
    return f"{kv_heads} KV heads x ({head_k} K + {head_v} V) x {size} B"


def _softmax_entries(mixer: SoftmaxAttention, settings: CacheSettings) -> Iterable[CacheEntry]:
    if mixer.kv_shared_with is not None:
        return
    heads = rank_kv_heads(mixer.num_kv_heads, settings.tensor_parallel_size)
    size, scale = element_bytes(settings.kv_dtype), head_scale_bytes(settings.kv_dtype)
    yield CacheEntry(
        kind=mixer.window_kind,
        num_kv_heads=heads,
        head_size=mixer.head_size_k,
        window_tokens=mixer.window_tokens if mixer.window_kind != "full" else None,
        token_bytes=heads * ((mixer.head_size_k + mixer.head_size_v) * size + 2 * scale),
        state_bytes=0,
        formula=_heads_formula(heads, mixer.head_size_k, mixer.head_size_v, size, scale),
        read_tokens=None if mixer.indexer is None else mixer.indexer.most_chosen,
    )
    if mixer.indexer is None:
        return
    refuse_scales(settings.kv_dtype, "index keys")
    if mixer.indexer.pool == 1:
        yield _indexer_entry(mixer.indexer.head_size, settings.indexer_dtype or settings.kv_dtype)
    elif mixer.indexer.key_format == "model":
        yield from _mean_key_entries(mixer.indexer, settings)
    else:
        yield from _pooled_entries(mixer.indexer, settings)


def _mean_key_entries(indexer: SparseIndexer, settings: CacheSettings) -> Iterable[CacheEntry]:
    """One key for each pool of tokens, and the keys of a pool that is open; not divided by ranks.

    Drafted tokens may open more pools, which are whole until the tokens are accepted
    (vllm/models/qwen4_exp/common/qsa_cache.py).
    """
    size, pool, head, own = element_bytes(settings.model_dtype), indexer.pool, indexer.head_size, indexer.open_elements
    formula = f"{head} indexer key x {size} B / {pool} tokens"
    yield CacheEntry("indexer", 1, head, None, head * size // pool, 0, formula)
    kept = pool * -(-(pool + settings.num_speculative_tokens) // pool)
    yield CacheEntry("index_tail", 1, own, None, 0, kept * own * size, f"{kept} tokens x {own} x {size} B")


def _latent_entries(mixer: LatentAttention, settings: CacheSettings) -> Iterable[CacheEntry]:
    refuse_scales(settings.kv_dtype, "latents")
    size = element_bytes(settings.kv_dtype)
    width = mixer.cache_elements_per_token
    token_bytes, formula = width * size, f"({mixer.kv_lora_rank} latent + {mixer.qk_rope_head_size} rotary) x {size} B"
    if settings.kv_dtype == "fp8_ds_mla":
        token_bytes, formula = DS_MLA_BYTES_PER_TOKEN, f"{DS_MLA_BYTES_PER_TOKEN} B (512 fp8 + 16 scales + 128 rotary)"
    yield CacheEntry("latent", 1, width, None, token_bytes, 0, formula)
    if mixer.indexer is None:
        return
    key = _indexer_entry(mixer.indexer.head_size, settings.indexer_dtype or settings.kv_dtype)
    if mixer.indexer.pool == 1:
        yield key
        return
    pool = mixer.indexer.pool
    yield replace(key, tokens_per_row=pool, formula=f"{key.formula} / {pool} tokens")
    yield _tail_entry(mixer.indexer, settings)


def _tail_entry(indexer: SparseIndexer, settings: CacheSettings) -> CacheEntry:
    """Keys and gates of the tokens that are not enough for a key yet, always in 16 bits; with drafts of more pools.

    vllm/models/glm5next/common/attention.py, Glm5NextTailCache: a ring of a power of two of pools.
    """
    pools = -(-(indexer.pool + settings.num_speculative_tokens) // indexer.pool)
    tokens = indexer.pool * (1 << (pools - 1).bit_length())
    formula = f"{tokens} tokens x 2 (key, gate) x {indexer.head_size} x 2 B"
    return CacheEntry("index_tail", None, None, None, 0, tokens * 2 * indexer.head_size * 2, formula)


def _indexer_entry(head_size: int, kv_dtype: str) -> CacheEntry:
    """One key per token; in an 8-bit cache with one float32 scale for each 128 of its elements."""
    size = element_bytes(kv_dtype)
    if size > 1:
        return CacheEntry("indexer", 1, head_size, None, head_size * size, 0, f"{head_size} indexer key x {size} B")
    scales = -(-head_size // 128) * 4
    formula = f"({head_size} indexer key x 1 B + {scales} B scale)"
    return CacheEntry("indexer", 1, head_size, None, head_size + scales, 0, formula)


def _pooled_entries(indexer: SparseIndexer, settings: CacheSettings) -> Iterable[CacheEntry]:
    """A key for each pool, and what is kept of the tokens of one that is not complete; not divided by ranks (Step 5).

    Draft tokens may be taken back, so that a pool stays open for as many more.
    """
    head, pool = indexer.head_size, indexer.pool
    yield CacheEntry("indexer", 1, head, None, -(-head // pool), 0, f"{head} indexer key x 1 B / {pool} tokens")
    rows = pool - 1 + settings.num_speculative_tokens
    row_bytes = indexer.open_elements * element_bytes("bfloat16")
    formula = f"{rows} tokens x {indexer.open_elements} x {element_bytes('bfloat16')} B"
    yield CacheEntry("index_tail", None, None, None, 0, rows * row_bytes, formula)


def _compressed_entries(mixer: CompressedAttention, settings: CacheSettings) -> Iterable[CacheEntry]:
    """The window's vectors, and one vector (and one indexer key) for every ``ratio`` tokens; not divided by ranks."""
    refuse_scales(settings.kv_dtype, "latents")
    size = element_bytes(settings.kv_dtype)
    head, window = mixer.head_size, mixer.window_tokens
    yield CacheEntry("sliding", 1, head, window, head * size, 0, f"{head} x {size} B")
    if mixer.ratio is None or not mixer.keeps_vectors:
        return
    ratio = mixer.ratio
    yield CacheEntry("compressed", 1, head, None, -(-head * size // ratio), 0, f"{head} x {size} B / {ratio} tokens")
    if mixer.indexer is not None:
        key = _indexer_entry(mixer.indexer.head_size, settings.indexer_dtype or settings.kv_dtype)
        yield replace(key, token_bytes=-(-key.token_bytes // ratio), formula=f"{key.formula} / {ratio} tokens")


_KEEPS_DRAFTED_INPUTS = ("mamba2", "gated_delta_net", "kimi_delta", "ngram_conv")
"""vllm/model_executor/layers/mamba/mamba_utils.py: the state shapes that take ``num_spec``."""


def _state_entries(mixer: StateMixer, settings: CacheSettings) -> Iterable[CacheEntry]:
    tp = settings.tensor_parallel_size
    if mixer.conv_kernel > 1:
        channels = rank_conv_channels(mixer, tp)
        size = element_bytes(mixer.conv_dtype or settings.model_dtype)
        drafted = settings.num_speculative_tokens if mixer.kind in _KEEPS_DRAFTED_INPUTS else 0
        kept = mixer.conv_kernel - 1 + drafted
        formula = f"{channels} channels x {kept} inputs x {size} B"
        kind: EntryKind = "ngram_state" if mixer.kind == "ngram_conv" else "conv_state"
        yield CacheEntry(kind, None, None, None, 0, channels * kept * size, formula)
    if mixer.recurrent_shape:
        heads = _divided(mixer.recurrent_shape[0], tp, what="state heads")
        shape = (heads, *mixer.recurrent_shape[1:])
        size = element_bytes(settings.state_dtype or mixer.recurrent_dtype or settings.model_dtype)
        elements = 1
        for length in shape:
            elements *= length
        formula = " x ".join(str(length) for length in shape) + f" state x {size} B"
        yield CacheEntry("recurrent_state", None, None, None, 0, elements * size, formula)


def rank_conv_channels(mixer: StateMixer, tensor_parallel_size: int) -> int:
    """Convolved channels on one rank; groups that do not divide are replicated, at least one per rank."""
    if mixer.kind == "ngram_conv":
        return mixer.conv_channels
    grouped = mixer.conv_group_channels
    if grouped and mixer.num_groups % tensor_parallel_size:
        grouped = grouped // mixer.num_groups * tensor_parallel_size
    return _divided(mixer.conv_channels + grouped, tensor_parallel_size, what="convolution channels")


def _divided(count: int, parts: int, *, what: str) -> int:
    if count % parts:
        raise UsageError(
            f"{count} {what} cannot be divided over {parts} tensor-parallel ranks.",
            hint="choose a --tensor-parallel-size that divides them",
        )
    return count // parts


def _cross_entry(cross: CrossAttention, settings: CacheSettings) -> CacheEntry:
    refuse_scales(settings.kv_dtype, "an encoder's tokens")
    heads = rank_kv_heads(cross.num_kv_heads, settings.tensor_parallel_size)
    size = element_bytes(settings.kv_dtype)
    tokens = settings.encoder_tokens if settings.encoder_tokens is not None else cross.encoder_tokens
    if tokens is None:
        raise UsageError(
            "This model attends to encoder tokens, and their number depends on the input.",
            hint="give it with --encoder-tokens N",
        )
    state = tokens * heads * (cross.head_size_k + cross.head_size_v) * size
    formula = f"{_heads_formula(heads, cross.head_size_k, cross.head_size_v, size)} x {tokens:,} encoder tokens"
    return CacheEntry("cross", heads, cross.head_size_k, None, 0, state, formula)
