"""How long one step of an engine takes: a roofline with overheads, in a few coefficients that have a physical meaning.

    seconds = overhead per step + per layer x layers + per sequence x sequences
            + join(weight and activation bytes / bandwidth, operations / flops)      for the layers and for the head
            + K and V bytes read / KV bandwidth + operations of attention / attention flops

``join(a, b) = (a^s + b^s)^(1/s)`` with the sharpness s: 1 where bytes are fetched and multiplied one after the other
(what small matrices on a CPU show), large where one hides behind the other (the roofline's maximum).

The operations of the layers are those of the rows that a product works on: the step's tokens, or the next multiple of
the row step (``padded_rows``). The bandwidths and speeds are what is reached, not what the data sheet says: they belong
to a device and an engine, not to a model, so coefficients found with one model predict another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from kvplan.catalog.spec import (
    DenseFeedForward,
    FeedForward,
    LayerSpec,
    ModelSpec,
    MoeFeedForward,
)
from kvplan.errors import unhandled_kind
from kvplan.estimate.mixers import merged_spans

# A norm, the residual, qkv, attention's output and two deltas are written and read again: about so many hidden vectors.
_HIDDEN_VECTORS: Final = 16
_WHOLE_VECTORS: Final = 12
"""Those of them that every rank has whole: norms, the residual and deltas; qkv and attention's output are divided."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What a device reaches with an engine. Seconds, bytes per second, operations per second."""

    step_seconds: float
    layer_seconds: float
    sequence_seconds: float
    bandwidth: float
    flops: float
    kv_bandwidth: float
    attention_flops: float
    sharpness: float = 1.0
    row_step: float = 1.0

    def as_json(self) -> dict[str, float]:
        return asdict(self)

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> Speed:
        """The coefficients of a measured profile, which catalog.measured has checked."""
        return Speed(**{each.name: float(record[each.name]) for each in fields(Speed)})


SPEED_UNITS: Final[dict[str, str]] = {
    "step_seconds": "s per step",
    "layer_seconds": "s per step and layer",
    "sequence_seconds": "s per step and sequence",
    "bandwidth": "B/s",
    "flops": "operations/s",
    "kv_bandwidth": "B/s",
    "attention_flops": "operations/s",
    "sharpness": "",
    "row_step": "tokens",
}


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a model asks of one step, on one rank.

    body_parameters meet every token, head_parameters every token that is sampled from; their bytes are read once a
    step. attention_width: multiply-adds per new token and token before it, summed over layers, windows left open.
    """

    num_layers: int
    body_parameters: float
    head_parameters: float
    body_bytes: float
    head_bytes: float
    kv_bytes_per_token: float
    attention_width: float
    activation_bytes_per_token: float


def step_shape(spec: ModelSpec, *, element_bytes: float, kv_bytes_per_token: float) -> StepShape:
    """The shape of a model whose weights and activations take ``element_bytes`` each. Embeddings are only looked up."""
    head = spec.vocab_size * spec.hidden_size
    looked_up = head if spec.tie_word_embeddings else 2 * head
    body = max(spec.num_active_parameters - looked_up, 0) + spec.repeated_elements
    return StepShape(
        num_layers=spec.num_layers,
        body_parameters=body,
        head_parameters=head,
        body_bytes=body * element_bytes,
        head_bytes=head * element_bytes,
        kv_bytes_per_token=kv_bytes_per_token,
        attention_width=sum(span.width_per_token for span in merged_spans(spec.layers)),
        activation_bytes_per_token=element_bytes * sum(_activations(spec, layer) for layer in spec.layers),
    )


def _activations(spec: ModelSpec, layer: LayerSpec) -> int:
    """Elements written and read again per token: the hidden vectors, and the feed-forward's inner ones."""
    return _HIDDEN_VECTORS * spec.hidden_size + _inner_activations(layer.feed_forward)


def whole_activation_bytes(spec: ModelSpec, bytes_each: float) -> float:
    """Return the bytes of activations per token, all layers together, that tensor parallelism does not divide."""
    return bytes_each * _WHOLE_VECTORS * spec.hidden_size * spec.num_layers


def _inner_activations(part: FeedForward | None) -> int:
    if part is None:
        return 0
    if isinstance(part, DenseFeedForward):
        return part.intermediate_size * (5 if part.gated else 4)
    if isinstance(part, MoeFeedForward):
        width = part.experts_per_token * part.expert_intermediate_size + part.shared_intermediate_size
        return width * (5 if part.gated else 4)
    raise unhandled_kind(part, "_inner_activations")


def padded_rows(num_tokens: float, row_step: float) -> float:
    """Rows that are multiplied: whole steps up to eight of them, whole eights of steps beyond; 1 rounds nothing.

    Libraries that compile a kernel for every number of rows (oneDNN) are given few numbers to meet.
    """
    if row_step <= 1:
        return num_tokens
    step = row_step if num_tokens <= 8 * row_step else 8 * row_step
    return math.ceil(num_tokens / step) * step


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A model on a device: the clock of a simulation. ``scale`` multiplies every step."""

    shape: StepShape
    speed: Speed
    scale: float = 1.0

    def scaled(self, factor: float) -> StepTimes:
        return replace(self, scale=self.scale * factor)

    def seconds(
        self, num_tokens: float, num_sequences: float, num_sampled: float, num_kv_tokens: float, num_pairs: float
    ) -> float:
        """One step, see ``batching.StepClock``; fractions are means over steps."""
        shape, speed = self.shape, self.speed
        rows = padded_rows(num_tokens, speed.row_step)
        body_bytes = shape.body_bytes + num_tokens * shape.activation_bytes_per_token
        seconds = speed.step_seconds + speed.layer_seconds * shape.num_layers + speed.sequence_seconds * num_sequences
        seconds += self._join(body_bytes / speed.bandwidth, 2 * shape.body_parameters * rows / speed.flops)
        if num_sampled:
            operations = 2 * shape.head_parameters * num_sampled
            seconds += self._join(shape.head_bytes / speed.bandwidth, operations / speed.flops)
        seconds += num_kv_tokens * shape.kv_bytes_per_token / speed.kv_bandwidth
        seconds += 2 * num_pairs * shape.attention_width / speed.attention_flops
        return self.scale * seconds

    def _join(self, memory: float, compute: float) -> float:
        sharpness = self.speed.sharpness
        if sharpness == 1:
            return memory + compute
        return float((memory**sharpness + compute**sharpness) ** (1 / sharpness))
