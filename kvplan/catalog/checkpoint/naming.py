"""Which part of a model a tensor of a checkpoint belongs to, and of which kind it is, by its published name.

model.layers.7.self_attn.q_proj.weight            layer 7, attention
language_model.model.embed_tokens.weight          outside, embedding
visual.blocks.3.attn.qkv.weight                   towers
mtp.fc.weight, model.layers.61.eh_proj.weight     multi-token prediction (61: one more than there are layers)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from kvplan.catalog.checkpoint.safetensors import FLOAT_TYPES, HeaderTensor
from kvplan.catalog.checkpoint.stored import StoredKind

PartName = Literal["layer", "outside", "multi_token", "towers", "left out"]
EncoderPlace = Literal["none", "apart", "inside"]

_LAYER: Final = re.compile(r"(?:^|\.)(?:layers|h|blocks?|blk|layer)\.(\d+)\.")
_TOWER: Final = re.compile(
    r"(?:^|\.)(?:[a-z_]*vis(?:ual|ion)[a-z_]*|[a-z_]*audio[a-z_]*|[a-z_]*projector|mlp1|image_newline|img_\w+"
    r"|connector|aligner|talker|token2wav|code2wav|resampler|vpm|apm|tts|speech\w*)(?:\.|$)"
)
_ENCODER: Final = re.compile(r"(?:^|\.)encoder\.")
_MULTI_TOKEN: Final = re.compile(r"(?:^|\.)(?:mtp|nextn|multi_token)\w*(?:\.|$)")
_JOINS_BOTH_INPUTS: Final = re.compile(r"\.(?:eh_proj|enorm|hnorm|shared_head|e_proj|h_proj)\b")
"""What only a layer for multi-token prediction has (DeepSeek, GLM)."""
_COPY: Final = re.compile(r"\.(?:embed_tokens|shared_head\.head|lm_head)\.")
"""Copies of the model's embedding and head in such a layer, for which engines use the model's own."""
_NOT_A_WEIGHT: Final = re.compile(r"(?:rotary_emb\.inv_freq|\.attn\.(?:masked_)?bias|attention\.(?:masked_)?bias)$")
"""Tables and masks that old checkpoints repeat and no engine loads."""
_HEAD: Final = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output_layer|output)\.[\w.]+$")
_EMBEDDING: Final = re.compile(r"(?:^|\.)(?:embed\w*|wte|wpe|word_embeddings|tok_embeddings)(?:\.|$)")
_SCALE: Final = re.compile(r"scale|zero|qzeros|g_idx|absmax|quant_map|quant_state|_shape$|(?:^|\.)SCB$")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor stands. ``layer`` is its number in the language model, None for other parts."""

    part: PartName
    layer: int | None = None


def place_of(name: str, *, num_layers: int, encoder: EncoderPlace, tied: bool) -> Place:
    """The part of a tensor in a model of ``num_layers`` layers.

    ``encoder``: "none" where a part of that name is the decoder itself (ChatGLM); else whether it is sized apart, as a
    tower, or with the model. ``tied``: the head is the embedding, so a stored copy of it is not loaded.
    """
    if _NOT_A_WEIGHT.search(name):
        return Place("left out")
    if _MULTI_TOKEN.search(name):
        return Place("left out" if _COPY.search(name) else "multi_token")
    if _TOWER.search(name):
        return Place("towers")
    if encoder != "none" and _ENCODER.search(name):
        return Place("towers" if encoder == "apart" else "outside")
    match = _LAYER.search(name)
    if match is None:
        return Place("left out" if tied and _HEAD.search(name) else "outside")
    layer = int(match.group(1))
    if layer < num_layers:
        return Place("layer", layer)
    return Place("left out" if _COPY.search(name) else "multi_token")


def layers_named(names: list[str], *, encoder: EncoderPlace) -> int:
    """Layers of the language model, by the largest number in the names; multi-token-prediction layers not counted."""
    extra = {
        int(match.group(1)) for name in names if _JOINS_BOTH_INPUTS.search(name) and (match := _LAYER.search(name))
    }
    found = -1
    for name in names:
        match = _LAYER.search(name)
        if match is None or int(match.group(1)) <= found or int(match.group(1)) in extra:
            continue
        if place_of(name, num_layers=1 << 30, encoder=encoder, tied=False).part == "layer":
            found = int(match.group(1))
    return found + 1


def kind_of(name: str, shape: tuple[int, ...]) -> StoredKind:
    """The kind of weight, in the words of kvplan's own sums (kvplan.estimate.weights)."""
    folded = name.casefold()
    if _LAYER.search(name) is None:
        if _HEAD.search(name):
            return "head"
        return "embedding" if _EMBEDDING.search(folded) else "other"
    if ".experts." in folded or "_exps" in folded:
        return "experts"
    if len(shape) < 2 and "scale" not in folded:
        return "other"
    if re.search(r"linear_attn|mixer\.|mamba|\.conv\.", folded):
        return "state mixer"
    return "attention" if "attn" in folded or "attention" in folded else "feed-forward"


def is_plain(tensor: HeaderTensor) -> bool:
    """Whether these are weights in a floating type, which an engine converts, and not scales or packed numbers."""
    last = tensor.name.rsplit(".", 1)[-1]
    return tensor.type_name in FLOAT_TYPES and _SCALE.search(last) is None
