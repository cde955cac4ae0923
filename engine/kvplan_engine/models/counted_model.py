"""What an engine needs to know of its model, and a model that is only counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from kvplan_engine.adapters.library import AdapterLibrary
from kvplan_engine.adapters.sites import slot_bytes
from kvplan_engine.checkpoints.families.multi_token import multi_token_model
from kvplan_engine.checkpoints.hub import resolve_source
from kvplan_engine.checkpoints.loaders import read_config
from kvplan_engine.checkpoints.quantised.held import rounded_weight_bytes
from kvplan_engine.checkpoints.weights import num_parameters
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.division import Rank, counted_part, part_of
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.weight_format import recipe_of
from kvplan_engine.device.device import Device, resolve_dtype
from kvplan_engine.errors import SettingsError
from kvplan_engine.memory.breakdown import DTYPE_BYTES
from kvplan_engine.rank_account import RankAccount


class EngineModel(Protocol):
    """A model as everything but the steps sees it. is_dummy: its answers mean nothing.

    dtype: of weights and activations. weight_bytes: slots of adapters included, which take adapter_bytes.
    weight_fingerprint: differs where weights differ. adapters: None where none are served, or only counted.
    kernels_name: DeviceKernels.name of what computes it, None where nothing does.
    """

    config: ModelDescription
    dtype: str
    implementation: str
    kernels_name: str | None
    weight_bytes: int
    adapter_bytes: int
    weight_fingerprint: bytes
    adapters: AdapterLibrary | None
    is_dummy: bool


class CountedModel:
    """A model without weights: its config, and the bytes that they would take. Of several ranks, those of the first.

    other_stages: what a rank of each further stage has, and the bytes of its weights. drafter: what a rank has of
    layers that draft, whose weights are counted among the model's; None without any.
    EngineError when there is no such model, or when its config is not one the engine reads.
    """

    is_dummy = True
    implementation = "native"
    kernels_name: str | None = None
    weight_fingerprint = b"counted"
    adapters: AdapterLibrary | None = None

    def __init__(self, config: EngineConfig, source: Any, device: Device) -> None:
        whole = read_config(source, whole_experts=config.enable_expert_parallel)
        self.dtype = resolve_dtype(config.dtype, whole.dtype, device)
        drafter = _drafter(config, whole)
        if drafter is not None and config.rank_accounts is not None:
            drafter = counted_part(drafter, range(drafter.num_layers), config.tensor_parallel_size)
        self.drafter = drafter
        if config.rank_accounts is not None:
            stages = list(_given_stages(whole, config.rank_accounts, config.tensor_parallel_size))
            first = config.rank_accounts[0]
            self.config: ModelDescription = stages[0]
            self.weight_bytes, self.adapter_bytes = first.weight_bytes, first.adapter_bytes
            further = zip(stages[1:], config.rank_accounts[1:], strict=True)
            self.other_stages = [(stage, account.weight_bytes) for stage, account in further]
            return
        ranks = (config.tensor_parallel_size, config.pipeline_parallel_size)
        stages = [part_of(whole, rank) for rank in Rank.all_of(*ranks) if rank.index == 0]
        self.config = stages[0]
        element_bytes = DTYPE_BYTES[self.dtype]
        self.adapter_bytes = 0
        if config.enable_lora:
            loras, rank = config.max_loras, config.max_lora_rank
            self.adapter_bytes = slot_bytes(self.config, element_bytes, max_loras=loras, max_lora_rank=rank)
        self.weight_bytes = _counted_bytes(config, self.config, element_bytes) + self.adapter_bytes
        if drafter is not None and config.weight_bytes is None:
            as_stored = config if config.drafts_with_own_layer else replace(config, quantization=None)
            self.weight_bytes += _counted_bytes(as_stored, drafter, element_bytes)
        self.other_stages = [(stage, _counted_bytes(config, stage, element_bytes)) for stage in stages[1:]]


def _drafter(config: EngineConfig, model: ModelDescription) -> ModelDescription | None:
    """What drafts for ``model``, where it has layers."""
    if not config.drafts_with_model:
        return None
    if config.drafts_with_own_layer:
        return multi_token_model(model)
    assert config.speculative_config is not None
    return read_config(resolve_source(config.speculative_config.model, config.load_format).loadable)


def _given_stages(
    model: ModelDescription, accounts: Sequence[RankAccount], num_ranks: int
) -> Iterator[ModelDescription]:
    """What a rank of each stage keeps. SettingsError where the stages do not have the model's layers."""
    given = sum(account.num_layers for account in accounts)
    if given != model.num_layers:
        raise SettingsError(f"rank_accounts has {given} layers, and the model has {model.num_layers}.")
    first = 0
    for account in accounts:
        yield counted_part(model, range(first, first + account.num_layers), num_ranks)
        first += account.num_layers


def _counted_bytes(config: EngineConfig, model: ModelDescription, element_bytes: int) -> int:
    """Return the bytes of the weights alone: as the config says, rounded, or all in the dtype that is computed in."""
    if config.weight_bytes is not None:
        return config.weight_bytes
    if config.quantization in (None, "none"):
        return num_parameters(model) * element_bytes
    return rounded_weight_bytes(model, recipe_of(config.quantization, config.group_size), element_bytes)
