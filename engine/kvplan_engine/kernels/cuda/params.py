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
    """Of plan_attention and plan_shared_prefixes."""


@declared_in("cuda/attention/attention.cuh")
class AttentionParams(ctypes.Structure):
    """Of decode_attention and prefill_attention."""


@declared_in("cuda/hopper.cuh")
class TensorMap(ctypes.Structure):
    """What the copy engine copies boxes by."""


class PrefillWgmmaParams(ctypes.Structure):
    """Of prefill_attention in prefill_wgmma.cu. C++ aligns it to 64 bytes, and so fills up the last of these."""

    _fields_ = (
        ("keys", TensorMap),
        ("values", TensorMap),
        ("attention", AttentionParams),
        ("_filler", ctypes.c_ubyte * (-ctypes.sizeof(AttentionParams) % 64)),
    )


@declared_in("cuda/attention/cache/write_kv.cu")
class WriteParams(ctypes.Structure):
    """Of write_kv and rotate_heads."""


@declared_in("cuda/attention/cache/copy_blocks.cu")
class CopyParams(ctypes.Structure):
    """Of copy_blocks."""


@declared_in("cuda/layers/copy_inputs.cu", "InputRows")
class InputRowsParams(ctypes.Structure):
    """Where one input's rows are, and go."""


@declared_in("cuda/layers/copy_inputs.cu")
class InputParams(ctypes.Structure):
    """Of copy_inputs."""


@declared_in("cuda/layers/norm.cu")
class NormParams(ctypes.Structure):
    """Of rms_norm and layer_norm."""


@declared_in("cuda/layers/activation.cu")
class ActivationParams(ctypes.Structure):
    """Of silu_and_mul, gelu_tanh and gelu_erf."""


@declared_in("cuda/layers/argmax.cu")
class ArgmaxParams(ctypes.Structure):
    """Of argmax_rows."""


@declared_in("cuda/collectives/all_reduce.cu")
class AllReduceParams(ctypes.Structure):
    """Of all_reduce."""


@declared_in("cuda/mixtures/mixture.cuh")
class ProductParams(ctypes.Structure):
    """Of expert_product."""


@declared_in("cuda/mixtures/mixture_route.cu")
class RouteParams(ctypes.Structure):
    """Of choose_experts."""


@declared_in("cuda/mixtures/mixture_sort.cu")
class SortParams(ctypes.Structure):
    """Of sort_pairs."""


@declared_in("cuda/mixtures/mixture_sum.cu")
class SumParams(ctypes.Structure):
    """Of sum_experts."""


@declared_in("cuda/states/state.cuh")
class StatePlace(ctypes.Structure):
    """Where a state lies."""


@declared_in("cuda/states/state_convolution.cu")
class ConvolutionParams(ctypes.Structure):
    """Of convolve."""


@declared_in("cuda/states/state_delta.cu")
class DeltaParams(ctypes.Structure):
    """Of delta_rule."""


@declared_in("cuda/states/state_mamba1.cu")
class Mamba1Params(ctypes.Structure):
    """Of scan_mamba1."""


@declared_in("cuda/states/state_mamba2.cu")
class Mamba2Params(ctypes.Structure):
    """Of scan_mamba2."""


@declared_in("cuda/states/gated_rows.cu")
class GateParams(ctypes.Structure):
    """Of gate_rows."""


@declared_in("cuda/products/quantised.cuh")
class QuantisedParams(ctypes.Structure):
    """Of quantised_product."""


@declared_in("cuda/products/quantised_widen.cu")
class WidenParams(ctypes.Structure):
    """Of widen_rows."""


@declared_in("cuda/products/float8_mma.cu")
class Float8Params(ctypes.Structure):
    """Of float8_product."""


@declared_in("cuda/products/quantise_rows.cu")
class QuantiseParams(ctypes.Structure):
    """Of quantise_rows."""


@declared_in("cuda/products/lora.cuh")
class LoraParams(ctypes.Structure):
    """Of lora_shrink and lora_expand."""


@declared_in("cuda/products/skinny_mma.cu")
class SkinnyParams(ctypes.Structure):
    """Of skinny_product."""


@declared_in("cuda/sampling/row.cuh")
class Listed(ctypes.Structure):
    """A token whose logit is changed by an amount."""


@declared_in("cuda/sampling/row.cuh", listed=ctypes.c_uint64)
class DrawRow(ctypes.Structure):
    """How one sequence's token is chosen. The address of what is listed is a number, as numpy stores it."""


@declared_in("cuda/sampling/sample.cu", draws=ctypes.c_void_p)
class SampleParams(ctypes.Structure):
    """Of sample_rows."""
