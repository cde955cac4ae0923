"""What one rank does in one step, and how long that takes with coefficients fitted to a GPU's kernels.

    seconds = per step + per layer x layers + per sequence x sequences
            + join(bytes / bandwidth, operations / flops)              of the dense products, and again of the head
            + K and V bytes / KV bandwidth + operations of attention / attention flops
            + per mixture x mixtures + join(touched experts' bytes / bandwidth, operations / flops)
            + hidden vectors routed to experts / routed bandwidth
            + per latent layer x latent layers, in place of "per layer", + per latent token x tokens of its heads
            + what choosing the tokens to attend to costs (``SparseSpeed``), where latent attention does
            + per token of prompts in layers that scan a state x tokens

``join`` is that of ``step_time``. Mixtures and latent attention have coefficients of their own: their kernels launch
more, and reach less of the bandwidth, than dense products and K and V do. Without them a mixture's experts count as
dense products. Every quantity may be an array, one entry per step: fits use the same function as predictions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kvplan.estimate.speed.steps.step_time import Speed

_ROUNDING: Final = 1e-9
"""Of a tile: shares of a group's sequences are not whole numbers."""


@dataclass(frozen=True, slots=True)
class ExpertSpeed:
    """Mixtures: what one costs at any size (seconds), and what their products reach (B/s, operations/s).

    layer_seconds: beyond a layer's own; below 0 where a mixture launches less than two dense products.
    routed_bandwidth: bytes per second of the hidden vectors that are gathered for the experts and added up again, one
    for each expert that a token chose. sharpness: of their own products; that of dense products where it is None.
    tile_rows: as for ``KernelSpeed``, of one expert. few_tile_rows: the same where a step has no more tokens than
    experts; None if that makes no difference.
    """

    layer_seconds: float
    bandwidth: float
    flops: float
    routed_bandwidth: float = math.inf
    sharpness: float | None = None
    tile_rows: float = 1.0
    few_tile_rows: float | None = None

    def tile_rows_of(self, num_tokens: float, num_experts: int) -> float:
        """Return the rows of a tile in a step of ``num_tokens``."""
        if self.few_tile_rows is None or num_tokens > num_experts:
            return self.tile_rows
        return self.few_tile_rows


@dataclass(frozen=True, slots=True)
class LatentSpeed:
    """Latent attention: what a layer costs in place of an ordinary one, and what it reaches in place of K and V.

    token_seconds: of a token computed, for all heads of one layer, beyond its products: latents are expanded to keys
    and values, which are copied together; a rank has its share of the heads. prompt_share: of ``attention_flops``, what
    steps that read prompts reach.
    """

    layer_seconds: float
    kv_bandwidth: float
    attention_flops: float
    token_seconds: float = 0.0
    prompt_share: float = 1.0

    def flops_of(self, step: RankStep) -> Any:
        """Operations per second that attention reaches in ``step``."""
        return self.attention_flops * (1 + (self.prompt_share - 1) * step.reads_prompts)


@dataclass(frozen=True, slots=True)
class SparseSpeed:
    """Latent attention to chosen tokens alone: seconds beyond those of ``LatentSpeed``, in one layer.

    layer_seconds: of any step. token_seconds: of a token, in steps that read prompts. pair_seconds: of a token and one
    that was chosen for it in such steps, all heads of a rank, in place of what attention takes otherwise.
    seen_seconds, prompt_seen_seconds: of a token and a key before it that is scored: of one that is in the cache, as
    all are of a token that is decoded, and of one in the same prompt. dense_context: prompts whose tokens see as many
    on average at most are read densely.
    """

    layer_seconds: float
    token_seconds: float
    pair_seconds: float
    seen_seconds: float
    prompt_seen_seconds: float
    dense_context: float = 0.0

    def seconds(self, latent: LatentSpeed, step: RankStep) -> AttentionSeconds:
        """Return the seconds of ``step`` with ``latent``'s."""
        share = step.chosen_pairs / max(step.seen_pairs, step.chosen_pairs, 1.0)
        reading = share * step.kv_bytes / latent.kv_bandwidth
        multiplying = step.attention_operations / latent.flops_of(step)
        if not step.reads_prompts:
            choosing = self.layer_seconds * step.num_choosing_layers
            return AttentionSeconds(choosing, reading, multiplying + self.seen_seconds * step.scored_pairs)
        if step.scored_pairs <= self.dense_context * step.choosing_tokens:
            return AttentionSeconds(0.0, step.kv_bytes / latent.kv_bandwidth, multiplying)
        choosing = self.layer_seconds * step.num_choosing_layers + self.token_seconds * step.choosing_tokens
        # One kernel reads and multiplies.
        multiplying = max(self.pair_seconds * step.chosen_pairs - reading, 0.0)
        of_prompts = step.scored_pairs - step.cached_pairs
        seeing = self.seen_seconds * step.cached_pairs + self.prompt_seen_seconds * of_prompts
        return AttentionSeconds(choosing, reading, multiplying + seeing)


class AttentionSeconds(NamedTuple):
    """choosing: which tokens to attend to."""

    choosing: Any
    reading: Any
    multiplying: Any


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """All-reduces: seconds of a small one by number of ranks, and the share of the link that large ones reach.

    share: one for all, or by number of ranks, where messages go through the host's memory.
    """

    all_reduce_seconds: Mapping[int, float]
    share: float | Mapping[int, float]

    def seconds(self, num_ranks: int) -> float:
        """Seconds of a small all-reduce; of as many ranks as were measured at most, else of the next fewer."""
        return _of_ranks(self.all_reduce_seconds, num_ranks)

    def share_of(self, num_ranks: int) -> float:
        """Return the share that ``num_ranks`` reach; as for ``seconds``."""
        return _of_ranks(self.share, num_ranks) if isinstance(self.share, Mapping) else self.share


def _of_ranks(values: Mapping[int, float], num_ranks: int) -> float:
    known = [ranks for ranks in sorted(values) if ranks <= num_ranks]
    return values[known[-1] if known else min(values)]


@dataclass(frozen=True, slots=True)
class KernelSpeed:
    """All coefficients of a device, an engine and a format.

    tile_rows: rows of a product that are multiplied together, however few there are; 1 where it makes no difference.
    scan_seconds: of a token of a step that reads prompts, in all layers with a recurrent state, on every rank.
    """

    base: Speed
    experts: ExpertSpeed | None = None
    latent: LatentSpeed | None = None
    links: LinkSpeed | None = None
    sparse: SparseSpeed | None = None
    tile_rows: float = 1.0
    scan_seconds: float = 0.0

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> KernelSpeed:
        """A profile's ``coefficients``, ``experts``, ``latent`` and ``links``; all but the first may be missing."""
        experts, latent, links = (record.get(name) for name in ("experts", "latent", "links"))
        return KernelSpeed(
            Speed.from_json(record["coefficients"]),
            None if experts is None else ExpertSpeed(**{name: float(value) for name, value in experts.items()}),
            None if latent is None else LatentSpeed(**{name: float(value) for name, value in latent.items()}),
            None if links is None else _links(links),
        )

    def all_tile_rows(self, num_tokens: float, num_experts: int) -> tuple[float, float]:
        """Return the tile rows of dense products, and of one expert's in a step whose experts have ``num_tokens``.

        Experts that count as dense products have none of their own.
        """
        return self.tile_rows, 1.0 if self.experts is None else self.experts.tile_rows_of(num_tokens, num_experts)


def whole_tiles(num_rows: float, tile_rows: float) -> float:
    """``num_rows`` in whole tiles."""
    return math.ceil(num_rows / tile_rows - _ROUNDING) * tile_rows if tile_rows > 1 else num_rows


def _links(record: Mapping[str, Any]) -> LinkSpeed:
    share = record["share"]
    return LinkSpeed(
        _by_ranks(record["all_reduce_seconds"]), _by_ranks(share) if isinstance(share, Mapping) else float(share)
    )


def _by_ranks(values: Mapping[str, Any]) -> dict[int, float]:
    return {int(ranks): float(value) for ranks, value in values.items()}


class RankStep(NamedTuple):
    """One step on one rank of one stage: bytes read, operations (two per multiply-add), layers, sequences.

    A plan makes a hundred thousand of them, a named tuple in a fraction of what a frozen dataclass takes.
    """

    num_layers: Any
    num_sequences: Any
    body_bytes: Any
    body_operations: Any
    head_bytes: Any
    head_operations: Any
    kv_bytes: Any
    attention_operations: Any
    num_expert_layers: Any = 0
    expert_bytes: Any = 0.0
    expert_operations: Any = 0.0
    routed_bytes: Any = 0.0
    num_latent_layers: Any = 0
    latent_tokens: Any = 0.0
    """Tokens x latent layers x the rank's share of the heads."""
    reads_prompts: Any = False
    """Whether a sequence has more than one token in it."""
    num_tokens: Any = 0.0
    """Tokens of a step in all layers of a stage. Of several stages each has its share."""
    num_choosing_layers: Any = 0
    choosing_tokens: Any = 0.0
    """Tokens x layers that choose which tokens to attend to, for themselves or for later ones too."""
    scored_pairs: Any = 0.0
    """Of a token and a key before it, in these layers."""
    seen_pairs: Any = 0.0
    """Of a token and one before it, in all layers that attend to chosen ones."""
    cached_pairs: Any = 0.0
    """Of those scored, with a key that was in the cache before the step."""
    chosen_pairs: Any = 0.0
    """Of a token and one that was chosen for it."""


def step_seconds(speed: KernelSpeed, step: RankStep) -> Any:
    """Seconds of one step without what ranks send each other; an array where ``step`` holds arrays."""
    return seconds_of_rows(speed, step) + attention_seconds(speed, step)


def seconds_of_rows(speed: KernelSpeed, step: RankStep) -> Any:
    """Seconds of all but attention."""
    base = speed.base
    seconds = base.step_seconds + base.layer_seconds * step.num_layers + base.sequence_seconds * step.num_sequences
    seconds = seconds + speed.scan_seconds * step.num_tokens * step.reads_prompts
    body_bytes, body_operations = step.body_bytes, step.body_operations
    if speed.experts is None:
        body_bytes, body_operations = body_bytes + step.expert_bytes, body_operations + step.expert_operations
    else:
        experts = speed.experts
        seconds = seconds + experts.layer_seconds * step.num_expert_layers
        seconds = seconds + step.routed_bytes / experts.routed_bandwidth
        sharpness = base.sharpness if experts.sharpness is None else experts.sharpness
        seconds = seconds + _join(
            step.expert_bytes / experts.bandwidth, step.expert_operations / experts.flops, sharpness
        )
    seconds = seconds + _join(body_bytes / base.bandwidth, body_operations / base.flops, base.sharpness)
    return seconds + _join(step.head_bytes / base.bandwidth, step.head_operations / base.flops, base.sharpness)


def plain_attention_seconds(base: Speed, kv_bytes: Any, operations: Any) -> Any:
    """Seconds of attention that has K and V."""
    return kv_bytes / base.kv_bandwidth + operations / base.attention_flops


def attention_seconds(speed: KernelSpeed, step: RankStep) -> Any:
    """Seconds of attention, with what latent layers cost beyond it."""
    base, latent = speed.base, speed.latent
    plain = plain_attention_seconds(base, step.kv_bytes, step.attention_operations)
    if latent is None:
        return plain
    is_latent = step.num_latent_layers > 0
    own = step.num_latent_layers * (latent.layer_seconds - base.layer_seconds)
    own = own + step.latent_tokens * latent.token_seconds
    if speed.sparse is not None and step.num_choosing_layers:
        return own + sum(speed.sparse.seconds(latent, step))
    own = own + step.kv_bytes / latent.kv_bandwidth + step.attention_operations / latent.flops_of(step)
    return is_latent * own + (1 - is_latent) * plain


def _join(memory: Any, compute: Any, sharpness: float) -> Any:
    if sharpness == 1:
        return memory + compute
    return (memory**sharpness + compute**sharpness) ** (1 / sharpness)
