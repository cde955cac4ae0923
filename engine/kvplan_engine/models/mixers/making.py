"""The part that computes each kind of mixer."""

from __future__ import annotations

from kvplan_engine.description.mixers import Attention, LatentAttention, Mixer, State
from kvplan_engine.models.mixers.attention_part import AttentionPart
from kvplan_engine.models.mixers.delta_part import GatedDeltaPart, KimiDeltaPart
from kvplan_engine.models.mixers.latent_part import LatentPart
from kvplan_engine.models.mixers.mamba1_part import Mamba1Part
from kvplan_engine.models.mixers.mamba2_part import Mamba2Part
from kvplan_engine.models.mixers.mixer_part import MixerPart, MixerSource
from kvplan_engine.models.mixers.short_conv_part import ShortConvPart
from kvplan_engine.models.part_kernels import PartKernels


def make_mixer(mixer: Mixer, source: MixerSource, kernels: PartKernels) -> MixerPart:
    """The part for ``mixer``. EngineError where the kernels lack an option of it."""
    match mixer:
        case Attention():
            return AttentionPart(mixer, source, kernels)
        case LatentAttention():
            return LatentPart(mixer, source, kernels)
        case State(kind="gated_delta"):
            return GatedDeltaPart(mixer, source, kernels)
        case State(kind="kimi_delta"):
            return KimiDeltaPart(mixer, source, kernels)
        case State(kind="mamba1"):
            return Mamba1Part(mixer, source, kernels)
        case State(kind="mamba2"):
            return Mamba2Part(mixer, source, kernels)
        case State(kind="short_conv"):
            return ShortConvPart(mixer, source, kernels)
    raise TypeError(f"no part computes a {type(mixer).__name__}: refuse_unknown_parts comes first")
