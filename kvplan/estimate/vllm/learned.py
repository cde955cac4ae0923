"""A prediction that keeps what a start-up of the same model on the same GPU showed, for other settings of the two.

What a log has apart is kept where the new settings leave it as it was: weights and what is outside torch with the same
parallel sizes, the activations' peak with the same batch settings, CUDA graphs with the same rows. What all of them do
not explain of the logged pool is kept, too. Nothing is kept for another GPU or other parallel sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.caveats import Caveat
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.vllm.activation import ActivationPeak
from kvplan.estimate.vllm.prediction import VllmPrediction, fill_pool, predict_vllm
from kvplan.estimate.vllm.ranges import Cause
from kvplan.settings import FilledSettings, ServingSettings
from kvplan.units import GIB

_LOADED: Final = ("dtype", "num_speculative_tokens", "language_model_only", "enable_lora", "max_loras", "max_lora_rank")
_BATCH: Final = ("max_num_batched_tokens", "max_num_seqs", "dtype", "num_speculative_tokens", "language_model_only")
_CAPTURED: Final = ("max_num_seqs", "num_speculative_tokens", "enforce_eager")


@dataclass(frozen=True, slots=True)
class LearnedStart:
    """Bytes of one rank that a start-up took more than is predicted of it; None where its log does not tell them apart.

    ``rest_bytes``: what the pool had less, beyond those. ``settings``: those it ran with.
    """

    gpu_id: str
    version: str
    settings: FilledSettings
    device_memory_bytes: int | None
    weight_bytes: int | None
    non_torch_bytes: int | None
    activation_bytes: int | None
    graph_bytes: int | None
    rest_bytes: int


class LearnedPrediction(NamedTuple):
    """The prediction with what was kept, and sentences that say what that was."""

    prediction: VllmPrediction
    notes: tuple[str, ...]
    explained: frozenset[Cause] = frozenset()
    """Causes of an interval that the log leaves nothing of."""


_SHOWN: Final[dict[str, tuple[Cause, ...]]] = {
    "weights": ("plain weights", "quantized weights", "exact weights"),
    "activations": ("activations", "encoder"),
    "CUDA graphs": ("CUDA graphs",),
    "what it does not tell apart": (
        "GPU and release",
        "kind of deployment",
        "several GPUs",
        "unified memory",
        "newer releases",
    ),
}
"""Causes of an interval that each figure of a log shows. What is outside torch stays: it differs between starts."""


class _Kept(NamedTuple):
    """One figure of the log: what it is called, its bytes, and the settings that must be alike."""

    name: str
    num_bytes: int | None
    alike: tuple[str, ...]


def predict_as_learned(
    learned: LearnedStart, spec: ModelSpec, gpu: GpuProfile, settings: ServingSettings, version: str
) -> LearnedPrediction:
    """Predict as ``predict_vllm``, with what ``learned`` showed as far as it holds for ``settings``."""
    asked = settings
    if settings.device_memory_bytes is None and gpu.id == learned.gpu_id:
        asked = replace(settings, device_memory_bytes=learned.device_memory_bytes)
    found = predict_vllm(spec, gpu, asked, version)
    filled = found.settings.serving
    if gpu.id != learned.gpu_id or ParallelLayout.of(filled) != ParallelLayout.of(learned.settings):
        nothing = Caveat("Nothing of the log is kept: it is of another GPU or other parallel sizes.")
        return LearnedPrediction(found, (nothing,))
    figures = (
        _Kept("weights", learned.weight_bytes, _LOADED),
        _Kept("outside torch", learned.non_torch_bytes, ()),
        _Kept("activations", learned.activation_bytes, _BATCH),
        _Kept("CUDA graphs", learned.graph_bytes, _CAPTURED),
        _Kept("what it does not tell apart", learned.rest_bytes, ()),
    )
    kept = {each.name: each.num_bytes or 0 for each in figures if _holds(each, filled, learned.settings)}
    rank = found.rank
    peak = rank.activation.peak_bytes + kept.get("activations", 0)
    rank = replace(
        rank,
        weight_bytes=rank.weight_bytes + kept.get("weights", 0),
        non_torch_bytes=rank.non_torch_bytes + kept["outside torch"] + kept["what it does not tell apart"],
        activation=ActivationPeak(0, max(peak, 0), 0, rank.activation.decided_by),
        subtracted_graph_bytes=rank.subtracted_graph_bytes + kept.get("CUDA graphs", 0),
    )
    adjusted = fill_pool(rank, rank.available_kv_bytes, found.settings, vllm_release(version))
    explained = (
        frozenset(cause for name in kept for cause in _SHOWN.get(name, ()))
        if found.version == learned.version
        else frozenset()
    )
    notes = map(Caveat, _notes(figures, kept, learned, filled, found.version))
    return LearnedPrediction(adjusted, tuple(notes), explained)


def _holds(figure: _Kept, asked: FilledSettings, logged: FilledSettings) -> bool:
    return all(getattr(asked, name) == getattr(logged, name) for name in figure.alike)


def _notes(
    figures: tuple[_Kept, ...], kept: dict[str, int], learned: LearnedStart, asked: FilledSettings, version: str
) -> Iterator[str]:
    """What is kept, and what is not."""
    said = [
        f"{each.name} {each.num_bytes / GIB:+.2f} GiB"
        for each in figures
        if each.name in kept and each.num_bytes is not None
    ]
    yield f"Kept of the log, against what is predicted of it: {', '.join(said)}."
    lost = [each.name for each in figures if each.name not in kept and each.num_bytes is not None]
    if lost:
        yield f"Not kept, as settings that decide it differ: {', '.join(lost)}."
    is_same_batch = all(getattr(asked, name) == getattr(learned.settings, name) for name in _BATCH)
    if learned.activation_bytes is None and not is_same_batch:
        yield "The log does not tell activations apart: with other batch settings they may take more or less."
    if version != learned.version:
        yield f"The log is of vLLM {learned.version}."
