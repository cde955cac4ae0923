"""The bytes of weights in few bits as formulas for people (``estimate --explain``)."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.catalog.spec import ModelSpec, QuantizationSpec
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.kvplan.held_weights import most_held
from kvplan.estimate.placed.placement import SizedDeployment
from kvplan.estimate.weights import format_label

_SHARING = {"channel": "output", "tensor": "matrix"}


def storage_formulas(spec: ModelSpec) -> Iterator[str]:
    """How a checkpoint stores each of its formats of few bits; nothing where all weights are plain, or were read."""
    if spec.quantization is None or spec.checkpoint is not None:
        return
    for each in spec.quantization.formats:
        yield f"{format_label(each)}: {_stored(each)}"


def _stored(quantization: QuantizationSpec) -> str:
    scale = f"{8 * element_bytes(quantization.scale_dtype)}-bit scale"
    if quantization.has_zero_points:
        scale += f" and {quantization.bits:g}-bit zero point"
    order = ", 32 bit for each input's group" if quantization.has_act_order else ""
    return f"{quantization.bits:g} bit a weight, {scale} for each {_shared(quantization)}{order}"


def _shared(quantization: QuantizationSpec) -> str:
    if quantization.granularity == "group":
        return f"{quantization.group_size} weights of an output"
    if quantization.granularity == "block" and quantization.block_shape:
        return "tile of {} x {}".format(*quantization.block_shape)
    return _SHARING[quantization.granularity]


def held_formula(spec: ModelSpec, deployment: SizedDeployment) -> str | None:
    """How kvplan's engine holds the weights that it keeps in few bits; None where it keeps none, or another serves."""
    settings = deployment.settings
    found = None if deployment.engine != "kvplan" else most_held(spec, settings.quantization)
    if found is None:
        return None
    scale = "8-bit" if found.scale_bytes == 1 else "float32"
    sides = f"{scale} scale and minimum" if found.has_minimums else f"{scale} scale"
    order = ", 32 bit for each input" if found.has_order else ""
    return (
        f"in kvplan's engine: matrices of attention, MLPs and experts {found.bits} bit a weight, {sides} for each "
        f"{found.group} weights of an output{order}; everything else in {settings.dtype}"
    )
