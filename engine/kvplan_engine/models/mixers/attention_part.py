"""One layer's attention: from its normalised input to its output, by way of the paged pool."""

from __future__ import annotations

import torch
from torch.nn import functional

from kvplan_engine.attention.backend import (
    AttentionInputs,
    AttentionMetadata,
    AttentionOptions,
    Rotation,
    refuse_missing_options,
)
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.norms import NormKind
from kvplan_engine.layers.norm import Norm
from kvplan_engine.layers.projection import add_or_store
from kvplan_engine.models.mixers.mixer_part import MixerPart, MixerSource
from kvplan_engine.models.step_batch import StepSpace

# The gate of attention's output before its projection: times sigmoid or softplus of the gate, per element or head.


class AttentionGate:
    """Projected from the layer's input; its memory is that of the queries, which attention has read by then."""

    def __init__(self, attention: Attention, source: MixerSource) -> None:
        self._num_columns = attention.num_heads if attention.gate == "head" else attention.output_size
        self._num_heads, self._activation = attention.num_heads, attention.gate_activation
        assert self._num_columns <= attention.qkv_size, "no room for a gate"
        self._project = source.projection("gate")

    def __call__(self, normed: torch.Tensor, attended: torch.Tensor, step: StepSpace) -> None:
        """attended [T, hq d] times the activated gate of normed [T, H], in place."""
        num_tokens = normed.shape[0]
        (gate,) = step.workspace.scratch((num_tokens, self._num_columns))
        self._project(normed, gate)
        if self._activation == "sigmoid":
            gate.sigmoid_()
        else:
            gate.copy_(functional.softplus(gate.float()))
        attended.view(num_tokens, self._num_heads, -1).mul_(gate.view(num_tokens, self._num_heads, -1))


class AttentionPart(MixerPart):
    """Projections, norms of heads, rotation, and paged attention of one layer.

    EngineError where the attention backend lacks an option of this attention.
    """

    def __init__(self, attention: Attention, source: MixerSource) -> None:
        weights, name, norms, kernels = source.weights, source.name, source.norms, source.kernels
        self.description, self.rope_table = attention, source.rope_table
        slopes = _slopes(attention, next(iter(weights.values())).device) if attention.alibi else None
        sinks = weights[f"{name}.sinks"].float() if attention.sinks else None
        self.options = AttentionOptions(
            attention.scale, window=attention.kept.tokens, softcap=attention.softcap, sinks=sinks, slopes=slopes
        )
        refuse_missing_options(kernels.attention, self.options)
        self.index, self._backend, self._ops = source.index, kernels.attention, kernels.ops
        self.qkv, self.output = source.projection("qkv"), source.projection("output")
        self._gate = None if attention.gate == "none" else AttentionGate(attention, source)
        kind = attention.head_norm_kind or norms.kind
        width = attention.key_size

        def head_norm(part: str, kind: NormKind, wanted: bool) -> Norm | None:
            return Norm(weights, f"{name}.{part}", kind, norms.eps, kernels.ops, width=width) if wanted else None

        has_norm, has_keys = attention.head_norm != "none", attention.reads_layer is None
        self.query_norm = head_norm("query_norm", kind, has_norm)
        self.key_norm = head_norm("key_norm", kind, has_norm and has_keys)
        self.value_norm = head_norm("value_norm", "rms_none", attention.value_norm and has_keys)

    def __call__(self, normed: torch.Tensor, step: StepSpace, delta: torch.Tensor) -> None:
        """See MixerPart.__call__."""
        self.add_or_store(normed, step, delta, None)

    def add_or_store(
        self, normed: torch.Tensor, step: StepSpace, delta: torch.Tensor, residual: torch.Tensor | None
    ) -> bool:
        """Compute as ``__call__`` does; ``delta``, ``residual`` [T, H]: see layers.projection.add_or_store."""
        query, attended = self.project(normed, step)
        return self.attend(query, attended, self.metadata(step), step, delta, normed, residual)

    def metadata(self, step: StepSpace) -> AttentionMetadata:
        """Where this layer's tokens lie in the step."""
        return step.batch.attention[step.kv.of(self.index).tables]

    def project(self, normed: torch.Tensor, step: StepSpace) -> tuple[torch.Tensor, torch.Tensor]:
        """The queries [T, hq, d], and where attention's output goes [T, hq d]; keys and values are in the pool."""
        attention, num_tokens = self.description, normed.shape[0]
        qkv, attended = step.workspace.scratch((num_tokens, attention.qkv_size), (num_tokens, attention.output_size))
        heads, value = self._project_heads(normed, qkv)
        query = heads[:, : attention.num_heads]
        if value is None:
            self._turn(heads, step)
        else:
            self._turn_and_write(heads, value, step)
        if attention.growing_scale is not None:
            query.mul_(growth(step.batch.positions, *attention.growing_scale).to(query.dtype)[:, None, None])
        return query, attended

    def attend(
        self,
        query: torch.Tensor,
        attended: torch.Tensor,
        metadata: AttentionMetadata,
        step: StepSpace,
        delta: torch.Tensor,
        normed: torch.Tensor,
        residual: torch.Tensor | None,
    ) -> bool:
        """Attention of ``query`` over the pool, into ``attended``, and its output projection.

        normed: the layer's input of the same rows, which a gate is made of. delta, residual: see ``add_or_store``.
        """
        out = attended.view(*query.shape[:2], self.description.value_size)
        self._backend.attend(AttentionInputs(query, step.kv.of(self.index), metadata, out, self.options))
        if self._gate is not None:
            self._gate(normed, attended, step)
        return add_or_store(self.output, attended, delta, residual)

    def _project_heads(self, normed: torch.Tensor, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Queries and keys [T, hq + hkv, d] side by side, and values [T, hkv, value_size], in the memory of ``qkv``.

        Of a layer that reads another's KV the queries alone.
        """
        attention, num_tokens = self.description, normed.shape[0]
        num_heads = attention.num_heads + (attention.num_kv_heads if attention.reads_layer is None else 0)
        columns = num_heads * attention.key_size
        if attention.reads_layer is not None or attention.value_is_key:
            room = qkv.view(-1)[: num_tokens * columns].view(num_tokens, columns)
        else:
            room = qkv
        self.qkv(normed, room)
        if attention.clip is not None:
            room.clamp_(-attention.clip, attention.clip)
        heads = room[:, :columns].unflatten(1, (num_heads, attention.key_size))
        if attention.reads_layer is not None:
            return heads, None
        if not attention.value_is_key:
            return heads, room[:, columns:].unflatten(1, (attention.num_kv_heads, attention.value_size))
        value = qkv.view(-1)[num_tokens * columns :].view(num_tokens, attention.num_kv_heads, attention.value_size)
        return heads, value.copy_(heads[:, attention.num_heads :])

    def _rotation(self, heads: torch.Tensor, step: StepSpace) -> Rotation | None:
        if self.rope_table is None:
            return None
        return Rotation(heads, step.batch.positions, step.workspace[self.rope_table])

    def _turn(self, heads: torch.Tensor, step: StepSpace) -> None:
        """Norms of all ``heads`` and rotation, in the family's order."""
        rotation = self._rotation(heads, step)
        if not self.description.norm_after_rope:
            self._normalise(heads)
        if rotation is not None:
            self._ops.rope_inplace(rotation.heads, rotation.positions, rotation.cos_sin)
        if self.description.norm_after_rope:
            self._normalise(heads)

    def _turn_and_write(self, heads: torch.Tensor, value: torch.Tensor, step: StepSpace) -> None:
        """Turn as ``_turn`` does; keys and values go into the pool."""
        cache = step.kv.of(self.index)
        slots = step.batch.attention[cache.tables].slots
        if self.value_norm is not None:
            self.value_norm(value, value)
        rotation = self._rotation(heads, step)
        if rotation is None or self.description.norm_after_rope:
            self._turn(heads, step)
            self._backend.write_kv(heads[:, self.description.num_heads :], value, cache, slots)
        else:
            self._normalise(heads)
            self._backend.rotate_and_write(rotation, value, cache, slots)

    def _normalise(self, heads: torch.Tensor) -> None:
        """Queries, and keys behind them where there are any."""
        num_heads, kind = self.description.num_heads, self.description.head_norm
        for norm, some in ((self.query_norm, heads[:, :num_heads]), (self.key_norm, heads[:, num_heads:])):
            if norm is None:
                continue
            if kind == "head":
                norm(some, some)
            else:
                norm.of_each_head(some) if kind == "per_head" else norm.of_all_heads(some)


def _slopes(attention: Attention, device: torch.device) -> torch.Tensor:
    """[num_heads] float32, as published with ALiBi (Press et al., 2022): 2 ** (-8 i / n) for the heads i = 1 .. n.

    Where n is not a power of two: those of the largest one below, then every other one of its double's.
    """
    whole = 2 ** (attention.num_heads.bit_length() - 1)
    first = [2.0 ** (-8.0 * i / whole) for i in range(1, whole + 1)]
    rest = [2.0 ** (-4.0 * i / whole) for i in range(1, 2 * whole, 2)]
    slopes = torch.tensor((first + rest)[: attention.num_heads], dtype=torch.float32)
    return (slopes * attention.alibi_scale).to(device)


def growth(positions: torch.Tensor, beta: float, tokens: int) -> torch.Tensor:
    """[T] float32: 1 + beta * log(1 + floor(position / tokens))."""
    return 1 + beta * torch.log1p((positions // tokens).float())
