"""What parameters a decoder has, and which tensors of a checkpoint they are made of.

One parameter may be several tensors stacked: the query, key and value projections are one matrix here, because one
product of three times the width is faster than three.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvplan_engine.checkpoints.config import ModelConfig


@dataclass(frozen=True, slots=True)
class TensorNames:
    """What a checkpoint calls its tensors, without ``.weight`` and ``.bias``; the defaults are Llama's.

    layer: what stands before the names inside a layer, ``{}`` being its number. qkv: three names, or one where they
    are fused, in the order query, key, value. up: gate and up, or one name where they are fused or there is no gate.
    transposed: projections are stored [in, out] (GPT-2's Conv1D).
    """

    embedding: str = "model.embed_tokens"
    positions: str = ""
    layer: str = "model.layers.{}"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    output: str = "self_attn.o_proj"
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    attention_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    final_norm: str = "model.norm"
    head: str = "lm_head"
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """One tensor of a checkpoint, and how many rows of the parameter it fills. transposed: stored [in, out]."""

    name: str
    num_rows: int
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor, [sum of the sources' rows, ...]. kind (``matrix``, ``norm``, ``bias``) decides its dummy values."""

    name: str
    shape: tuple[int, ...]
    kind: str
    sources: tuple[Source, ...]


def decoder_parameters(config: ModelConfig, names: TensorNames) -> list[Parameter]:
    """Every parameter of the decoder, each once: a tied output head is the embedding."""
    hidden = config.hidden_size
    parameters = [_table("embedding", names.embedding, config.vocab_size, hidden)]
    if not config.is_rotary:
        parameters.append(_table("positions", names.positions, config.max_position_embeddings, hidden))
    for layer in range(config.num_layers):
        parameters += _layer_parameters(config, names, f"layers.{layer}", names.layer.format(layer))
    parameters += _norm("final_norm", names.final_norm, hidden, config.layer_norm)
    if not config.tie_word_embeddings:
        parameters.append(_table("head", names.head, config.vocab_size, hidden))
    return parameters


def _layer_parameters(c: ModelConfig, names: TensorNames, ours: str, theirs: str) -> Iterator[Parameter]:
    for name, sources, rows, inputs, bias in (
        ("qkv", names.qkv, (c.query_size, c.kv_size, c.kv_size), c.hidden_size, c.qkv_bias),
        ("output", (names.output,), (c.hidden_size,), c.query_size, c.output_bias),
        ("up", names.up, (c.ffn_size,) * (2 if c.gated_mlp else 1), c.hidden_size, c.mlp_bias),
        ("down", (names.down,), (c.hidden_size,), c.ffn_size, c.mlp_bias),
    ):
        parts = dict(zip(sources, rows if len(sources) > 1 else (sum(rows),), strict=True))
        yield _projection(f"{ours}.{name}.weight", theirs, parts, inputs, names.transposed)
        if bias:
            stored = tuple(Source(f"{theirs}.{source}.bias", size) for source, size in parts.items())
            yield Parameter(f"{ours}.{name}.bias", (sum(rows),), "bias", stored)
    yield from _norm(f"{ours}.attention_norm", f"{theirs}.{names.attention_norm}", c.hidden_size, c.layer_norm)
    yield from _norm(f"{ours}.mlp_norm", f"{theirs}.{names.mlp_norm}", c.hidden_size, c.layer_norm)
    if c.head_norms:
        yield from _norm(f"{ours}.query_norm", f"{theirs}.{names.query_norm}", c.head_size, False)
        yield from _norm(f"{ours}.key_norm", f"{theirs}.{names.key_norm}", c.head_size, False)


def _projection(name: str, layer: str, parts: dict[str, int], num_inputs: int, transposed: bool) -> Parameter:
    sources = tuple(Source(f"{layer}.{part}.weight", rows, transposed) for part, rows in parts.items())
    return Parameter(name, (sum(parts.values()), num_inputs), "matrix", sources)


def _table(name: str, source: str, rows: int, columns: int) -> Parameter:
    return Parameter(name, (rows, columns), "matrix", (Source(f"{source}.weight", rows),))


def _norm(name: str, source: str, size: int, bias: bool) -> list[Parameter]:
    weight = Parameter(f"{name}.weight", (size,), "norm", (Source(f"{source}.weight", size),))
    if not bias:
        return [weight]
    return [weight, Parameter(f"{name}.bias", (size,), "bias", (Source(f"{source}.bias", size),))]
