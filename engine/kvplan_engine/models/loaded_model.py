"""A model's weights on a device, with the kernels that compute it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from kvplan_engine.adapters.library import AdapterLibrary, AdapterSlots
from kvplan_engine.adapters.sites import sites_of
from kvplan_engine.checkpoints.dummy import weight_owners
from kvplan_engine.checkpoints.families.multi_token import multi_token_model
from kvplan_engine.checkpoints.loaders import load_weights, plan_held_weights, read_config
from kvplan_engine.checkpoints.weights import Weights, allocate_weights, unowned, weight_fingerprint
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.division import Rank, part_of
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.parameters import num_parameters
from kvplan_engine.device.collectives import Collectives
from kvplan_engine.device.device import Device
from kvplan_engine.memory.breakdown import SHARDS, BufferSpec
from kvplan_engine.memory.step_buffers import cuda_buffers
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.decoder import Decoder
from kvplan_engine.models.device_kernels import select_kernels
from kvplan_engine.models.known_parts import refuse_unknown_parts
from kvplan_engine.models.kv_pool import KvPool
from kvplan_engine.models.part_decoders import JoinedDecoder, StageDecoder


class LoadedModel:
    """A model's config and weights on a device; stays while pools come and go. is_dummy: the values mean nothing.

    weight_bytes: slots of adapters included, which take adapter_bytes. adapters: None where none are served.
    collectives: of the ranks that share every layer, None where there are none; config is then a rank's part. target:
    the model whose layer for multi-token prediction is loaded, in place of the model itself.
    """

    implementation = "native"
    drafter: LoadedModel | None = None
    """A smaller model that proposes tokens, whose weights are counted among this one's."""

    def __init__(
        self,
        config: EngineConfig,
        source: Any,
        device: Device,
        dtype_of: Any,
        collectives: Collectives | None = None,
        target: LoadedModel | None = None,
    ) -> None:
        self.name = config.model
        whole = read_config(source, whole_experts=config.enable_expert_parallel)
        if target is not None:
            whole = multi_token_model(whole)
        refuse_unknown_parts(whole)
        rank = Rank() if collectives is None else collectives.rank
        self.config: ModelDescription = part_of(whole, rank)
        self.dtype: str = dtype_of(self.config.dtype)
        self._scalar: torch.dtype = getattr(torch, self.dtype)
        owners = weight_owners(self.config, self._scalar.itemsize) if config.shares_layers else None
        loading = (whole, source, config.load_format)
        held = plan_held_weights(*loading, config.quantization, config.seed, config.group_size)
        kernels = select_kernels(config.attention_backend, device.torch_device, self._scalar)
        formats = tuple(dict.fromkeys(each for one in held.plain.parameters.values() for each in one.formats))
        kernels = kernels.checked(self.config, config, self.dtype, formats).with_linears(config.linear_backend)
        if collectives is not None and rank.count > 1:
            kernels = kernels.divided(
                self.config, collectives, self._scalar, custom_all_reduce=not config.disable_custom_all_reduce
            )
        if config.rounds_activations:
            held = replace(held, rounds_inputs=True)
            kernels.check_rounding()
        held = held.plain if kernels.takes_plain_weights else held
        self.weights: Weights = allocate_weights(
            self.config, self._scalar, device.torch_device, owners, without=held.parameters
        )
        # of all layers, also where some share theirs: a device must have room for the whole model
        dense_parameters = num_parameters(self.config) - held.num_parameters
        self.weight_bytes = dense_parameters * self._scalar.itemsize + held.num_bytes
        slots = _make_slots(config, self.config, self._scalar, device)
        self.adapter_bytes = 0 if slots is None else slots.num_bytes
        self.weight_bytes += self.adapter_bytes
        self.is_dummy = load_weights(self.weights, *loading, config.seed, rank, self.config.stage.first_layer)
        held.fill(self.weights, device.torch_device, skipped=unowned(owners))
        self.weight_fingerprint = weight_fingerprint(self.weights)  # of all, before the decoder packs most of them
        self.adapters: AdapterLibrary | None = None
        if slots is not None:
            self.adapters = AdapterLibrary(
                self.config, slots, config.max_lora_rank, config.most_held_adapters, device.torch_device
            )
            kernels = kernels.corrected(slots.sites, self.adapters.step)
        self._kernel_memory, self._holds_few_bits = kernels.memory, bool(held.parameters)
        self._shards = kernels.shards
        self.ops, self.overlap_launches = kernels.ops, kernels.overlap_launches
        self.draws = kernels.draws
        self.kernels_name: str | None = kernels.name
        self.verdicts, self._waits_for_nothing = kernels.verdicts, kernels.is_capturable
        self.attention = kernels.attention
        parts = (self.config, self.weights, kernels, owners)
        self.decoder: Decoder
        if target is not None:
            self.decoder = JoinedDecoder(*parts, target.decoder)
        elif collectives is None or rank.num_stages == 1:
            self.decoder = Decoder(*parts)
        else:
            self.decoder = StageDecoder(*parts, collectives)
        self._has_every_layer = rank.num_stages == 1

    @property
    def is_capturable(self) -> bool:
        """Whether steps may be captured as graphs.

        Not where stages hand rows to each other, and not where a layer launches something for each of its experts: a
        graph takes memory for each launch, and to widen all experts takes longer than to launch that.
        """
        never_waits = self.attention.is_capturable and self._waits_for_nothing
        return never_waits and self._has_every_layer and not self.decoder.launches_each_expert

    def kernel_buffers(self, config: EngineConfig) -> list[BufferSpec]:
        """What the kernels need of the workspace besides a step's own buffers."""
        if not self._kernel_memory:
            return []
        return cuda_buffers(config, self.config, holds_few_bits=self._holds_few_bits)

    def use_workspace(self, workspace: Workspace) -> None:
        """Let the kernels find these buffers."""
        for name, memory in self._kernel_memory.items():
            if name in workspace:
                memory.bind(workspace[name])
        if self._shards is not None:
            self._shards.bind(workspace[SHARDS])

    def release_workspace(self) -> None:
        """Let go of the buffers: a part of a workspace keeps all its memory."""
        self.attention.release_workspace()
        for memory in self._kernel_memory.values():
            memory.release()
        if self._shards is not None:
            self._shards.release()
        if self.adapters is not None:
            self.adapters.step.release_place()

    def reserve_decode(self, kv: KvPool, max_num_seqs: int) -> None:
        """Let attention compile and allocate what decode steps need, so that they can be captured."""
        distinct = {
            (part.description, kv.of(part.index).has_value_tables): part for part in self.decoder.attention_parts
        }
        for part in distinct.values():
            cache, heads = kv.of(part.index), part.description.num_heads
            self.attention.reserve_decode(cache, self._scalar, heads, max_num_seqs, part.options)


def _make_slots(
    config: EngineConfig, model: ModelDescription, dtype: torch.dtype, device: Device
) -> AdapterSlots | None:
    """Room for adapters, None where none are served. OutOfDeviceMemory(phase="weights") when it does not fit."""
    if not config.enable_lora:
        return None
    return AdapterSlots(sites_of(model), config.max_loras, config.max_lora_rank, dtype, device.torch_device)
