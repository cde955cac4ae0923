"""Formats of weights and KV cache a plan may choose: as published, and others with what they need and may cost."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.catalog.devices.device_support import check_formats, check_release
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import UsageError
from kvplan.estimate.dtypes import head_scale_bytes, serving_dtype
from kvplan.estimate.vllm.cache_dtypes import cache_of_checkpoint
from kvplan.estimate.weights import NAMED_FORMATS, check_group_size, named_format
from kvplan.settings import ServingSettings, own_group_size

PUBLISHED = "published"
FORMAT_NAMES = (PUBLISHED, *NAMED_FORMATS)


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """One way to store the weights. ``name``: what the table says; ``spec``: the model stored so.

    ``is_made_while_loading``: by the engine, from the published ones; any other but these needs a checkpoint.
    """

    name: str
    spec: ModelSpec
    is_published: bool
    is_made_while_loading: bool = False


def weight_formats(
    spec: ModelSpec, wanted: tuple[str, ...] | None, dtype: str = "auto", group_size: int | None = None
) -> tuple[WeightFormat, ...]:
    """The formats to try: those asked for; else only the published one, which changes no answer of the model.

    A model that is published quantized has another format only in another checkpoint: vLLM refuses to load it in any
    but its own (vllm/config/model.py, _verify_quantization). group_size: of those that may have another than the usual.
    """
    names = tuple(dict.fromkeys(wanted or (PUBLISHED,)))
    check_group_size(names, group_size)
    return tuple({each.name: each for each in (_format(spec, name, dtype, group_size) for name in names)}.values())


def _format(spec: ModelSpec, name: str, dtype: str, group_size: int | None) -> WeightFormat:
    own = spec.quantization
    is_own = own is not None and name == own.method and group_size in (None, own.group_size)
    if name == PUBLISHED or is_own:
        return WeightFormat(serving_dtype(spec.dtype, dtype) if own is None else own.method, spec, True)
    if name not in NAMED_FORMATS:
        raise UsageError(f"Unknown --quantization '{name}'.", hint="one of " + ", ".join(FORMAT_NAMES))
    stored = replace(spec, quantization=named_format(name, own_group_size(name, group_size)), checkpoint=None)
    return WeightFormat(name, stored, False, is_made_while_loading=own is None and name == "fp8")


TRIED_WEIGHTS = (PUBLISHED, "fp8", "awq")
TRIED_KV_CACHES = ("auto", "fp8")
"""What is tried where nothing is asked for: formats that most GPUs have kernels for and most models checkpoints in."""


@dataclass(frozen=True, slots=True)
class FormatPair:
    """Weights and KV cache together."""

    weights: WeightFormat
    kv_cache_dtype: str

    @property
    def is_unchanged(self) -> bool:
        """Whether the model answers as it was published."""
        return self.weights.is_published and self.kv_cache_dtype == "auto"

    def caveats(self) -> tuple[str, ...]:
        """What this needs, and what it may cost in quality."""
        found = [] if self.weights.is_published else [_WEIGHT_CAVEATS.get(self.weights.name, _OTHER_WEIGHTS)]
        if self.kv_cache_dtype == "auto":
            return tuple(found)
        return (*found, _SCALED_KV_CAVEAT if head_scale_bytes(self.kv_cache_dtype) else _KV_CAVEAT)


_STUDY = "Kurtic et al. 2024, arXiv:2411.02355"
_WEIGHT_CAVEATS = {
    "fp8": "fp8 weights: vLLM makes them while loading, or take an fp8 checkpoint; found lossless for Llama 3.1 when "
    f"activations are 8-bit too ({_STUDY}).",
    "int8": f"int8 weights: need a calibrated checkpoint; 1 to 3 % lower scores for Llama 3.1 ({_STUDY}).",
    "awq": f"awq weights: need a 4-bit checkpoint; scores of 4-bit weights came near those of int8 ({_STUDY}), but "
    "differ by model and task: try yours.",
}
_OTHER_WEIGHTS = "These weights need a checkpoint in that format; try it on your task."
_KV_CAVEAT = (
    "fp8 KV cache: without scales in the checkpoint vLLM scales by 1.0; compare the answers on your task, "
    "long ones first."
)
_SCALED_KV_CAVEAT = (
    "int8 KV cache: a scale for each token and head, made while serving; compare the answers on your task, long ones "
    "first. vLLM reads it with Triton's attention alone, whose speed is not measured here."
)


def format_pairs(
    spec: ModelSpec,
    weights: tuple[str, ...] | None,
    kv_caches: tuple[str, ...] | None,
    settings: ServingSettings,
    release: VllmRelease,
) -> tuple[FormatPair, ...]:
    """Everything to try: what is asked for, and the usual formats where nothing is."""
    asked = weights or (TRIED_WEIGHTS if spec.quantization is None else None)
    return tuple(
        FormatPair(each, kv_cache)
        for each in weight_formats(spec, asked, settings.dtype, settings.group_size)
        for kv_cache in kv_caches or _tried_kv_caches(each, release)
    )


def _tried_kv_caches(weights: WeightFormat, release: VllmRelease) -> tuple[str, ...]:
    """List the formats without what the published one is already."""
    stated = cache_of_checkpoint(weights.spec, ServingSettings(), release)
    return TRIED_KV_CACHES if stated is None else TRIED_KV_CACHES[:1]


def check_kernels(formats: FormatPair, gpu: GpuProfile, version: str) -> None:
    """UsageError where vLLM ``version`` has no kernels for these formats on ``gpu``."""
    check_release(gpu, version)
    if gpu.vendor == "nvidia":
        check_formats(gpu, formats.weights.spec, formats.kv_cache_dtype, version=version)
        return
    needs_eight_bit = formats.kv_cache_dtype.startswith("fp8") or formats.weights.name.startswith("fp8")
    if gpu.is_cpu and not formats.is_unchanged:
        raise UsageError(f"{gpu.id} is planned in the published formats only.", hint="leave the formats out")
    if needs_eight_bit and "fp8" not in gpu.dense_flops:
        raise UsageError(f"{gpu.id} has no 8-bit floats.", hint="leave fp8 out, or use other GPUs")
