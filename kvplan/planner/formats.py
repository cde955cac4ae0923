"""Weight formats a plan may choose: as published, and the ones that engines or common tools make from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.catalog.gpus import GpuProfile
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import UsageError
from kvplan.estimate.dtypes import serving_dtype
from kvplan.estimate.weights import NAMED_FORMATS

PUBLISHED = "published"
FORMAT_NAMES = (PUBLISHED, *NAMED_FORMATS)
_FP8_KERNELS_FROM = 8.0


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """One way to store the weights. ``name``: what the table says; ``spec``: the model stored so."""

    name: str
    spec: ModelSpec
    is_published: bool


def weight_formats(spec: ModelSpec, wanted: tuple[str, ...] | None, dtype: str = "auto") -> tuple[WeightFormat, ...]:
    """The formats to try: those asked for; else only the published one, which changes no answer of the model.

    A model that is published quantized stays as it is.
    """
    published = spec.quantization.method if spec.quantization else serving_dtype(spec.dtype, dtype)
    formats = [WeightFormat(published, spec, True)]
    for name in wanted or (PUBLISHED,):
        if name == PUBLISHED:
            continue
        if name not in NAMED_FORMATS:
            raise UsageError(f"Unknown --quantization '{name}'.", hint="one of " + ", ".join(FORMAT_NAMES))
        if spec.quantization is None:
            formats.append(WeightFormat(name, replace(spec, quantization=NAMED_FORMATS[name]), False))
    if wanted and PUBLISHED not in wanted and len(formats) > 1:
        formats = formats[1:]
    return tuple(formats)


def runs_on(weights: WeightFormat, kv_cache_dtype: str, gpu: GpuProfile) -> bool:
    """Whether engines have kernels for these formats there: 8-bit floats need Ampere or later, bfloat16 too."""
    if gpu.vendor != "nvidia":
        return not gpu.is_cpu or (weights.is_published and kv_cache_dtype == "auto")
    capability = float(gpu.compute_capability)
    needs_eight_bit = kv_cache_dtype.startswith("fp8") or weights.name.startswith("fp8")
    return capability >= _FP8_KERNELS_FROM or not needs_eight_bit
