"""The part that computes each kind of mixer."""

from __future__ import annotations

from kvplan_engine.description.mixers import Attention, LatentAttention, Mixer
from kvplan_engine.models.attention_part import AttentionPart
from kvplan_engine.models.latent_part import LatentPart
from kvplan_engine.models.mixer_part import MixerPart, MixerSource
from kvplan_engine.models.part_kernels import PartKernels


def make_mixer(mixer: Mixer, source: MixerSource, kernels: PartKernels) -> MixerPart:
    """The part for ``mixer``. EngineError where the kernels lack an option of it."""
    match mixer:
        case Attention():
            return AttentionPart(mixer, source, kernels)
        case LatentAttention():
            return LatentPart(mixer, source, kernels)
    raise TypeError(f"no part computes a {type(mixer).__name__}: refuse_unknown_parts comes first")
