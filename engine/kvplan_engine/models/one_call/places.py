"""What layers share whose tokens lie in the same blocks and that attend alike: one place of the call for all layers.

Over a pool in which all layers keep the same tokens in one block there is one place; in bundles each of a bundle's
blocks has its own tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Array, pointer
from dataclasses import dataclass

import torch

from kvplan_engine.attention.backend import AttentionInputs
from kvplan_engine.attention.cpu import CpuBackend
from kvplan_engine.kernels.cpu.step_args import AttentionArgs, LayerArgs, LayerPlaceArgs
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.kv_pool import KvPool
from kvplan_engine.models.mixers.attention_part import AttentionPart
from kvplan_engine.models.step_batch import StepBatch
from kvplan_engine.models.step_space import StepSpace


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """part: attention of the first of the layers that share the place."""

    part: AttentionPart

    def args(self, step: StepSpace, attention: CpuBackend) -> LayerPlaceArgs:
        """The place in one step, as the kernels take it; valid while the step's buffers are."""
        batch, workspace, cache = step.batch, step.workspace, step.kv.of(self.part.index)
        metadata = batch.attention[cache.tables]
        query, key, value, out = self._heads(batch, workspace)
        inputs = AttentionInputs(query, cache, metadata, out, self.part.options)
        args = LayerPlaceArgs(
            attention=pointer(attention.attention_args(inputs)),
            write=pointer(attention.write_args(key, value, cache, metadata.slots)),
        )
        if self.part.rope_table is not None:
            table = workspace[self.part.rope_table]
            args.cos_sin, args.rope_rows, args.rotary = table.data_ptr(), table.shape[0], table.shape[1]
        return args

    def sampled_args(self, step: StepSpace, attention: CpuBackend) -> AttentionArgs | None:
        """Attention of the sampled rows alone, which are at most half of all; None where all rows go on."""
        batch = step.batch
        if batch.sampled_attention is None:
            return None
        number, (*_, out) = batch.sampled_rows.shape[0], self._heads(batch, step.workspace)
        query, attended, cache = out[number : 2 * number], out[:number], step.kv.of(self.part.index)
        inputs = AttentionInputs(query, cache, batch.sampled_attention, attended, self.part.options)
        return attention.attention_args(inputs)

    def _heads(self, batch: StepBatch, workspace: Workspace) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values [T, n, d] side by side, and attention's output [T, hq, d], in the scratch buffer."""
        heads_of, tokens = self.part.description, batch.num_tokens
        qkv, attended = workspace.scratch((tokens, heads_of.qkv_size), (tokens, heads_of.output_size))
        heads = qkv.view(tokens, -1, heads_of.key_size)
        counts = [heads_of.num_heads, heads_of.num_kv_heads, heads_of.num_kv_heads]
        return *heads.split(counts, dim=1), attended.view(tokens, heads_of.num_heads, heads_of.key_size)


def set_places(layers: Array[LayerArgs], parts: Sequence[AttentionPart], kv: KvPool) -> list[LayerPlace]:
    """The places of ``layers`` over ``kv``; which is whose, and how far from its first layer, is set in ``layers``."""
    places: dict[object, tuple[int, LayerPlace]] = {}
    for args, part in zip(layers, parts, strict=True):
        cache = kv.of(part.index)
        key = (cache.tables, part.description, part.rope_table, id(part.options.sinks))
        args.place, place = places.setdefault(key, (len(places), LayerPlace(part)))
        first = kv.of(place.part.index)
        args.key_offset = cache.keys.data_ptr() - first.keys.data_ptr()
        args.value_offset = cache.values.data_ptr() - first.values.data_ptr()
    return [place for _, place in places.values()]
