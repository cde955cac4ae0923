"""Drafters that are less than a model: a checkpoint's own layers, and heads trained for one target.

What each loads beside the target is that of vLLM's modelling code (vllm/model_executor/models/deepseek_mtp.py,
llama_eagle.py, llama_eagle3.py, medusa.py, and v1/spec_decode/llm_base_proposer.py for what is shared with the target).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.parts import linear, norm
from kvplan.catalog.spec import ExtraModule, LatentAttention, LayerSpec, ModelSpec, SoftmaxAttention
from kvplan.catalog.tensors import Tensor

_AUXILIARY_STATES = 3
"""Layers of the target whose hidden states EAGLE-3 reads, unless its config says that it reads the last alone."""


def dspark_config(spec: ModelSpec) -> Mapping[str, Any] | None:
    """Return the section that describes DSpark: layers behind the model that propose a block at once; None without."""
    sections = (spec.raw_config, spec.raw_config.get("text_config"))
    return next((each for each in sections if isinstance(each, Mapping) and "dspark_target_layer_ids" in each), None)


def multi_token_model(spec: ModelSpec) -> ModelSpec | None:
    """The checkpoint's own layers for multi-token prediction; embedding and head are the target's. None without any."""
    extras = [extra for extra in spec.extras if extra.kind == "multi_token_prediction"]
    if not extras:
        return None
    layers = tuple(_own_layer(spec, extra) for extra in extras for _ in range(max(extra.num_layers, 1)))
    streams = spec.residual_streams if any(map(_is_connected, layers)) else 1
    return _head(spec, f"{spec.id}, multi-token prediction", layers, (), residual_streams=streams)


def _is_connected(layer: LayerSpec) -> bool:
    """Whether it reads all of the target's residual streams (DeepSeek V4, Qwen 4) instead of one of them all (Hunyuan
    4: vllm/v1/worker/gpu/spec_decode/speculator.py, 0.33.0)."""
    return any(name in tensor.name for tensor in layer.all_tensors for name in ("_hc.", "hyper_connection"))


def _own_layer(spec: ModelSpec, extra: ExtraModule) -> LayerSpec:
    """The layer as its family describes it; where that is not known, one that caches like the last attention layer."""
    if extra.layer is not None:
        return extra.layer
    attending = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, (SoftmaxAttention, LatentAttention))]
    return LayerSpec(replace(attending[-1], tensors=()) if attending else None, tensors=extra.tensors)


def _head(
    target: ModelSpec, name: str, layers: tuple[LayerSpec, ...], tensors: tuple[Tensor, ...], **others: Any
) -> ModelSpec:
    """A drafter of ``target``'s width and vocabulary, on its positions: the rotary table is the target's too."""
    return replace(
        target, id=name, layers=layers, tensors=tensors, rope=None, extras=(), checkpoint=None, drafter=None, **others
    )


def eagle_model(target: ModelSpec, found: ModelSpec, *, auxiliary: bool) -> ModelSpec:
    """An EAGLE head (``auxiliary``: EAGLE-3) from its config, read as a model of its own.

    EAGLE joins embedding and hidden state before the first layer and uses the target's head. EAGLE-3 reads three
    hidden states at once, feeds the first attention with both, and has a head of its own over ``draft_vocab_size``
    tokens. Both use the target's embedding where it is as wide as they are.
    """
    hidden, raw = found.hidden_size, found.raw_config
    layers, tensors = found.layers, norm("norm", hidden) if auxiliary else ()
    if auxiliary:
        layers = (_with_wider_inputs(layers[0], hidden), *layers[1:])
        if _reads_auxiliary_states(raw):
            inner = _AUXILIARY_STATES * ConfigView(raw).integer("target_hidden_size", default=target.hidden_size)
            tensors += linear("fc", hidden, inner, role="router")
        vocab = ConfigView(raw).integer("draft_vocab_size", default=found.vocab_size)
        tensors += (Tensor("lm_head", (vocab, hidden), "head", "vocab"),)
    else:
        tensors += linear("fc", hidden, 2 * hidden, role="router")
    shares_embedding = hidden == target.hidden_size
    if not shares_embedding:
        tensors += (Tensor("embed_tokens", (found.vocab_size, hidden), "embedding", "vocab"),)
    shared = {"embedding"} if shares_embedding else set()
    return replace(
        found,
        layers=layers,
        tensors=tensors,
        rope=None,
        checkpoint=_without(found, shared if auxiliary else shared | {"head"}),
        tie_word_embeddings=False,
    )


def _without(found: ModelSpec, kinds: set[str]) -> Any:
    stored = found.checkpoint
    if stored is None:
        return None
    return replace(stored, outside=tuple(weights for weights in stored.outside if weights.kind not in kinds))


def _reads_auxiliary_states(raw: Mapping[str, Any]) -> bool:
    section = raw.get("eagle_config")
    return not isinstance(section, Mapping) or section.get("use_aux_hidden_state", True) is not False


def _with_wider_inputs(layer: LayerSpec, hidden: int) -> LayerSpec:
    """q, k and v over two hidden states side by side, and the norm of the second."""
    mixer = layer.mixer
    if not isinstance(mixer, SoftmaxAttention):
        return layer
    wide = tuple(
        replace(tensor, shape=(tensor.shape[0], 2 * tensor.shape[1]))
        if tensor.name.endswith(("q_proj", "k_proj", "v_proj")) and len(tensor.shape) == 2
        else tensor
        for tensor in mixer.tensors
    )
    return replace(layer, mixer=replace(mixer, tensors=wide), tensors=layer.tensors + norm("hidden_norm", hidden))


def medusa_model(target: ModelSpec, name: str, raw: Mapping[str, Any]) -> ModelSpec:
    """Medusa: for each of its heads residual blocks of one square matrix, and an output matrix over the vocabulary."""
    view = ConfigView(raw)
    heads = view.integer("medusa_num_heads", "num_heads", maximum=64)
    blocks = view.integer("medusa_num_layers", "num_hidden_layers", default=1, maximum=64)
    hidden = view.integer("hidden_size", default=target.hidden_size)
    vocab = view.integer("truncated_vocab_size", default=target.vocab_size)
    bias = view.flag("medusa_fc_bias", default=False)
    block = linear("block", hidden, hidden, role="router", bias=bias)
    outputs = 1 if view.flag("original_lm_head", default=False) else heads
    tensors = block * (heads * blocks) + (Tensor("lm_head", (vocab, hidden), "head", "vocab"),) * outputs
    return _head(target, name, (), tensors, hidden_size=hidden, quantization=None)
