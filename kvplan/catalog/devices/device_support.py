"""What vLLM refuses on older NVIDIA GPUs: dtypes and formats by compute capability, as its checks at the start.

Read in vllm/platforms/cuda.py (supported_dtypes), vllm/config/model.py (_resolve_auto_dtype,
_FLOAT16_NOT_SUPPORTED_MODELS), and get_min_capability in vllm/model_executor/layers/quantization/*.py.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import last_release_with_kernels, vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.caveats import Caveat
from kvplan.errors import UsageError

_BFLOAT16_FROM: Final = (8, 0)
_EIGHT_BIT_CACHE_FROM: Final = (8, 0)
"""The oldest GPUs with attention kernels that read an 8-bit cache (FlashInfer's)."""
_WITHOUT_FLOAT16: Final = frozenset(("gemma2", "gemma3", "gemma3_text", "plamo2", "glm4"))
"""``model_type`` of models that overflow in float16: vLLM serves them in float32 where there is no bfloat16."""
_FORMATS_FROM: Final[dict[str, tuple[int, int]]] = {
    "awq": (7, 5),
    "fp8": (7, 5),
    "nvfp4": (7, 5),
    "fbgemm_fp8": (8, 0),
    "modelopt": (8, 0),
    "mxfp4": (8, 0),
}
"""Weight formats and the oldest compute capability that any release takes them on; others run everywhere."""


def capability_of(gpu: GpuProfile) -> tuple[int, int] | None:
    """(9, 0) for an NVIDIA profile that says "9.0"; None for other vendors."""
    return _numbers(gpu.compute_capability) if gpu.vendor == "nvidia" else None


@cache
def _numbers(capability: str) -> tuple[int, int] | None:
    major, _, minor = capability.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def compute_capability(gpu: GpuProfile) -> tuple[int, int]:
    """Return what ``capability_of`` does, with (0, 0) for other vendors."""
    return capability_of(gpu) or (0, 0)


def dtype_on(gpu: GpuProfile, spec: ModelSpec, dtype: str, *, asked: str, version: str) -> str:
    """What vLLM ``version`` serves ``spec`` in on ``gpu`` where ``dtype`` is what ``--dtype`` ``asked`` comes to.

    GPUs before Ampere have no bfloat16: UsageError where it was asked for, or where the release does not fall back.
    """
    capability = capability_of(gpu)
    if capability is None or capability >= _BFLOAT16_FROM or dtype != "bfloat16":
        return dtype
    if asked != "auto" or not vllm_release(version).falls_back_to_float16:
        raise UsageError(
            f"vLLM refuses bfloat16 on {gpu.id}: it needs compute capability 8.0, and {gpu.id} has "
            f"{gpu.compute_capability}.",
            hint="use --dtype half",
        )
    return "float32" if spec.model_type in _WITHOUT_FLOAT16 else "float16"


def fallback_note(gpu: GpuProfile, dtype: str) -> str:
    """Why ``gpu`` is sized in ``dtype``."""
    reason = " and this model overflows in float16" if dtype == "float32" else ""
    return Caveat(f"{gpu.id} has no bfloat16{reason}: vLLM serves in {dtype} there.")


def check_formats(gpu: GpuProfile, spec: ModelSpec, kv_cache_dtype: str, *, version: str) -> None:
    """UsageError where vLLM ``version`` has no kernels on ``gpu`` for the weights of ``spec`` or for the KV cache."""
    capability = capability_of(gpu)
    if capability is None:
        return
    if not attends_on(gpu, spec, version=version):
        engine = f"vLLM {vllm_release(version).text}"
        raise UsageError(
            f"{engine} has no kernel for the sparse latent attention of {spec.served_id} on {gpu.id}.",
            hint="use Hopper, Blackwell or AMD's GPUs",
        )
    method = spec.quantization.method if spec.quantization else ""
    needed = _FORMATS_FROM.get(method, (0, 0))
    if method == "fp8" and not vllm_release(version).fp8_on_turing:
        needed = (8, 0)
    if capability < needed:
        raise _unsupported(gpu, f"{method} weights", needed, "use --quantization gptq, bitsandbytes or none")
    if kv_cache_dtype.startswith("fp8") and capability < _EIGHT_BIT_CACHE_FROM:
        raise _unsupported(gpu, f"a KV cache in {kv_cache_dtype}", _EIGHT_BIT_CACHE_FROM, "use --kv-cache-dtype auto")


def missing_kernels_note(gpu: GpuProfile, version: str) -> str | None:
    """Why vLLM ``version`` as it is published does not run on ``gpu``, and what does; None where it does."""
    release, capability = vllm_release(version), capability_of(gpu)
    if capability is None or capability >= release.oldest_capability:
        return None
    least = ".".join(map(str, release.oldest_capability))
    return Caveat(
        f"vLLM {release.text} does not run on {gpu.id}: its wheels and images hold kernels from compute capability "
        f"{least} on, and {gpu.id} has {gpu.compute_capability}."
    )


def last_release_hint(gpu: GpuProfile) -> str:
    """The way out: the last release with kernels, or other GPUs."""
    last = last_release_with_kernels(compute_capability(gpu))
    return (
        "use other GPUs" if last is None else f"vLLM {last} is the last one with kernels for it: --engine vllm@{last}"
    )


def check_release(gpu: GpuProfile, version: str) -> None:
    """UsageError where vLLM ``version`` as it is published does not run on ``gpu``."""
    note = missing_kernels_note(gpu, version)
    if note is not None:
        raise UsageError(note, hint=last_release_hint(gpu))


def attends_on(gpu: GpuProfile, spec: ModelSpec, *, version: str) -> bool:
    """Whether vLLM ``version`` has kernels on ``gpu`` for the attention of ``spec``: sparse latents are for some."""
    capability = capability_of(gpu)
    if capability is None or not spec.has_indexer:
        return True
    return capability[0] in vllm_release(version).sparse_latents_on


def _unsupported(gpu: GpuProfile, what: str, needed: tuple[int, int], hint: str) -> UsageError:
    least = f"{needed[0]}.{needed[1]}"
    return UsageError(
        f"vLLM has no kernels for {what} on {gpu.id}: they need compute capability {least}, and {gpu.id} has "
        f"{gpu.compute_capability}.",
        hint=hint,
    )
