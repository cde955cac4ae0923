"""Qwen 4: gated delta nets and sparse attention, experts, hyper-connected residuals, and tables of n-grams.

vLLM 0.33: vllm/models/qwen4_exp. transformers 5.24: models/qwen4_exp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from math import isqrt

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import Body, Sizes, decoder_body, read_sizes, softmax_attention
from kvplan.catalog.families.softmax.mixtures import every_layer_sparse, read_feed_forwards
from kvplan.catalog.families.states.delta import QWEN_MIXTURE, linear_layers, read_delta_net
from kvplan.catalog.parts import AttentionTraits, linear, norm
from kvplan.catalog.spec import ExtraModule, LayerSpec, SoftmaxAttention, SparseIndexer, StateMixer
from kvplan.catalog.tensors import Tensor, count_elements

_ATTENDING = ("full_attention", "indexed_attention", "qwen_sparse_attention")
"""The same layers, as published and as transformers has called them since."""
_MIXTURE = replace(QWEN_MIXTURE, sparse=every_layer_sparse)
_POSITION_ELEMENTS = 3 * 4
"""Beside a key that waits for its group: where its token is in time, height and width, each 4 elements wide."""
_KEY_ALIGNMENT = 4


def read_qwen4(view: ConfigView) -> Body:
    """Qwen 4: of four layers three are gated delta nets, some of which look up n-grams; the last attends sparsely."""
    for key in ("tie_word_embeddings", "attention_bias"):
        if view.flag(key, default=False):
            raise view.reject(key, "false (no engine has the other)")
    for key in ("num_key_value_heads", "shared_expert_intermediate_size"):
        view.integer(key)
    sizes = read_sizes(view, head_default=256)
    streams, rank = view.integer("hc_count", default=4, minimum=2, maximum=64), view.integer("hc_lowrank", default=320)
    rest = _connection("attn_hyper_connection", sizes.hidden, streams, rank)
    rest += _connection("mlp_hyper_connection", sizes.hidden, streams, rank)
    last = _connection("hyper_connection_mixer", sizes.hidden, streams, rank, injects=False)
    delta, softmax = read_delta_net(view, sizes.hidden), _attention(view, sizes)
    parts = read_feed_forwards(view, _MIXTURE, sizes)
    linear_ones = linear_layers(view, sizes.layers, _ATTENDING)
    lookups = _lookups(view, sizes, streams, linear_ones)
    layers = [
        LayerSpec(delta if is_linear else softmax, None, part, rest, lookups.get(index))
        for index, (is_linear, part) in enumerate(zip(linear_ones, parts, strict=True))
    ]
    return decoder_body(
        *(view, sizes, layers),
        final_norm=False,
        max_positions=32768,
        further=last,
        extras=_drafter(view, LayerSpec(softmax, None, parts[-1], rest + last), sizes.hidden, streams),
        residual_streams=streams,
    )


def _attention(view: ConfigView, sizes: Sizes) -> SoftmaxAttention:
    """Grouped attention to the tokens of those groups whose one key scores highest."""
    group, head = view.integer("indexer_compress_ratio", minimum=2), view.integer("indexer_head_dim")
    if head % group:
        raise view.reject("indexer_compress_ratio", f"a divisor of the key's {head} elements")
    if view.integer("indexer_kv_heads") != 1:
        raise view.reject("indexer_kv_heads", "1")
    indexer = SparseIndexer(
        view.integer("indexer_n_heads"),
        head,
        view.integer("indexer_budget"),
        group,
        _open_size(view, head),
        key_format="model",
    )
    traits = AttentionTraits(qk_norm="head", output_gate="element")
    found = softmax_attention(sizes, traits)
    name = "self_attn.indexer"
    tensors = linear(f"{name}.index_qk_proj", (indexer.num_heads + 1) * head, sizes.hidden)
    tensors += norm(f"{name}.q_layernorm", head) + norm(f"{name}.k_layernorm", head)
    return replace(found, indexer=indexer, tensors=found.tensors + tensors)


def _open_size(view: ConfigView, head: int) -> int:
    """Elements of a key that waits: those that see, whose text config is a part of theirs, keep positions with it."""
    rope = view.section("rope_parameters")
    if not view.path or rope is None or not rope.has("mrope_section"):
        return head
    return -(-head // _KEY_ALIGNMENT) * _KEY_ALIGNMENT + _POSITION_ELEMENTS


def _connection(name: str, hidden: int, streams: int, rank: int, *, injects: bool = True) -> tuple[Tensor, ...]:
    """How one input is made of the residual streams and, where it ``injects``, what each of them gets back."""
    wide = streams * hidden
    tensors = norm(f"{name}.hc_norm", wide)
    tensors += linear(f"{name}.input_mix_weight_down", rank, wide, role="router")
    tensors += linear(f"{name}.input_mix_weight_up", wide, rank, role="router")
    return tensors + (linear(f"{name}.block_inject_weight", streams, wide, role="router") if injects else ())


@dataclass(frozen=True, slots=True)
class _NGrams:
    """The n-grams of two to ``size`` tokens, each looked up in ``heads`` tables, which give ``width`` in all."""

    size: int
    heads: int
    width: int

    @property
    def num_tables(self) -> int:
        return (self.size - 1) * self.heads


def _lookups(view: ConfigView, sizes: Sizes, streams: int, linear_ones: list[bool]) -> dict[int, StateMixer]:
    """Return of each layer its tables of n-grams, and the convolution that what they give goes through."""
    listed = sorted({number - 1 for number in view.integers("ple_layer_ids", minimum=1) or []})
    if any(index >= sizes.layers or not linear_ones[index] for index in listed):
        raise view.reject("ple_layer_ids", f"layers of linear attention, from 1 to {sizes.layers}")
    ngrams = _NGrams(
        view.integer("ngram_size", default=3, minimum=2, maximum=16),
        view.integer("heads_per_ngram", default=8, maximum=64),
        view.integer("ple_embed_dim", default=sizes.hidden),
    )
    if listed and ngrams.width % ngrams.num_tables:
        raise view.reject("ple_embed_dim", f"a multiple of the {ngrams.num_tables} tables")
    rows = _table_rows(view, ngrams.num_tables)
    return {index: _lookup(view, sizes.hidden * streams, sizes.hidden, ngrams, next(rows)) for index in listed}


def _table_rows(view: ConfigView, num_tables: int) -> Iterator[int]:
    """Rows of all tables of one layer after the other: a prime number for each table, the next one every time."""
    base = view.integer("ngram_vocab_size_base", default=20_000_000, maximum=2**31)
    multiple = view.integer("make_ngram_vocab_size_divisible_by", default=128)
    primes = (number for number in count(max(base, 2)) if all(number % each for each in range(2, isqrt(number) + 1)))
    while True:
        yield -(-sum(islice(primes, num_tables)) // multiple) * multiple


def _lookup(view: ConfigView, wide: int, hidden: int, ngrams: _NGrams, rows: int) -> StateMixer:
    kernel, name = view.integer("ple_conv_kernel_size", default=4), "ple"
    table = Tensor(
        f"{name}.ple_embedding.ngram_embedding", (rows, ngrams.width // ngrams.num_tables), "lookup", "vocab"
    )
    tensors = (
        table,
        *linear(f"{name}.key_proj", wide, ngrams.width),
        *linear(f"{name}.value_proj", hidden, ngrams.width),
    )
    for each in ("norm_key", "norm_query", "norm_conv"):
        tensors += norm(f"{name}.{each}", wide)
    tensors += (Tensor(f"{name}.conv1d", (wide, 1, kernel), "conv"),)
    # Its taps are as many tokens apart as the longest n-gram has.
    return StateMixer("ngram_conv", wide, (kernel - 1) * ngrams.size + 1, (), tensors=tensors)


def _drafter(view: ConfigView, layer: LayerSpec, hidden: int, streams: int) -> tuple[ExtraModule, ...]:
    """A layer like the last, with matrices for the embedding and each stream, and a mixer of the streams of its own."""
    number = view.integer("mtp_num_hidden_layers", default=0, minimum=0)
    if number > 1:
        raise view.reject("mtp_num_hidden_layers", "0 or 1 (what more of them share is not known)")
    joint = linear("fc_embedding", hidden, hidden, "column") + linear("fc_hidden", hidden, hidden, "column")
    joint += norm("pre_fc_norm_embedding", hidden) + norm("pre_fc_norm_hidden", streams * hidden)
    whole = replace(layer, tensors=layer.tensors + joint)
    tensors = whole.all_tensors
    extra = ExtraModule("mtp", "multi_token_prediction", count_elements(tensors), 1, tensors, whole)
    return (extra,) if number else ()
