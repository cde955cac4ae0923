"""The parts of one layer, ready to be applied: by the decoder's loop, or all layers' by a ``CpuLayerRun``."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.description.mixers import Attention, LatentAttention, Mixer, Rope, State
from kvplan_engine.description.model import Layer
from kvplan_engine.description.parameters.model import norm_parts
from kvplan_engine.layers.norm import Norm
from kvplan_engine.models.feed_forwards import ApartMixturePart, MixturePart, MlpPart
from kvplan_engine.models.layer_end_part import LayerEndPart
from kvplan_engine.models.mixers.attention_part import AttentionPart
from kvplan_engine.models.mixers.delta_part import GatedDeltaPart, KimiDeltaPart, ShortConvPart
from kvplan_engine.models.mixers.latent_part import LatentPart
from kvplan_engine.models.mixers.mamba_part import Mamba1Part, Mamba2Part
from kvplan_engine.models.mixers.mixer_part import MixerPart, MixerSource
from kvplan_engine.models.part_kernels import PartKernels
from kvplan_engine.models.residual_stream import ResidualStream
from kvplan_engine.models.step_batch import StepSpace


def make_mixer(mixer: Mixer, source: MixerSource) -> MixerPart:
    """The part for ``mixer``. EngineError where the kernels lack an option of it."""
    match mixer:
        case Attention():
            return AttentionPart(mixer, source)
        case LatentAttention():
            return LatentPart(mixer, source)
        case State(kind="gated_delta"):
            return GatedDeltaPart(mixer, source)
        case State(kind="kimi_delta"):
            return KimiDeltaPart(mixer, source)
        case State(kind="mamba1"):
            return Mamba1Part(mixer, source)
        case State(kind="mamba2"):
            return Mamba2Part(mixer, source)
        case State(kind="short_conv"):
            return ShortConvPart(mixer, source)
    raise TypeError(f"no part computes a {type(mixer).__name__}: refuse_unknown_parts comes first")


class DecoderLayer:
    """Mixers, feed-forward and norms of layer ``index``; a norm that its family does not have is None.

    attention_norm, mlp_norm: before the mixers and before the feed-forward. attention_post_norm, mlp_post_norm: of
    their outputs. rope_tables: the workspace's tables of cosines and sines, by name.
    """

    def __init__(
        self,
        layer: Layer,
        weights: Weights,
        index: int,
        kernels: PartKernels,
        *,
        width: int,
        rope_tables: Mapping[str, Rope],
    ) -> None:
        self.description = layer
        self.mixers = _make_mixers(layer, weights, index, kernels, rope_tables)
        feed_forward = layer.feed_forward
        self.feed_forward = None if feed_forward is None else _make_feed_forward(layer, weights, index, kernels)
        self.end = None if layer.end is None else LayerEndPart(layer, weights, index, kernels)

        parts = norm_parts(layer)

        def norm(part: str) -> Norm | None:
            norms = layer.norms
            if part not in parts:
                return None
            return Norm(weights, f"layers.{index}.{part}", norms.kind, norms.eps, kernels.ops, width=width)

        self.attention_norm, self.mlp_norm = norm("attention_norm"), norm("mlp_norm")
        self.attention_post_norm, self.mlp_post_norm = norm("attention_post_norm"), norm("mlp_post_norm")
        is_plain = layer.residual_scale == 1.0
        is_first = len(self.mixers) == 1 and not layer.norms.places.startswith("parallel")
        self._adds_mixed = is_plain and is_first and self.attention_post_norm is None
        self._adds_fed = is_plain and self.mlp_post_norm is None

    def at(self, index: int) -> DecoderLayer:
        """The same layer, weights and all, with the KV of layer ``index``."""
        twin = copy(self)
        twin.mixers = tuple(mixer.at(index) for mixer in self.mixers)
        twin.end = None if self.end is None else self.end.at(index)
        return twin

    @property
    def first_norm(self) -> Norm | None:
        """Norm of the layer's input."""
        return self.attention_norm if self.mixers else self.mlp_norm

    @property
    def attention(self) -> AttentionPart | None:
        """Attention over keys and values of each KV head, where the layer has it."""
        return next((mixer for mixer in self.mixers if isinstance(mixer, AttentionPart)), None)

    def mix(self, stream: ResidualStream, step: StepSpace) -> None:
        """The mixers of ``stream.source``: the last one's output may be left in ``stream.delta``, others' are added."""
        residual = self.residual_of_mixed(stream)
        for mixer in self.mixers:
            if mixer is not self.mixers[0]:
                self._finish(stream.delta, self.attention_post_norm)
                stream.add_delta()
            if isinstance(mixer, AttentionPart):
                stream.is_added = mixer.add_or_store(stream.source, step, stream.delta, residual)
            else:
                mixer(stream.source, step, stream.delta)

    def residual_of_mixed(self, stream: ResidualStream) -> torch.Tensor | None:
        """What the mixers' output may be added to at once; None where something comes between."""
        return stream.hidden if self._adds_mixed else None

    def feed(self, stream: ResidualStream, step: StepSpace, next_norm: Norm | None) -> None:
        """What follows the mixers: their output is added, and then the feed-forward's, up to the next layer's norm."""
        if self.feed_forward is None:
            self._finish(stream.delta, self.attention_post_norm)
        else:
            if self.mixers:
                self._add_mixed(stream)
            self._run_feed_forward(stream, step)
            self._finish(stream.delta, self.mlp_post_norm)
        if self.end is None:
            _add(stream, next_norm)
        else:
            stream.add_delta()
            self.end(stream, step.workspace)
            _normalise(stream, next_norm)

    def _run_feed_forward(self, stream: ResidualStream, step: StepSpace) -> None:
        if isinstance(self.feed_forward, ApartMixturePart):
            self.feed_forward(stream, step)
        elif isinstance(self.feed_forward, MlpPart):
            residual = stream.hidden if self._adds_fed else None
            stream.is_added = self.feed_forward(stream.source, step, stream.delta, residual)
        elif self.feed_forward is not None:
            self.feed_forward(stream.source, step, stream.delta)

    def _add_mixed(self, stream: ResidualStream) -> None:
        """The mixers' output is added, and the feed-forward's norm applied."""
        self._finish(stream.delta, self.attention_post_norm)
        if not self.description.norms.places.startswith("parallel"):
            _add(stream, self.mlp_norm)
            return
        if self.mlp_norm is not None:
            self.mlp_norm(stream.hidden, stream.normed)
        stream.add_delta()
        stream.source = stream.normed

    def _finish(self, delta: torch.Tensor, post_norm: Norm | None) -> None:
        """What becomes of a block's output before it is added to the residual stream, in place."""
        if post_norm is not None:
            post_norm(delta, delta)
        if self.description.residual_scale != 1.0:
            delta.mul_(self.description.residual_scale)


def _make_mixers(
    layer: Layer, weights: Weights, index: int, kernels: PartKernels, rope_tables: Mapping[str, Rope]
) -> tuple[MixerPart, ...]:
    names = (f"layers.{index}", f"layers.{index}.second")
    return tuple(
        make_mixer(mixer, MixerSource(weights, kernels, index, name, layer.norms, _table_of(mixer, rope_tables)))
        for mixer, name in zip(layer.mixers, names, strict=False)
    )


def _table_of(mixer: Mixer, tables: Mapping[str, Rope]) -> str | None:
    """The name of the table that ``mixer`` turns by."""
    rope = getattr(mixer, "rope", None)
    return None if rope is None else next(name for name, table in tables.items() if rope.same_table(table))


def _make_feed_forward(
    layer: Layer, weights: Weights, index: int, kernels: PartKernels
) -> MlpPart | MixturePart | ApartMixturePart:
    match layer.feed_forward:
        case Mlp() as mlp:
            return MlpPart(mlp, weights, index, kernels)
        case Mixture(apart=True) as mixture:
            return ApartMixturePart(mixture, layer.norms, weights, index, kernels)
        case Mixture() as mixture:
            return MixturePart(mixture, weights, index, kernels)
    raise TypeError(f"no part computes a {type(layer.feed_forward).__name__}")


def _add(stream: ResidualStream, norm: Norm | None) -> None:
    """``hidden += delta``, and ``norm`` of it into ``normed``."""
    if norm is None or stream.is_added:
        stream.add_delta()
        _normalise(stream, norm)
    else:
        norm.after_adding(stream.delta, stream.hidden, stream.normed)
        stream.source = stream.normed


def _normalise(stream: ResidualStream, norm: Norm | None) -> None:
    """The next block's source, of ``hidden`` as it is."""
    stream.source = stream.hidden
    if norm is not None:
        norm(stream.hidden, stream.normed)
        stream.source = stream.normed
