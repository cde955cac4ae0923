"""From a choice of a plan to a replica that is played: its start-up, its scheduler's rules, its clock, its pool."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError, unhandled_kind
from kvplan.estimate.speed.engine_speed import engine_rules
from kvplan.estimate.speed.latency import SpeedModel
from kvplan.estimate.vllm.pages import PER_REQUEST, LayerPage
from kvplan.estimate.vllm.prediction import VllmPrediction
from kvplan.estimate.vllm.prefix_hits import DROP_A_BLOCK
from kvplan.estimate.vllm.settings import caches_prefixes, checkpoint_blocks
from kvplan.fleet.replicas.setup import CacheGroup, PoolLayout, ReplicaSetup
from kvplan.fleet.routers.named import ReplicaSizes
from kvplan.planner.choices.basis import PlanBasis, capacity_of, predict, speed_model
from kvplan.planner.choices.deployment import Capacity, DeploymentChoice

_FIRST_SEATS: Final = 256
_FEWEST_SEATS, _MOST_SEATS = 64, 1024
_SPARE_SEATS: Final = 1.25
"""Times the sequences of average length that the pool holds: shorter ones are in it at times, and shared ones."""


@dataclass(frozen=True)
class FleetChoice:
    """A choice with all that a play of one of its replicas needs."""

    choice: DeploymentChoice
    prediction: VllmPrediction
    capacity: Capacity
    model: SpeedModel
    setup: ReplicaSetup

    @property
    def sizes(self) -> ReplicaSizes:
        """What routers are set up with."""
        setup = self.setup
        groups = max(setup.rules.num_groups, 1)
        return ReplicaSizes(
            self.prediction.block_size, groups * setup.pool.num_blocks, groups * setup.rules.max_num_seqs
        )

    @property
    def num_gpus(self) -> int:
        return self.choice.layout.num_gpus

    @property
    def tokens(self) -> int:
        """The token budget of a step."""
        return self.prediction.settings.serving.max_num_batched_tokens

    def without_prefix_caching(self) -> FleetChoice:
        """The same with --no-enable-prefix-caching."""
        pool = replace(self.setup.pool, caches_prefixes=False)
        return replace(self, setup=replace(self.setup, pool=pool))


def fleet_choice(basis: PlanBasis, choice: DeploymentChoice) -> FleetChoice | None:
    """``choice`` as it is played; None where its weights or the longest request do not fit, or it is refused."""
    try:
        prediction = predict(basis, choice, _FIRST_SEATS)
        if not prediction.fits:
            return None
        held = capacity_of(basis, choice, prediction).average_sequences / choice.layout.data_parallel_size
        # A power of two, as many as so many sequences in the pool need.
        wanted = min(max(_SPARE_SEATS * held, _FEWEST_SEATS), _MOST_SEATS)
        prediction = predict(basis, choice, 1 << (int(wanted) - 1).bit_length())
        model = speed_model(basis, choice, prediction)
        setup = replica_setup(basis, choice.weights.spec, model, prediction)
    except KvplanError as error:
        basis.refusals.setdefault(choice.gpu.id, error)
        return None
    return FleetChoice(choice, prediction, capacity_of(basis, choice, prediction), model, setup)


def replica_setup(basis: PlanBasis, spec: ModelSpec, model: SpeedModel, prediction: VllmPrediction) -> ReplicaSetup:
    """One replica of ``prediction``."""
    settings = prediction.settings.serving
    engine = EngineChoice("vllm", prediction.version)
    groups = settings.data_parallel_size
    pool_tokens = float(groups * prediction.num_blocks * prediction.block_size)
    rules = model.followed(engine_rules(engine, settings, model.work, pool_tokens))
    caches = caches_prefixes(spec, basis.request.settings, vllm_release(prediction.version))
    return ReplicaSetup(rules, model.steps, pool_layout(spec, model.gpu, prediction, caches_prefixes=caches))


def pool_layout(spec: ModelSpec, gpu: GpuProfile, prediction: VllmPrediction, *, caches_prefixes: bool) -> PoolLayout:
    """The blocks of one data-parallel group, in the groups that the release makes of the model's layers.

    A state is kept for a block of as many tokens as all other groups agree on (cache mode align), where prefixes are
    cached; a request has one block of it otherwise. Kernels that write it on their way save a prompt the cut there, but
    where a drafter has the last block computed again, whose state then is another block's. KvplanError for cross
    attention.
    """
    plan, release = prediction.rank.blocks, vllm_release(prediction.version)
    sizes = [group.page.block_size for group in plan.groups if group.page.kind not in PER_REQUEST]
    unit = lcm(*sizes) if sizes else plan.block_size
    drops = spec.drafter is not None and spec.drafter.method in DROP_A_BLOCK
    counts: dict[CacheGroup, int] = {}
    for group in plan.groups:
        found = _cache_group(group.page, unit, drops=drops, caches_prefixes=caches_prefixes)
        counts[found] = counts.get(found, 0) + 1
    return PoolLayout(
        tuple(replace(found, count=count) for found, count in counts.items()),
        prediction.num_blocks - int(release.reserves_null_block),
        caches_prefixes,
        release.pins_shared_prefixes,
        exports_states=caches_prefixes and not drops and bool(checkpoint_blocks(spec, gpu, release)),
        retention_interval=0 if release.keeps_resumed_places_only else None,
    )


def _cache_group(page: LayerPage, unit: int, *, drops: bool, caches_prefixes: bool) -> CacheGroup:
    match page.kind:
        case "full" | "every_state":
            return CacheGroup("full", page.block_size, drops_a_block=drops)
        case "sliding":
            return CacheGroup("sliding", page.block_size, page.window_tokens, drops_a_block=drops)
        case "chunked":
            return CacheGroup("chunked", page.block_size, page.window_tokens, drops_a_block=drops)
        case "state" | "ngram_state" if caches_prefixes:
            return CacheGroup("state", unit)
        case "state" | "ngram_state" | "ring":
            return CacheGroup("fixed", unit)
        case "cross":
            raise KvplanError(
                "A trace is not played on models with cross attention: the file does not say what is encoded.",
                hint="plan with --users or --request-rate",
            )
        case _:
            raise unhandled_kind(page.kind, "what a pool keeps of its pages")
