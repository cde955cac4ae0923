"""All layers of a step in one call, where the kernels of a device have one for every part of a layer.

The CPU kernels have (csrc/cpu/layers.cpp). Everywhere else the decoder's loop runs layer by layer: on another device,
with the reference kernels, with projections that are not ours, with layers that are not all alike. Both give the same
bits (``tests/engine/kernels/test_layer_run.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import POINTER, Array, byref, c_double, cast, pointer
from typing import Protocol

import torch

from kvplan_engine.attention.backend import AttentionInputs
from kvplan_engine.attention.cpu import CpuBackend, raise_for
from kvplan_engine.description.feed_forward import Mlp
from kvplan_engine.description.uniform import attention_of
from kvplan_engine.kernels.cpu.library import LAYER_OPERATIONS, STATUS_OK, CpuKernels, LayerArgs, LayersArgs
from kvplan_engine.layers.norm import Norm
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.decoder_layer import DecoderLayer
from kvplan_engine.models.feed_forwards.mlp_part import MlpPart
from kvplan_engine.models.kv_pool import KvPool
from kvplan_engine.models.mixers.attention_part import AttentionPart
from kvplan_engine.models.step_batch import StepBatch


class LayerRun(Protocol):
    """All layers of a model over one step."""

    def __call__(self, batch: StepBatch, kv: KvPool, workspace: Workspace) -> None:
        """From ``normed`` of the first norm to ``normed`` of the last; the step's K and V are in ``kv`` afterwards.

        With ``batch.sampled_attention`` the last norm's rows are those of ``batch.sampled_rows``.
        IndexError where the batch does not fit the pool or the rotary table.
        """
        ...

    def time_operations(self) -> None:
        """Add up from now on how long each operation takes: one reading of a clock for each."""
        ...

    def operation_seconds(self) -> Mapping[str, float]:
        """Time of each operation over all layers and steps since time_operations(); {} before."""
        ...


class CpuLayerRun:
    """The layers' weights as the CPU kernels take them. Holds addresses: the layers must outlive it."""

    def __init__(
        self,
        part: AttentionPart,
        layers: Sequence[LayerArgs],
        attention: CpuBackend,
        kernels: CpuKernels,
    ) -> None:
        self._part, self._attention, self._kernels = part, attention, kernels
        self._layers = (LayerArgs * len(layers))(*layers)
        self._seconds: Array[c_double] | None = None

    @classmethod
    def of(
        cls,
        layers: Sequence[DecoderLayer],
        final_norm: Norm,
        attention: CpuBackend,
        kernels: CpuKernels,
    ) -> CpuLayerRun | None:
        """One call for all ``layers``, or None where the kernels lack a part of them."""
        if not _is_taken(layers):
            return None
        next_norms = [layer.attention_norm for layer in layers[1:]] + [final_norm]
        args = [_layer_args(layer, norm) for layer, norm in zip(layers, next_norms, strict=True)]
        complete = [each for each in args if each is not None]
        part = layers[0].attention
        return cls(part, complete, attention, kernels) if part is not None and len(complete) == len(args) else None

    def __call__(self, batch: StepBatch, kv: KvPool, workspace: Workspace) -> None:
        """See LayerRun.__call__."""
        cache = kv.of(0)
        metadata = batch.attention[cache.tables]
        options, heads_of, tokens = self._part.options, self._part.description, batch.num_tokens
        qkv, attended = workspace.scratch((tokens, heads_of.qkv_size), (tokens, heads_of.output_size))
        heads = qkv.view(tokens, -1, heads_of.key_size)
        query, key, value = heads.split([heads_of.num_heads, heads_of.num_kv_heads, heads_of.num_kv_heads], dim=1)
        out = attended.view(tokens, heads_of.num_heads, heads_of.key_size)
        inputs = AttentionInputs(query, cache, metadata, out, options)
        args = LayersArgs(
            layers=cast(self._layers, POINTER(LayerArgs)),
            num_layers=len(self._layers),
            **{name: workspace[name].data_ptr() for name in ("hidden", "normed", "delta")},
            qkv=qkv.data_ptr(),
            inner=qkv.data_ptr(),  # never needed at once
            attention=pointer(self._attention.attention_args(inputs)),
            write=pointer(self._attention.write_args(key, value, cache, metadata.slots)),
            kv_layer_bytes=kv.layer_bytes,
            positions=batch.positions.data_ptr(),
        )
        if self._part.rope_table is not None:
            table = workspace[self._part.rope_table]
            args.cos_sin, args.rope_rows, args.rotary = table.data_ptr(), table.shape[0], table.shape[1]
        if self._seconds is not None:
            args.operation_seconds = cast(self._seconds, POINTER(c_double))
        if batch.sampled_attention is not None:
            rows = batch.sampled_rows
            number = rows.shape[0]
            last = AttentionInputs(out[number : 2 * number], cache, batch.sampled_attention, out[:number], options)
            args.last_rows, args.last_hidden = rows.data_ptr(), workspace["last_hidden"].data_ptr()
            args.last_attention = pointer(self._attention.attention_args(last))
        status = self._kernels.run_layers(byref(args), torch.get_num_threads())
        if status != STATUS_OK:
            raise_for(status, cache.num_blocks)

    def time_operations(self) -> None:
        """See LayerRun.time_operations."""
        self._seconds = (c_double * len(LAYER_OPERATIONS))()

    def operation_seconds(self) -> Mapping[str, float]:
        """See LayerRun.operation_seconds."""
        return {} if self._seconds is None else dict(zip(LAYER_OPERATIONS, self._seconds, strict=True))


def _is_taken(layers: Sequence[DecoderLayer]) -> bool:
    """Whether the layers are all alike, and of the parts that the kernels have."""
    first = layers[0].description
    attention = attention_of(first)
    return (
        all(layer.description == first for layer in layers)
        and attention is not None
        and attention.head_norm in ("none", "head")
        and not attention.norm_after_rope
        and not attention.sinks
        and attention.gate == "none"
        and attention.clip is attention.growing_scale is None
        and not (attention.value_is_key or attention.value_norm)
        and first.end is None
        and isinstance(first.feed_forward, Mlp)
        and first.norms.places == "before"
        and first.residual_scale == 1.0
    )


def _layer_args(layer: DecoderLayer, next_norm: Norm | None) -> LayerArgs | None:
    """One layer as the kernels take it; None where they lack a product or the activation."""
    attention, mlp = layer.attention, layer.feed_forward
    if attention is None or not isinstance(mlp, MlpPart):
        return None
    named = {"qkv": attention.qkv, "output": attention.output, "up": mlp.up, "down": mlp.down}
    products = {name: args for name, projection in named.items() if (args := projection.layer_args) is not None}
    if len(products) < len(named) or mlp.up.activation is None or layer.mlp_norm is None or next_norm is None:
        return None
    storage = layer.mlp_norm.layer_args().storage
    for product in products.values():
        product.storage = storage  # a quantised weight is multiplied with x of either
    norms: dict[str, Norm | None] = {"mlp_norm": layer.mlp_norm, "next_norm": next_norm}
    norms |= {"query_norm": attention.query_norm, "key_norm": attention.key_norm}
    return LayerArgs(**products, **{name: norm.layer_args() for name, norm in norms.items() if norm is not None})
