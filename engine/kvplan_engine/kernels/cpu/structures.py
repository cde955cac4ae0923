"""The structures of csrc/include, and the check that the library was compiled with the same."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_double, c_int64

from kvplan_engine.kernels.c_structures import READ, KernelStructureError, declared_in

_CPU, _LORA = "include/kvplan_cpu.h", "include/kvplan_lora.h"
_STATES, _MAMBA = "include/kvplan_states.h", "include/kvplan_mamba.h"


@declared_in(_CPU, "kvplan_attention")
class AttentionArgs(ctypes.Structure):
    """Attention of one layer."""


@declared_in(_CPU, "kvplan_choice")
class ChoiceArgs(ctypes.Structure):
    """The choice of tokens for sparse attention."""


@declared_in(_CPU, "kvplan_kv_write")
class KvWriteArgs(ctypes.Structure):
    """Keys and values on their way into the pool."""


@declared_in(_CPU, "kvplan_norm")
class NormArgs(ctypes.Structure):
    """A norm of rows."""


@declared_in(_CPU, "kvplan_weight_format")
class WeightFormatArgs(ctypes.Structure):
    """How a weight in few bits lies in its panels."""


@declared_in(_LORA, "kvplan_lora_slots", ends=POINTER(c_int64))
class LoraSlotsArgs(ctypes.Structure):
    """The adapters of one product."""


@declared_in(_LORA, "kvplan_lora_rows")
class LoraRowsArgs(ctypes.Structure):
    """The rows that adapters correct."""


@declared_in(_CPU, "kvplan_packed_linear")
class PackedLinearArgs(ctypes.Structure):
    """A product with a packed weight."""


@declared_in(_CPU, "kvplan_head_products")
class HeadProductsArgs(ctypes.Structure):
    """The products of all heads."""


@declared_in(_CPU, "kvplan_router")
class RouterArgs(ctypes.Structure):
    """What chooses a mixture's experts."""


@declared_in(_CPU, "kvplan_experts")
class ExpertsArgs(ctypes.Structure):
    """MLPs of one size."""


@declared_in(_CPU, "kvplan_mixture")
class MixtureArgs(ctypes.Structure):
    """A mixture of experts."""


@declared_in(_CPU, "kvplan_layer")
class LayerArgs(ctypes.Structure):
    """A layer of a step."""


@declared_in(_CPU, "kvplan_layer_place")
class LayerPlaceArgs(ctypes.Structure):
    """What layers share whose tokens lie in the same blocks."""


@declared_in(_CPU, "kvplan_layers", operation_seconds=POINTER(c_double))
class LayersArgs(ctypes.Structure):
    """All layers of a step."""


@declared_in(_STATES, "kvplan_state")
class StateArgs(ctypes.Structure):
    """Where a layer's state lies, and the tokens that it goes through."""


@declared_in(_STATES, "kvplan_convolution")
class ConvolutionArgs(ctypes.Structure):
    """A causal convolution."""


@declared_in(_STATES, "kvplan_delta_rule")
class DeltaRuleArgs(ctypes.Structure):
    """The gated delta rule."""


@declared_in(_MAMBA, "kvplan_mamba1")
class Mamba1Args(ctypes.Structure):
    """Mamba's recurrence."""


@declared_in(_MAMBA, "kvplan_mamba2")
class Mamba2Args(ctypes.Structure):
    """Mamba 2's recurrence."""


@declared_in(_MAMBA, "kvplan_gated_rows")
class GatedRowsArgs(ctypes.Structure):
    """Rows times a gate, with a norm."""


STRUCTURES = {name: structure for name, structure in READ.items() if name.startswith("kvplan_")}
"""The structs of csrc/include by their names there."""


def check_structures(bytes_when_compiled: Callable[[bytes], int]) -> None:
    """Raise KernelStructureError for a structure of another size than ``bytes_when_compiled`` gives for its name."""
    for name, structure in STRUCTURES.items():
        compiled, here = bytes_when_compiled(name.encode()), ctypes.sizeof(structure)
        if compiled != here:
            raise KernelStructureError(
                f"struct {name} has {compiled} bytes in the compiled CPU kernels and {here} in {structure.__name__}.",
                hint="install kvplan again: its csrc and its Python are not of one version",
            )
