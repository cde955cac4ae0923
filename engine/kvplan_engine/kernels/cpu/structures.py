"""Checks that the structures declared here have the sizes that the library was compiled with."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.cpu.choice_args import ChoiceArgs
from kvplan_engine.kernels.cpu.delta import DeltaRuleArgs
from kvplan_engine.kernels.cpu.head_products_args import HeadProductsArgs
from kvplan_engine.kernels.cpu.lora_args import LoraRowsArgs, LoraSlotsArgs
from kvplan_engine.kernels.cpu.mamba_args import GatedRowsArgs, Mamba1Args, Mamba2Args
from kvplan_engine.kernels.cpu.mixture_args import ExpertsArgs, MixtureArgs, RouterArgs
from kvplan_engine.kernels.cpu.state_args import ConvolutionArgs, StateArgs
from kvplan_engine.kernels.cpu.step_args import (
    AttentionArgs,
    KvWriteArgs,
    LayerArgs,
    LayerPlaceArgs,
    LayersArgs,
    NormArgs,
    PackedLinearArgs,
    WeightFormatArgs,
)

STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "kvplan_attention": AttentionArgs,
    "kvplan_choice": ChoiceArgs,
    "kvplan_kv_write": KvWriteArgs,
    "kvplan_norm": NormArgs,
    "kvplan_weight_format": WeightFormatArgs,
    "kvplan_packed_linear": PackedLinearArgs,
    "kvplan_head_products": HeadProductsArgs,
    "kvplan_router": RouterArgs,
    "kvplan_experts": ExpertsArgs,
    "kvplan_mixture": MixtureArgs,
    "kvplan_layer": LayerArgs,
    "kvplan_layer_place": LayerPlaceArgs,
    "kvplan_layers": LayersArgs,
    "kvplan_lora_slots": LoraSlotsArgs,
    "kvplan_lora_rows": LoraRowsArgs,
    "kvplan_mamba1": Mamba1Args,
    "kvplan_mamba2": Mamba2Args,
    "kvplan_gated_rows": GatedRowsArgs,
    "kvplan_state": StateArgs,
    "kvplan_convolution": ConvolutionArgs,
    "kvplan_delta_rule": DeltaRuleArgs,
}
"""The structs of csrc/include by their names there."""


class KernelStructureError(EngineError):
    """Sources and Python declare a struct differently: no call would be safe, so none is made."""


def check_structures(bytes_when_compiled: Callable[[bytes], int]) -> None:
    """Raise KernelStructureError for a structure of another size than ``bytes_when_compiled`` gives for its name."""
    for name, structure in STRUCTURES.items():
        compiled, here = bytes_when_compiled(name.encode()), ctypes.sizeof(structure)
        if compiled != here:
            raise KernelStructureError(
                f"struct {name} has {compiled} bytes in the compiled CPU kernels and {here} in {structure.__name__}.",
                hint="install kvplan again: its csrc and its Python are not of one version",
            )
