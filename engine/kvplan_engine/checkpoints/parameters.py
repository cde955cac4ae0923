"""What parameters a model has and where they stand in published checkpoints.

A parameter of ours may be several of a checkpoint's, stacked: the query, key and value projections are one matrix
here, because one product of three times the width is faster than three.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan_engine.checkpoints.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Source:
    """One tensor of a Hugging Face checkpoint. transposed: stored [in, out] (GPT-2's Conv1D)."""

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


def model_parameters(config: ModelConfig) -> list[Parameter]:
    """Every parameter of the model, each once (a tied output head is the embedding)."""
    return _gpt2_parameters(config) if config.family == "gpt2" else _llama_parameters(config)


def num_parameters(config: ModelConfig) -> int:
    total = 0
    for parameter in model_parameters(config):
        size = 1
        for extent in parameter.shape:
            size *= extent
        total += size
    return total


def _single(name: str, source: str, shape: tuple[int, ...], kind: str) -> Parameter:
    return Parameter(name, shape, kind, (Source(source, shape[0]),))


def _gpt2_parameters(c: ModelConfig) -> list[Parameter]:
    h = c.hidden_size
    parameters = [
        _single("embedding", "wte.weight", (c.vocab_size, h), "matrix"),
        _single("positions", "wpe.weight", (c.max_position_embeddings, h), "matrix"),
    ]
    for layer in range(c.num_layers):
        ours, theirs = f"layers.{layer}", f"h.{layer}"
        for name, source, rows, columns in (
            ("qkv", "attn.c_attn", 3 * h, h),
            ("output", "attn.c_proj", h, h),
            ("up", "mlp.c_fc", c.ffn_size, h),
            ("down", "mlp.c_proj", h, c.ffn_size),
        ):
            stored = Source(f"{theirs}.{source}.weight", rows, transposed=True)
            parameters.append(Parameter(f"{ours}.{name}.weight", (rows, columns), "matrix", (stored,)))
            parameters.append(_single(f"{ours}.{name}.bias", f"{theirs}.{source}.bias", (rows,), "bias"))
        for name, source in (("attention_norm", "ln_1"), ("mlp_norm", "ln_2")):
            parameters += _norm(f"{ours}.{name}", f"{theirs}.{source}", h)
    parameters += _norm("final_norm", "ln_f", h)
    if not c.tie_word_embeddings:
        parameters.append(_single("head", "lm_head.weight", (c.vocab_size, h), "matrix"))
    return parameters


def _norm(name: str, source: str, size: int) -> list[Parameter]:
    return [
        _single(f"{name}.weight", f"{source}.weight", (size,), "norm"),
        _single(f"{name}.bias", f"{source}.bias", (size,), "bias"),
    ]


def _llama_parameters(c: ModelConfig) -> list[Parameter]:
    h = c.hidden_size
    parameters = [_single("embedding", "model.embed_tokens.weight", (c.vocab_size, h), "matrix")]
    for layer in range(c.num_layers):
        ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
        attention, mlp = f"{theirs}.self_attn", f"{theirs}.mlp"
        qkv = (("q_proj", c.query_size), ("k_proj", c.kv_size), ("v_proj", c.kv_size))
        parameters += _stacked(f"{ours}.qkv", [(f"{attention}.{n}", rows) for n, rows in qkv], h, c.qkv_bias)
        parameters += _stacked(f"{ours}.output", [(f"{attention}.o_proj", h)], c.query_size, c.output_bias)
        gate_up = [(f"{mlp}.gate_proj", c.ffn_size), (f"{mlp}.up_proj", c.ffn_size)]
        parameters += _stacked(f"{ours}.up", gate_up, h, c.mlp_bias)
        parameters += _stacked(f"{ours}.down", [(f"{mlp}.down_proj", h)], c.ffn_size, c.mlp_bias)
        norms = [("attention_norm", "input_layernorm", h), ("mlp_norm", "post_attention_layernorm", h)]
        if c.family == "qwen3":
            norms += [("query_norm", "self_attn.q_norm", c.head_size), ("key_norm", "self_attn.k_norm", c.head_size)]
        for name, source, size in norms:
            parameters.append(_single(f"{ours}.{name}.weight", f"{theirs}.{source}.weight", (size,), "norm"))
    parameters.append(_single("final_norm.weight", "model.norm.weight", (h,), "norm"))
    if not c.tie_word_embeddings:
        parameters.append(_single("head", "lm_head.weight", (c.vocab_size, h), "matrix"))
    return parameters


def _stacked(name: str, parts: list[tuple[str, int]], num_inputs: int, bias: bool) -> list[Parameter]:
    rows = sum(part_rows for _, part_rows in parts)
    sources = tuple(Source(f"{source}.weight", part_rows) for source, part_rows in parts)
    parameters = [Parameter(f"{name}.weight", (rows, num_inputs), "matrix", sources)]
    if bias:
        sources = tuple(Source(f"{source}.bias", part_rows) for source, part_rows in parts)
        parameters.append(Parameter(f"{name}.bias", (rows,), "bias", sources))
    return parameters
