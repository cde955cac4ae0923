"""Qwen 4: Gated DeltaNet, sparse attention by keys of groups, hyper-connections, tables of n-grams. It only counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from math import isqrt
from typing import Any

from kvplan_engine.checkpoints.families.common import attention, by_period, mlp, model, norms
from kvplan_engine.checkpoints.families.mixtures.parts import whole
from kvplan_engine.checkpoints.families.states.parts import gated_delta
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.mixers import Attention, Indexer, Mixer, State
from kvplan_engine.description.model import Layer, ModelDescription, Shape

_REFUSED = ("tie_word_embeddings", "attention_bias")


def read_qwen4(config: dict[str, Any]) -> ModelDescription:
    """transformers: Qwen4ExpTextModel. Norms are those of the connections, none of a block's own."""
    refused = next((key for key in _REFUSED if config.get(key)), None)
    if refused is not None:
        raise ValueError(f"it has {refused}")
    none = norms(config, "rms_none")
    state, mixer, mixture = gated_delta(config), _attention(config), _mixture(config)
    connections = (*_connection(config, "attention_connection"), *_connection(config, "mlp_connection"))
    lookups = dict(zip(_looking_up(config), _table_rows(config), strict=False))
    kinds = by_period(config, whole(config, "full_attention_interval", default=4), "linear_attention")
    layers = []
    for index, kind in enumerate(kinds):
        mixers: tuple[Mixer, ...] = (state if kind == "linear_attention" else mixer,)
        others = connections
        if index in lookups:
            mixers, others = (*mixers, _convolution(config)), (*others, *_lookup(config, lookups[index]))
        layers.append(Layer(mixers, mixture, none, others=others))
    last = _connection(config, "last_connection", injects=False)
    return model(config, layers, none, max_positions=32768, others=last)


def _attention(config: dict[str, Any]) -> Attention:
    size = whole(config, "indexer_head_dim")
    found = attention(config, size=whole(config, "head_dim", default=256), head_norm="head", gate="element")
    group = whole(config, "indexer_compress_ratio")
    index = Indexer(
        whole(config, "indexer_n_heads"), size, whole(config, "indexer_budget"), pool=group, key_dtype="model"
    )
    return replace(found, head_norm_kind="rms_plus_one", indexer=index)


def _mixture(config: dict[str, Any]) -> Mixture:
    return Mixture(
        whole(config, "num_experts"),
        whole(config, "num_experts_per_tok"),
        mlp(config, whole(config, "moe_intermediate_size"), bias=False),
        normalised=bool(config.get("norm_topk_prob", True)),
        shared=mlp(config, whole(config, "shared_expert_intermediate_size"), bias=False),
        shared_gate=True,
    )


def _wide(config: dict[str, Any]) -> int:
    """Elements of all residual streams."""
    return whole(config, "hc_count", default=4) * int(config["hidden_size"])


def _connection(config: dict[str, Any], name: str, *, injects: bool = True) -> tuple[Shape, ...]:
    """How a block's input is made of the streams and, where it ``injects``, what each of them gets of its output."""
    wide, rank = _wide(config), whole(config, "hc_lowrank", default=320)
    sizes = {"norm": (wide,), "down": (rank, wide), "up": (wide, rank)}
    sizes |= {"inject": (whole(config, "hc_count", default=4), wide)} if injects else {}
    return tuple(Shape(f"{name}.{part}", each) for part, each in sizes.items())


def _looking_up(config: dict[str, Any]) -> list[int]:
    return sorted({int(number) - 1 for number in config.get("ple_layer_ids") or ()})


def _num_tables(config: dict[str, Any]) -> int:
    return (whole(config, "ngram_size", default=3) - 1) * whole(config, "heads_per_ngram", default=8)


def _table_rows(config: dict[str, Any]) -> Iterator[int]:
    """Rows of one layer's tables after the other's: each table has a prime number of rows, the next one every time."""
    base = whole(config, "ngram_vocab_size_base", default=20_000_000)
    multiple = whole(config, "make_ngram_vocab_size_divisible_by", default=128)
    primes = (number for number in count(max(base, 2)) if all(number % each for each in range(2, isqrt(number) + 1)))
    while True:
        yield -(-sum(islice(primes, _num_tables(config))) // multiple) * multiple


def _width(config: dict[str, Any]) -> int:
    return whole(config, "ple_embed_dim", "hidden_size")


def _lookup(config: dict[str, Any], rows: int) -> tuple[Shape, ...]:
    wide, width = _wide(config), _width(config)
    sizes = {
        "table": (rows, width // _num_tables(config)),
        "keys": (wide, width),
        "values": (int(config["hidden_size"]), width),
        "norms": (3, wide),
    }
    return tuple(Shape(f"ngrams.{part}", each) for part, each in sizes.items())


def _convolution(config: dict[str, Any]) -> State:
    """Its taps are as many tokens apart as the longest n-gram has."""
    taps = whole(config, "ple_conv_kernel_size", default=4)
    kept = (taps - 1) * whole(config, "ngram_size", default=3)
    return State("ngram_conv", _wide(config), kept + 1, (), conv_taps=taps)
