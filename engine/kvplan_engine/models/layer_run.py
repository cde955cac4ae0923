"""All layers of a step in one call to the CPU kernels (csrc/cpu/layers.cpp), where every part of a layer has one.

The decoder's own loop does the same layer by layer and is what runs everywhere else: another device, the reference
path, projections that are not ours, norms of each head. ``tests/engine/kernels/test_layer_run.py`` holds the two equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import POINTER, byref, cast, pointer

import torch

from kvplan_engine.attention.backend import AttentionBackend
from kvplan_engine.attention.cpu import CpuBackend, raise_for
from kvplan_engine.checkpoints.config import ModelConfig
from kvplan_engine.kernels.cpu.library import STATUS_OK, LayerArgs, LayersArgs, cpu_kernels
from kvplan_engine.layers.linear import PanelLinear
from kvplan_engine.layers.norm import Norm
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.decoder_layer import DecoderLayer
from kvplan_engine.models.step_batch import StepBatch


def make_layer_run(
    config: ModelConfig, layers: Sequence[DecoderLayer], final_norm: Norm, attention: AttentionBackend
) -> LayerRun | None:
    """One call for all ``layers``, or None where a part of them is none of the kernels'."""
    if not isinstance(attention, CpuBackend) or cpu_kernels() is None:
        return None
    for layer in layers:
        projections = (layer.qkv, layer.output, layer.up, layer.down)
        if layer.query_norm is not None or not all(isinstance(each, PanelLinear) for each in projections):
            return None
        if layer.up.activation is None:
            return None
    return LayerRun(config, layers, final_norm, attention)


class LayerRun:
    """The layers' weights as the kernels take them. Holds addresses: the layers must outlive it."""

    def __init__(
        self, config: ModelConfig, layers: Sequence[DecoderLayer], final_norm: Norm, attention: CpuBackend
    ) -> None:
        kernels = cpu_kernels()
        assert kernels is not None
        self._kernels, self._config, self._attention = kernels, config, attention
        self._scale = config.head_size**-0.5
        next_norms = [layer.attention_norm for layer in layers[1:]] + [final_norm]
        self._layers = (LayerArgs * len(layers))(
            *(_layer_args(layer, norm) for layer, norm in zip(layers, next_norms, strict=True))
        )

    def __call__(self, batch: StepBatch, kv: torch.Tensor, workspace: Workspace) -> None:
        """From ``normed`` of the first norm to ``normed`` of the last; the step's K and V are in ``kv`` afterwards.

        With ``batch.sampled_attention`` the last norm's rows are those of ``batch.sampled_rows``.
        IndexError where the batch does not fit the pool or the rotary table.
        """
        config, tokens = self._config, batch.num_tokens
        qkv, attended = workspace.scratch((tokens, config.qkv_size), (tokens, config.query_size))
        heads = qkv.view(tokens, -1, config.head_size)
        query, key, value = heads.split([config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        out = attended.view(tokens, config.num_heads, config.head_size)
        window = config.window_tokens
        attention = self._attention.attention_args(query, kv, 0, batch.attention, out, self._scale, window, None)
        write = self._attention.write_args(key, value, kv, 0, batch.attention.slots)
        args = LayersArgs(
            layers=cast(self._layers, POINTER(LayerArgs)),
            num_layers=len(self._layers),
            **{name: workspace[name].data_ptr() for name in ("hidden", "normed", "delta")},
            qkv=qkv.data_ptr(),
            inner=qkv.data_ptr(),  # never needed at once
            attention=pointer(attention),
            write=pointer(write),
            kv_layer_bytes=kv.stride(1) * kv.itemsize,
            positions=batch.positions.data_ptr(),
        )
        if config.is_rotary:
            table = workspace["rope"]
            args.cos_sin, args.rope_rows, args.rotary = table.data_ptr(), table.shape[0], table.shape[1]
        if batch.sampled_attention is not None:
            rows = batch.sampled_rows
            number = rows.shape[0]
            args.last_rows, args.last_hidden = rows.data_ptr(), workspace["last_hidden"].data_ptr()
            args.last_attention = pointer(
                self._attention.attention_args(
                    out[number : 2 * number], kv, 0, batch.sampled_attention, out[:number], self._scale, window, None
                )
            )
        status = self._kernels.run_layers(byref(args), torch.get_num_threads())
        if status != STATUS_OK:
            raise_for(status, kv.shape[0])


def _layer_args(layer: DecoderLayer, next_norm: Norm) -> LayerArgs:
    products = {name: getattr(layer, name).packed.args for name in ("qkv", "output", "up", "down")}
    return LayerArgs(**products, mlp_norm=layer.mlp_norm.kernel_args(), next_norm=next_norm.kernel_args())
