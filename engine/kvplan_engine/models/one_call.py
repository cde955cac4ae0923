"""All layers of a step in one call, where the kernels of a device have one for every part of a layer.

The CPU kernels have (csrc/cpu/layers.cpp). Everywhere else the decoder's loop runs layer by layer: on another device,
with the reference kernels, with projections that are not ours, with parts that the call lacks. Both give the same
bits (``tests/engine/kernels/runs/test_layer_run.py``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, Array, byref, c_double, cast, pointer
from dataclasses import dataclass

import torch

from kvplan_engine.adapters.step_rows import StepRows
from kvplan_engine.attention.backend import AttentionInputs
from kvplan_engine.attention.cpu import CpuBackend, raise_for
from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.description.model import Layer, attention_of
from kvplan_engine.kernels.cpu.library import LAYER_OPERATIONS, STATUS_OK, CpuKernels
from kvplan_engine.kernels.cpu.lora import rows_args
from kvplan_engine.kernels.cpu.structures import AttentionArgs, LayerArgs, LayerPlaceArgs, LayersArgs, PackedLinearArgs
from kvplan_engine.layers.norm import Norm
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.decoder_layer import DecoderLayer
from kvplan_engine.models.feed_forwards import MixturePart, MlpPart
from kvplan_engine.models.kv_pool import KvPool
from kvplan_engine.models.mixers.attention_part import AttentionPart
from kvplan_engine.models.step_batch import KeptViews, StepBatch, StepSpace

# Layers as the CPU kernels' call takes them, and which it takes.


def all_layer_args(layers: Sequence[DecoderLayer], final_norm: Norm) -> list[LayerArgs] | None:
    """All ``layers`` but for what depends on the pool; None where the kernels lack a part of one.

    Valid while the layers are. The mixtures among them share a step's memory, so these must be of one description.
    """
    mixtures = {layer.description.feed_forward for layer in layers if isinstance(layer.feed_forward, MixturePart)}
    if len(mixtures) > 1 or not all(_is_taken(layer.description) for layer in layers):
        return None
    next_norms = [layer.attention_norm for layer in layers[1:]] + [final_norm]
    args = [_layer_args(layer, norm) for layer, norm in zip(layers, next_norms, strict=True)]
    complete = [each for each in args if each is not None]
    return complete if len(complete) == len(args) else None


def _is_taken(layer: Layer) -> bool:
    """Whether the call has what the layer is made of."""
    attention = attention_of(layer)
    return (
        attention is not None
        and attention.head_norm in ("none", "head")
        and not attention.norm_after_rope
        and attention.gate == "none"
        and attention.clip is attention.growing_scale is None
        and not (attention.value_is_key or attention.value_norm)
        and layer.end is None
        and isinstance(layer.feed_forward, (Mlp, Mixture))
        and layer.norms.places in ("before", "both")
        and layer.residual_scale == 1.0
    )


def _layer_args(layer: DecoderLayer, next_norm: Norm | None) -> LayerArgs | None:
    """One layer; None where the kernels lack a product, the activation or the mixture."""
    attention, products = layer.attention, _products(layer)
    if attention is None or products is None or layer.mlp_norm is None or next_norm is None:
        return None
    norms: dict[str, Norm | None] = {"mlp_norm": layer.mlp_norm, "next_norm": next_norm}
    norms |= {"query_norm": attention.query_norm, "key_norm": attention.key_norm}
    norms |= {"attention_post_norm": layer.attention_post_norm, "mlp_post_norm": layer.mlp_post_norm}
    storage = layer.mlp_norm.layer_args().storage
    for product in products.values():
        product.storage = storage  # a quantised weight is multiplied with x of either
    args = LayerArgs(**products, **{name: norm.layer_args() for name, norm in norms.items() if norm is not None})
    if isinstance(layer.feed_forward, MixturePart):
        mixture = layer.feed_forward.layer_args
        if mixture is None:
            return None
        args.mixture = pointer(mixture)
    return args


def _products(layer: DecoderLayer) -> dict[str, PackedLinearArgs] | None:
    """The layer's products by their names in the call; None where one is not the kernels'."""
    attention, mlp = layer.attention, layer.feed_forward
    if attention is None:
        return None
    projections = {"qkv": attention.qkv, "output": attention.output}
    if isinstance(mlp, MlpPart):
        if mlp.up.activation is None:
            return None
        projections |= {"up": mlp.up, "down": mlp.down}
    found = {name: args for name, projection in projections.items() if (args := projection.layer_args) is not None}
    return found if len(found) == len(projections) else None


# What layers share whose tokens lie in the same blocks and that attend alike: one place of the call for all layers.
#
# Over a pool in which all layers keep the same tokens in one block there is one place; in bundles each of a bundle's
# blocks has its own tables.


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


class CpuLayerRun:
    """All layers over one step, their weights as the CPU kernels take them. Holds addresses: layers must outlive it.

    adapters: which rows of a step the products are corrected for.
    """

    def __init__(
        self,
        layers: Sequence[DecoderLayer],
        args: Sequence[LayerArgs],
        attention: CpuBackend,
        kernels: CpuKernels,
        adapters: StepRows | None,
    ) -> None:
        self._attention, self._kernels, self._adapters = attention, kernels, adapters
        self._layers = (LayerArgs * len(args))(*args)
        self._parts: list[AttentionPart] = [layer.attention for layer in layers if layer.attention is not None]
        mixtures = (layer.feed_forward for layer in layers)
        self._mixture = next((part for part in mixtures if isinstance(part, MixturePart)), None)
        self._pool: Callable[[], KvPool | None] = lambda: None  # not kept: its memory goes before a new one is had
        self._places: list[LayerPlace] = []
        self._seconds: Array[c_double] | None = None
        self._repeated: tuple[weakref.ref[KeptViews], LayersArgs] | None = None

    @classmethod
    def of(
        cls,
        attention: CpuBackend,
        kernels: CpuKernels,
        layers: Sequence[DecoderLayer],
        final_norm: Norm,
        adapters: StepRows | None = None,
    ) -> CpuLayerRun | None:
        """One call for all ``layers``, or None where the kernels lack a part of them."""
        args = all_layer_args(layers, final_norm)
        return None if args is None else cls(layers, args, attention, kernels, adapters)

    def __call__(self, batch: StepBatch, kv: KvPool, workspace: Workspace, num_layers: int | None = None) -> None:
        """Go from ``normed`` of the first norm to ``normed`` of the last; the step's K and V are in ``kv`` afterwards.

        With ``batch.sampled_attention`` the last norm's rows are those of ``batch.sampled_rows``. num_layers: so many
        of the first layers alone; ``normed`` is then what the next one would read.
        IndexError where the batch does not fit the pool or the rotary table.
        """
        if kv is not self._pool():
            self._pool, self._places = weakref.ref(kv), set_places(self._layers, self._parts, kv)
            self._repeated = None
        step = StepSpace(batch, kv, workspace)
        args = self._step_args(step) if num_layers is None else self._make_args(step, num_layers)
        status = self._kernels.run_layers(byref(args), torch.get_num_threads())
        if status != STATUS_OK:
            raise_for(status, kv.of(0).num_blocks)

    def _step_args(self, step: StepSpace) -> LayersArgs:
        """The call's arguments, those of the step before where it had the same buffers and as many rows."""
        views = step.batch.views
        if views is None or step.batch.sampled_attention is not None or self._adapters is not None:
            return self._make_args(step)
        if self._repeated is None or self._repeated[0]() is not views:
            self._repeated = weakref.ref(views), self._make_args(step)
        return self._repeated[1]

    def _make_args(self, step: StepSpace, num_layers: int | None = None) -> LayersArgs:
        batch, workspace = step.batch, step.workspace
        num_layers = num_layers or len(self._layers)
        scratch = workspace["scratch"].data_ptr()
        args = LayersArgs(
            layers=cast(self._layers, POINTER(LayerArgs)),
            num_layers=num_layers,
            places=self._step_places(step),
            **{name: workspace[name].data_ptr() for name in ("hidden", "normed", "delta")},
            qkv=scratch,
            inner=scratch,  # never needed at once
            positions=batch.positions.data_ptr(),
        )
        if self._mixture is not None:
            room = self._mixture.room(batch.num_tokens, workspace)
            args.expert_ids, args.expert_weights = room.ids.data_ptr(), room.shares.data_ptr()
            args.expert_inner = room.inner.data_ptr()
        if self._adapters is not None:
            _let_correct(args, self._adapters)
        if self._seconds is not None:
            args.operation_seconds = cast(self._seconds, POINTER(c_double))
        sampled = self._places[self._layers[num_layers - 1].place].sampled_args(step, self._attention)
        if sampled is not None:
            args.last_attention = pointer(sampled)
            args.last_rows, args.last_hidden = batch.sampled_rows.data_ptr(), workspace["last_hidden"].data_ptr()
        return args

    def _step_places(self, step: StepSpace) -> Array[LayerPlaceArgs]:
        args = (place.args(step, self._attention) for place in self._places)
        return (LayerPlaceArgs * len(self._places))(*args)

    def time_operations(self) -> None:
        """Add up from now on how long each operation takes: one reading of a clock for each."""
        self._seconds, self._repeated = (c_double * len(LAYER_OPERATIONS))(), None

    def operation_seconds(self) -> Mapping[str, float]:
        """Time of each operation over all layers and steps since time_operations(); {} before."""
        return {} if self._seconds is None else dict(zip(LAYER_OPERATIONS, self._seconds, strict=True))


def _let_correct(args: LayersArgs, step: StepRows) -> None:
    """Let adapters correct the rows that ``step`` says."""
    if step.rows is not None:
        args.corrected = pointer(rows_args(step.rows))
    if step.sampled is not None:
        args.last_corrected = pointer(rows_args(step.sampled))
