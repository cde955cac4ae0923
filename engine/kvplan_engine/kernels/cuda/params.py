"""The kernels' argument structures, which are passed by value as a kernel's only argument."""

from __future__ import annotations

import ctypes

from kvplan_engine.kernels.c_structures import declared_in

MOST_INPUTS = 32
"""copy_inputs.cu: MOST_INPUTS of one launch."""
MOST_STACKED = 4
"""lora.cuh: products that an adapter's stacked matrix has."""


@declared_in("cuda/attention/plan/plan.cuh")
class PlanParams(ctypes.Structure):
    """Arguments of plan_attention and plan_shared_prefixes."""


@declared_in("cuda/attention/attention.cuh")
class AttentionParams(ctypes.Structure):
    """Arguments of decode_attention and prefill_attention."""


@declared_in("cuda/hopper.cuh")
class TensorMap(ctypes.Structure):
    """What the copy engine copies boxes by."""


class PrefillWgmmaParams(ctypes.Structure):
    """Arguments of prefill_attention in prefill_wgmma.cu. C++ aligns them to 64 bytes, which fills up the last one."""

    _fields_ = (
        ("keys", TensorMap),
        ("values", TensorMap),
        ("attention", AttentionParams),
        ("_filler", ctypes.c_ubyte * (-ctypes.sizeof(AttentionParams) % 64)),
    )


@declared_in("cuda/attention/cache/write_kv.cu")
class WriteParams(ctypes.Structure):
    """Arguments of write_kv and rotate_heads."""


@declared_in("cuda/attention/cache/copy_blocks.cu")
class CopyParams(ctypes.Structure):
    """Arguments of copy_blocks."""


@declared_in("cuda/layers/copy_inputs.cu", "InputRows")
class InputRowsParams(ctypes.Structure):
    """Where one input's rows are, and go."""


@declared_in("cuda/layers/copy_inputs.cu")
class InputParams(ctypes.Structure):
    """Arguments of copy_inputs."""


@declared_in("cuda/layers/norm.cu")
class NormParams(ctypes.Structure):
    """Arguments of rms_norm and layer_norm."""


@declared_in("cuda/layers/activation.cu")
class ActivationParams(ctypes.Structure):
    """Arguments of silu_and_mul, gelu_tanh and gelu_erf."""


@declared_in("cuda/layers/argmax.cu")
class ArgmaxParams(ctypes.Structure):
    """Arguments of argmax_rows."""


@declared_in("cuda/collectives/all_reduce.cu")
class AllReduceParams(ctypes.Structure):
    """Arguments of all_reduce."""


@declared_in("cuda/mixtures/mixture.cuh")
class ProductParams(ctypes.Structure):
    """Arguments of expert_product."""


@declared_in("cuda/mixtures/mixture_route.cu")
class RouteParams(ctypes.Structure):
    """Arguments of choose_experts."""


@declared_in("cuda/mixtures/mixture_sort.cu")
class SortParams(ctypes.Structure):
    """Arguments of sort_pairs."""


@declared_in("cuda/mixtures/mixture_sum.cu")
class SumParams(ctypes.Structure):
    """Arguments of sum_experts."""


@declared_in("cuda/states/state.cuh")
class StatePlace(ctypes.Structure):
    """Where a state lies."""


@declared_in("cuda/states/state_convolution.cu")
class ConvolutionParams(ctypes.Structure):
    """Arguments of convolve."""


@declared_in("cuda/states/state_delta.cu")
class DeltaParams(ctypes.Structure):
    """Arguments of delta_rule."""


@declared_in("cuda/states/state_mamba1.cu")
class Mamba1Params(ctypes.Structure):
    """Arguments of scan_mamba1."""


@declared_in("cuda/states/state_mamba2.cu")
class Mamba2Params(ctypes.Structure):
    """Arguments of scan_mamba2."""


@declared_in("cuda/states/gated_rows.cu")
class GateParams(ctypes.Structure):
    """Arguments of gate_rows."""


@declared_in("cuda/products/quantised.cuh")
class QuantisedParams(ctypes.Structure):
    """Arguments of quantised_product."""


@declared_in("cuda/products/quantised_widen.cu")
class WidenParams(ctypes.Structure):
    """Arguments of widen_rows."""


@declared_in("cuda/products/float8_mma.cu")
class Float8Params(ctypes.Structure):
    """Arguments of float8_product."""


@declared_in("cuda/products/quantise_rows.cu")
class QuantiseParams(ctypes.Structure):
    """Arguments of quantise_rows."""


@declared_in("cuda/products/lora.cuh")
class LoraParams(ctypes.Structure):
    """Arguments of lora_shrink and lora_expand."""


@declared_in("cuda/products/skinny_mma.cu")
class SkinnyParams(ctypes.Structure):
    """Arguments of skinny_product."""


@declared_in("cuda/sampling/row.cuh")
class Listed(ctypes.Structure):
    """A token whose logit is changed by an amount."""


@declared_in("cuda/sampling/row.cuh", listed=ctypes.c_uint64)
class DrawRow(ctypes.Structure):
    """How one sequence's token is chosen. The address of what is listed is a number, as numpy stores it."""


@declared_in("cuda/sampling/sample.cu", draws=ctypes.c_void_p)
class SampleParams(ctypes.Structure):
    """Arguments of sample_rows."""
