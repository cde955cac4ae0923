"""What a step's time consists of: launches, bytes, operations and messages, each as long as it would take alone.

Weights and products overlap (``step_time.join``), so a step may be shorter than the sum of its terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.clocks import Roofline
from kvplan.estimate.speed.steps.measured_clock import MeasuredClock, rank_step
from kvplan.estimate.speed.steps.rank_step import KernelSpeed, RankStep, whole_tiles
from kvplan.estimate.speed.steps.step_time import padded_rows
from kvplan.estimate.speed.steps.work import ModelWork


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What a step of the fullest data-parallel group does: tokens computed, sequences they belong to, tokens whose K
    and V are read, and pairs of a token and one that it attends to. Every sequence gets a token.

    num_met: tokens of all groups, which meet in the experts.
    """

    num_tokens: int
    num_sequences: int
    num_kv_tokens: int
    num_pairs: float
    num_met: int

    @staticmethod
    def decoding(num_sequences: int, context_tokens: int, groups: int = 1) -> StepLoad:
        """A token for each of ``num_sequences`` in all groups."""
        in_fullest = -(-num_sequences // groups)
        read = in_fullest * context_tokens
        return StepLoad(in_fullest, in_fullest, read, float(read), num_sequences)

    def with_prompt(self, num_tokens: int) -> StepLoad:
        """The same step with a prompt read in it."""
        return StepLoad(
            self.num_tokens + num_tokens,
            self.num_sequences + 1,
            self.num_kv_tokens + num_tokens,
            self.num_pairs + num_tokens * (num_tokens + 1) / 2,
            self.num_met + num_tokens,
        )

    def in_a_stage(self, layout: ParallelLayout) -> tuple[float, float, float, float]:
        """(tokens, sequences, tokens read, pairs) of the fullest micro-batch."""
        share = layout.share_of_stage(self.num_tokens, self.num_sequences)
        return (
            self.num_tokens * share,
            self.num_sequences * share,
            self.num_kv_tokens * share,
            self.num_pairs * share,
        )


@dataclass(frozen=True, slots=True)
class StepTerms:
    """Seconds of a step's parts.

    launches: what each step, layer and sequence costs however little it does. weights: with the activations. host: what
    launching and the engine's own work add to all that. drafter: its passes, where there is one.
    """

    launches: float
    weights: float
    kv_cache: float
    products: float
    attention: float
    collectives: float
    host: float = 0.0
    drafter: float = 0.0

    def times(self, factor: float) -> StepTerms:
        return StepTerms(*(factor * getattr(self, each.name) for each in fields(StepTerms)))

    def merged(self, other: StepTerms, merge: Callable[[float, float], float]) -> StepTerms:
        """Term by term."""
        return StepTerms(*(merge(getattr(self, each.name), getattr(other, each.name)) for each in fields(StepTerms)))


def term_names(terms: Iterable[StepTerms]) -> list[str]:
    """Return the terms to show of such steps: a drafter only where there is one."""
    names = [each.name for each in fields(StepTerms)]
    return names if any(each.drafter for each in terms) else [name for name in names if name != "drafter"]


def roofline_terms(roofline: Roofline, kv_bytes_per_token: float, load: StepLoad) -> StepTerms:
    """Return the terms by the data sheet, on one rank, all stages together."""
    work = roofline.work
    stages = work.layout.pipeline_parallel_size
    tokens, _, kv_tokens, pairs = load.in_a_stage(work.layout)
    met = load.num_met / stages
    return StepTerms(
        launches=roofline.step_seconds,
        weights=stages * work.weights_read(met) / roofline.bandwidth + roofline.moving_seconds(tokens),
        kv_cache=kv_tokens * kv_bytes_per_token / roofline.bandwidth,
        products=stages * roofline.product_seconds(tokens, met),
        attention=work.attention_operations(tokens, pairs / tokens) / roofline.attention_flops,
        collectives=roofline.collectives.seconds(tokens, met),
    )


def measured_terms(clock: MeasuredClock, load: StepLoad) -> StepTerms:
    """Return the terms by a profile's coefficients, on one rank, all stages together."""
    stages = clock.work.layout.pipeline_parallel_size
    tokens, sequences, kv_tokens, pairs = load.in_a_stage(clock.work.layout)
    met = load.num_met / stages
    speed = clock.device.speed
    tile_rows, expert_tile_rows = speed.all_tile_rows(met, clock.work.num_experts)
    step = rank_step(
        clock.work,
        tokens=tokens,
        rows=whole_tiles(padded_rows(tokens, speed.base.row_step), tile_rows),
        sequences=sequences,
        sampled=whole_tiles(sequences, tile_rows),
        kv_bytes=kv_tokens * clock.kv_bytes / clock.context_tokens,
        pairs=pairs,
        kv_tokens=kv_tokens,
        expert_tokens=met,
        expert_tile_rows=expert_tile_rows,
        rows_per_sequence=clock.rows_per_sequence,
    )
    launches, weights, kv_cache, products, attention = (
        stages * part for part in _rank_terms(clock._speed, step, clock.work)
    )
    return StepTerms(launches, weights, kv_cache, products, attention, clock._collectives.seconds(tokens, met))


def _rank_terms(speed: KernelSpeed, step: RankStep, work: ModelWork) -> tuple[float, float, float, float, float]:
    """launches, weights, kv_cache, products, attention of one stage."""
    base, experts = speed.base, speed.experts
    latent = speed.latent if work.num_latent_layers else None
    launches = base.step_seconds + base.layer_seconds * step.num_layers + base.sequence_seconds * step.num_sequences
    if experts is not None:
        launches += experts.layer_seconds * step.num_expert_layers
    if latent is not None:
        launches += (latent.layer_seconds - base.layer_seconds) * step.num_latent_layers
    weights = (step.body_bytes + step.head_bytes) / base.bandwidth
    weights += step.expert_bytes / (base if experts is None else experts).bandwidth
    if experts is not None:
        weights += step.routed_bytes / experts.routed_bandwidth
    products = (step.body_operations + step.head_operations) / base.flops
    products += step.expert_operations / (base if experts is None else experts).flops
    products += speed.scan_seconds * step.num_tokens * step.reads_prompts
    if latent is not None:
        products += latent.token_seconds * step.latent_tokens
    if latent is not None and speed.sparse is not None and step.num_choosing_layers:
        sparse = speed.sparse.seconds(latent, step)
        return launches + sparse.choosing, weights, sparse.reading, products, sparse.multiplying
    reached = base if latent is None else latent
    return (
        launches,
        weights,
        step.kv_bytes / reached.kv_bandwidth,
        products,
        step.attention_operations / (base.attention_flops if latent is None else latent.flops_of(step)),
    )
