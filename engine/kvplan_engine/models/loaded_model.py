"""A model's weights on a device, with the kernels that compute it."""

from __future__ import annotations

from typing import Any

import torch

from kvplan_engine.checkpoints.loaders import load_weights, read_config
from kvplan_engine.checkpoints.shared_layers import weight_owners
from kvplan_engine.checkpoints.weights import Weights, allocate_weights, weight_fingerprint
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.parameters import num_parameters
from kvplan_engine.device.device import Device
from kvplan_engine.models.decoder import Decoder
from kvplan_engine.models.device_kernels import select_kernels
from kvplan_engine.models.known_parts import refuse_unknown_parts
from kvplan_engine.models.kv_pool import KvPool


class LoadedModel:
    """A model's config and weights on a device; stays while pools come and go. is_dummy: the values mean nothing."""

    def __init__(self, config: EngineConfig, source: Any, device: Device, dtype_of: Any) -> None:
        self.config: ModelDescription = read_config(source)
        refuse_unknown_parts(self.config)
        self.dtype: str = dtype_of(self.config.dtype)
        self._scalar: torch.dtype = getattr(torch, self.dtype)
        owners = weight_owners(self.config, self._scalar.itemsize) if config.shares_layers else None
        self.weights: Weights = allocate_weights(self.config, self._scalar, device.torch_device, owners)
        # of all layers, also where some share theirs: a device must have room for the whole model
        self.weight_bytes = num_parameters(self.config) * self._scalar.itemsize
        self.is_dummy = load_weights(self.weights, self.config, source, config.load_format, config.seed)
        self.weight_fingerprint = weight_fingerprint(self.weights)  # of all, before the decoder packs most of them
        kernels = select_kernels(config.attention_backend, device.torch_device, self._scalar)
        self.ops = kernels.ops
        self.attention = kernels.attention
        self.decoder = Decoder(self.config, self.weights, kernels, owners)

    def reserve_decode(self, kv: KvPool, max_num_seqs: int) -> None:
        """Let attention compile and allocate what decode steps need, so that they can be captured."""
        distinct = {
            (part.description, kv.of(part.index).has_value_tables): part for part in self.decoder.attention_parts
        }
        for part in distinct.values():
            cache, heads = kv.of(part.index), part.description.num_heads
            self.attention.reserve_decode(cache, self._scalar, heads, max_num_seqs, part.options)
