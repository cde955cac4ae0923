"""What a family's checkpoints call their tensors. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

RowOrder = Literal["parts", "kv_heads", "quarters"]
ExpertOrder = Literal["leaves", "rows", "columns", "turns"]


@dataclass(frozen=True, slots=True)
class TensorNames:
    """What a checkpoint calls its tensors, without ``.weight`` and ``.bias``; the defaults are Llama's.

    layer: what stands before the names inside a layer, ``{}`` being its number. qkv: three names, or one where they
    are fused, in the order query, key, value. up: gate and up, or one name where they are fused or there is no gate.
    inside: of a layer's other parts ("experts.up"), by the part's name; a tuple where several tensors are stacked, with
    "" for rows that are in the tensor before.
    by_places: names that a layer's norms have where they stand so (``Norms.places``), before all others.
    transposed: projections are stored [in, out] (GPT-2's Conv1D). row_order: of a fused qkv, one part after the other,
    or in groups: the queries, the key and the value of each KV head (GPT-NeoX), or a quarter of all queries, of the
    values and of the keys (CodeGen). experts: matrices with a leaf, for each expert or all of them; one tensor
    [experts, out, in] without a leaf ("rows"); [experts, in, out] ("columns"), with gate and up in turn along the
    columns ("turns", gpt-oss).
    """

    embedding: str = "model.embed_tokens"
    positions: str = ""
    embedding_norm: str = ""
    layer: str = "model.layers.{}"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    output: str = "self_attn.o_proj"
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    attention_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    attention_post_norm: str = "post_attention_layernorm"
    mlp_post_norm: str = "post_feedforward_layernorm"
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    final_norm: str = "model.norm"
    head: str = "lm_head"
    inside: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    by_places: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    transposed: bool = False
    row_order: RowOrder = "parts"
    experts: ExpertOrder = "leaves"

    def of(self, part: str, places: str = "") -> tuple[str, ...]:
        """The names of ``part``, in a layer whose norms stand at ``places``. KeyError where there are none."""
        named = self.by_places.get(places, {}).get(part) or self.inside.get(part) or getattr(self, part, None)
        if not named:
            raise KeyError(f"names of '{part}'")
        return (named,) if isinstance(named, str) else tuple(named)
