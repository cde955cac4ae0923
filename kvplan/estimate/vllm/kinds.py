"""Kinds of deployments: what a start-up must share with another for the other to say something about it.

A prediction is only as sure as the start-ups that it was compared with. Each aspect below was wrong at least once for
deployments of a kind that nobody had compared: their memory or their layout of blocks came from other code in vLLM.
``profiles/errors/startups.json`` counts the start-ups of each kind (``kvplan.catalog.startup_errors``).
"""

from __future__ import annotations

from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import VllmRelease, vllm_release
from kvplan.catalog.spec import ModelSpec, SoftmaxAttention
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.vllm.encoders import ENCODERS
from kvplan.estimate.vllm.prediction import VllmPrediction
from kvplan.estimate.vllm.vision import has_uncounted_encoder
from kvplan.estimate.vllm.weights import stored_formats

_QUANTIZED_CACHES: Final = ("fp8", "int8", "nvfp4")

Kinds = dict[str, str]
"""Aspect of a deployment -> which kind it is, in words that can stand after "start-ups with"."""


UNIFIED: Final = "unified memory"
PLACE: Final = frozenset({"GPU", "release"})
"""Aspects that decide what is taken beside the model: driver, libraries, kernels and what the release measures."""

_FIRST_ENGINE: Final = "vLLM's first engine"
_BEFORE_GRAPHS: Final = "vLLM 0.8 to 0.20"
OLDER: Final = frozenset({_FIRST_ENGINE, _BEFORE_GRAPHS})
"""Ages of vLLM whose budget has no estimate of the CUDA graphs."""

_PLAIN: Final = {
    "weights": "16-bit weights",
    "attention": "full attention",
    "feed forward": "no experts",
    "inputs": "text alone",
    "drafter": "no drafter",
    "KV cache": "a KV cache in the model's dtype",
}
"""What most deployments that vLLM's own tests run are like: its profile run meets one kernel of each sort."""

LAYOUT: Final = ("attention", "KV cache", "drafter")
"""Aspects that decide, with the release, how many tokens a byte of the pool holds."""


def deployment_kinds(spec: ModelSpec, gpu: GpuProfile, predicted: VllmPrediction) -> Kinds:
    """Return the kind of a deployment in every aspect; ``predicted`` is its prediction on ``gpu``."""
    settings, release = predicted.settings.serving, vllm_release(predicted.version)
    return {
        "GPU": UNIFIED if gpu.unified_memory else gpu.architecture,
        "release": _era(release),
        "weights": _weights(spec, settings.quantization),
        "attention": _attention(spec),
        "feed forward": "experts" if spec.is_mixture else "no experts",
        "inputs": _inputs(spec, predicted, release),
        "drafter": _drafter(predicted, spec),
        "parallel": _parallel(spec, ParallelLayout.of(settings)),
        "KV cache": _cache(settings.kv_cache_dtype),
    }


def is_plain(kinds: Kinds) -> bool:
    """Return whether a deployment is of a dense model of text in 16 bits, with no drafter."""
    return _PLAIN.items() <= kinds.items()


def _era(release: VllmRelease) -> str:
    """The releases that lay out and measure memory alike, by the facts that changed it."""
    if not release.v1:
        return _FIRST_ENGINE
    if not release.graphs_in_budget:
        return _BEFORE_GRAPHS
    return "the second runner's state in the budget" if release.counts_runner_state else "graphs in the budget"


def _weights(spec: ModelSpec, requested: str) -> str:
    stored = stored_formats(spec, requested).quantization
    return "16-bit weights" if stored is None else f"{stored.method} weights"


def _attention(spec: ModelSpec) -> str:
    if spec.is_compressed:
        return "compressed attention"
    if spec.has_state:
        return "recurrent states"
    if spec.is_latent:
        return "sparse latent attention" if spec.has_indexer else "latent attention"
    windows = {layer.mixer.window_kind for layer in spec.layers if isinstance(layer.mixer, SoftmaxAttention)}
    return "full attention" if windows <= {"full"} else "windows"


def _inputs(spec: ModelSpec, predicted: VllmPrediction, release: VllmRelease) -> str:
    settings, second_runner = predicted.settings.serving, predicted.settings.second_runner
    towers = {extra.kind for extra in spec.extras} & ENCODERS
    if settings.language_model_only or not towers:
        return "text alone"
    if has_uncounted_encoder(spec, settings, release, second_runner=second_runner):
        return "an encoder whose peak is not counted"
    return f"{'and'.join(sorted(towers))} inputs"


def _cache(kv_cache_dtype: str) -> str:
    return "a quantized KV cache" if kv_cache_dtype.startswith(_QUANTIZED_CACHES) else "a KV cache in the model's dtype"


def _drafter(predicted: VllmPrediction, spec: ModelSpec) -> str:
    """``ngram`` and ``suffix`` load nothing, and have no pass of their own."""
    drafter = spec.drafter
    if drafter is not None and drafter.method in ("ngram", "suffix"):
        return "no drafter"
    if drafter is not None and drafter.model is not None and drafter.method != "mtp":
        return "a draft model"
    return "multi-token prediction" if predicted.settings.serving.num_speculative_tokens else "no drafter"


def _parallel(spec: ModelSpec, layout: ParallelLayout) -> str:
    """Data-parallel groups that exchange no tokens start like single engines."""
    if layout.pipeline_parallel_size > 1:
        return "pipeline stages"
    if layout.exchanges_tokens and spec.is_mixture:
        return "data-parallel experts"
    return "tensor parallelism" if layout.tensor_parallel_size > 1 else "one GPU"
