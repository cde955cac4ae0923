"""The CPU kernels' call for all layers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, Array, byref, c_double, cast, pointer

import torch

from kvplan_engine.adapters.step_rows import StepRows
from kvplan_engine.attention.cpu import CpuBackend, raise_for
from kvplan_engine.kernels.cpu.library import LAYER_OPERATIONS, STATUS_OK, CpuKernels
from kvplan_engine.kernels.cpu.lora import rows_args
from kvplan_engine.kernels.cpu.step_args import LayerArgs, LayerPlaceArgs, LayersArgs
from kvplan_engine.layers.norm import Norm
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.decoder_layer import DecoderLayer
from kvplan_engine.models.feed_forwards.mixture_part import MixturePart
from kvplan_engine.models.kv_pool import KvPool
from kvplan_engine.models.mixers.attention_part import AttentionPart
from kvplan_engine.models.one_call.layer_args import all_layer_args
from kvplan_engine.models.one_call.places import LayerPlace, set_places
from kvplan_engine.models.step_batch import KeptViews, StepBatch
from kvplan_engine.models.step_space import StepSpace


class CpuLayerRun:
    """The layers' weights as the CPU kernels take them. Holds addresses: the layers must outlive it."""

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
        self._pool: Callable[[], KvPool | None] = lambda: (
            None
        )  # not kept: its memory is given back before a new one is had
        self._places: list[LayerPlace] = []
        self._seconds: Array[c_double] | None = None
        self._repeated: tuple[weakref.ref[KeptViews], LayersArgs] | None = None

    @classmethod
    def of(
        cls,
        layers: Sequence[DecoderLayer],
        final_norm: Norm,
        attention: CpuBackend,
        kernels: CpuKernels,
        adapters: StepRows | None = None,
    ) -> CpuLayerRun | None:
        """One call for all ``layers``, or None where the kernels lack a part of them.

        adapters: which rows of a step the products are corrected for.
        """
        args = all_layer_args(layers, final_norm)
        return None if args is None else cls(layers, args, attention, kernels, adapters)

    def __call__(self, batch: StepBatch, kv: KvPool, workspace: Workspace, num_layers: int | None = None) -> None:
        """See LayerRun.__call__."""
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
        """See LayerRun.time_operations."""
        self._seconds, self._repeated = (c_double * len(LAYER_OPERATIONS))(), None

    def operation_seconds(self) -> Mapping[str, float]:
        """See LayerRun.operation_seconds."""
        return {} if self._seconds is None else dict(zip(LAYER_OPERATIONS, self._seconds, strict=True))


def _let_correct(args: LayersArgs, step: StepRows) -> None:
    """Let adapters correct the rows that ``step`` says."""
    if step.rows is not None:
        args.corrected = pointer(rows_args(step.rows))
    if step.sampled is not None:
        args.last_corrected = pointer(rows_args(step.sampled))
