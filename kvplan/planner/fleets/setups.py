"""From a choice of a plan to a replica that is played: its start-up, its scheduler's rules, its clock, its pool."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.speed.engine_speed import engine_rules
from kvplan.estimate.speed.latency import SpeedModel
from kvplan.estimate.vllm.prediction import VllmPrediction
from kvplan.estimate.vllm.settings import caches_prefixes
from kvplan.fleet.replicas.setup import PoolLayout, ReplicaSetup
from kvplan.fleet.routers.named import ReplicaSizes
from kvplan.planner.choices.deployment import Capacity, Choice
from kvplan.planner.choices.trial import Trial, capacity_of, predict, speed_model

_FIRST_SEATS: Final = 256
_FEWEST_SEATS, _MOST_SEATS = 64, 1024
_SPARE_SEATS: Final = 1.25
"""Times the sequences of average length that the pool holds: shorter ones are in it at times, and shared ones."""


@dataclass(frozen=True)
class FleetChoice:
    """A choice with all that a play of one of its replicas needs."""

    choice: Choice
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


def fleet_choice(trial: Trial, choice: Choice) -> FleetChoice | None:
    """``choice`` as it is played; None where its weights or the longest request do not fit, or it is refused."""
    try:
        prediction = predict(trial, choice, _FIRST_SEATS)
        if not prediction.fits:
            return None
        held = capacity_of(trial, choice, prediction).average_sequences / choice.layout.data_parallel_size
        prediction = predict(trial, choice, _seats(held))
        model = speed_model(trial, choice, prediction)
        setup = replica_setup(trial, choice.weights.spec, model, prediction)
    except KvplanError as error:
        trial.refusals.setdefault(choice.gpu.id, error)
        return None
    return FleetChoice(choice, prediction, capacity_of(trial, choice, prediction), model, setup)


def _seats(held: float) -> int:
    """A power of two, as many as so many sequences in the pool need."""
    wanted = min(max(_SPARE_SEATS * held, _FEWEST_SEATS), _MOST_SEATS)
    return 1 << (int(wanted) - 1).bit_length()


def replica_setup(trial: Trial, spec: ModelSpec, model: SpeedModel, prediction: VllmPrediction) -> ReplicaSetup:
    """One replica of ``prediction``."""
    settings = prediction.settings.serving
    engine = EngineChoice("vllm", prediction.version)
    groups = settings.data_parallel_size
    pool_tokens = float(groups * prediction.num_blocks * prediction.block_size)
    rules = model.followed(engine_rules(engine, settings, model.work, pool_tokens))
    caches = caches_prefixes(spec, trial.request.settings, vllm_release(prediction.version))
    return ReplicaSetup(rules, model.steps, pool_layout(prediction, caches_prefixes=caches))


def pool_layout(prediction: VllmPrediction, *, caches_prefixes: bool) -> PoolLayout:
    """The blocks of one data-parallel group."""
    return PoolLayout.full_attention(prediction.block_size, prediction.num_blocks, caches_prefixes=caches_prefixes)
