"""The parts of an engine that stand and fall with its pool: made together, dropped together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kvplan_engine.blocks.block_pool import BlockPool
from kvplan_engine.blocks.layout import KvLayout
from kvplan_engine.blocks.prefix_cache import PrefixCache
from kvplan_engine.config import EngineConfig
from kvplan_engine.errors import EngineError
from kvplan_engine.execution.carving import Carving
from kvplan_engine.execution.loop.output_processor import OutputProcessor
from kvplan_engine.execution.loop.step_loop import StepLoop
from kvplan_engine.execution.loop.step_runner import StepRunner
from kvplan_engine.models.counted_model import EngineModel
from kvplan_engine.offload.assembly import Offload, make_offload
from kvplan_engine.requests.request import Request
from kvplan_engine.requests.stop import StopChecker
from kvplan_engine.scheduling.scheduler import Scheduler
from kvplan_engine.scheduling.statistics import count_step
from kvplan_engine.speculation import NgramProposer, PlaceholderProposer, Proposer


@dataclass(frozen=True, slots=True)
class Serving:
    """What serves requests from one pool. requests: the unfinished ones, by their ids."""

    runner: StepRunner
    prefix_cache: PrefixCache
    offload: Offload
    scheduler: Scheduler
    requests: dict[str, Request]
    output_processor: OutputProcessor
    loop: StepLoop


def make_serving(
    config: EngineConfig, model: EngineModel, carving: Carving, stops: StopChecker, runs_ahead: bool
) -> Serving:
    """Scheduler and step loop over the pool that ``carving`` set aside. Raises what ``make_offload`` does."""
    memory = carving.memory
    pool = BlockPool(memory.num_blocks, carving.layout)
    kept: tuple[object, ...] = (model.config, model.dtype, config.kv_dtype(model.dtype))
    if config.drafts_with_model:  # whose KV lies in the same blocks
        kept += (config.speculative_config,)
    salt = repr(kept).encode()
    prefix_cache = PrefixCache(pool, enabled=config.caches_prefixes, salt=salt)
    offload = make_offload(config, memory, pool, model, carving.runner.make_mover, carving.seconds_per_token)
    scheduler = Scheduler(
        config, carving.max_model_len, pool, prefix_cache, offload.preemption, offload.tiers, offload.log
    )
    requests: dict[str, Request] = {}
    output_processor = OutputProcessor(scheduler, stops, requests, carving.max_model_len, config.most_drafts)
    loop = StepLoop(
        scheduler,
        carving.runner,
        offload.mover,
        output_processor,
        partial(count_step, scheduler, memory.block_bytes),
        runs_ahead=runs_ahead,
        proposer=_make_proposer(config, carving.layout, carving.runner),
    )
    return Serving(carving.runner, prefix_cache, offload, scheduler, requests, output_processor, loop)


def _make_proposer(config: EngineConfig, layout: KvLayout, runner: StepRunner) -> Proposer | None:
    """Who proposes drafts; None where nobody does. EngineError for a model whose steps cannot be taken back."""
    speculative = config.speculative_config
    if speculative is None:
        return None
    if layout.has_states:
        raise EngineError(
            "speculative_config does not go with a model that keeps states, which no rejected token can leave again.",
            hint="leave speculative_config out, or use a model whose layers all attend",
        )
    if speculative.method != "ngram":
        first = runner.first_drafts if config.drafts_with_own_layer and not config.is_counted else None
        return PlaceholderProposer(speculative.num_speculative_tokens, first)
    return NgramProposer(speculative)
