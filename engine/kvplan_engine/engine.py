"""The engine: requests in, steps, tokens out."""

from __future__ import annotations

import gc
from collections.abc import Sequence as Rows
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kvplan_engine.blocks.block_pool import BlockPool
from kvplan_engine.blocks.prefix_cache import PrefixCache
from kvplan_engine.config import EngineConfig, knobs
from kvplan_engine.device.allocation import allocating
from kvplan_engine.device.device import open_device, resolve_dtype
from kvplan_engine.errors import EngineError
from kvplan_engine.execution.model_runner import ModelRunner
from kvplan_engine.execution.output_processor import OutputProcessor
from kvplan_engine.execution.profile_step import measure_profile_step
from kvplan_engine.execution.step_loop import StepLoop
from kvplan_engine.memory.breakdown import MemoryBreakdown
from kvplan_engine.memory.plan import plan_memory, resolve_max_model_len
from kvplan_engine.models.loaded_model import LoadedModel
from kvplan_engine.offload.assembly import make_offload
from kvplan_engine.requests.beams import BeamGroup, BeamSearchParams
from kvplan_engine.requests.outputs import StepOutput
from kvplan_engine.requests.request import Request, Sequence
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.requests.stats import StepStats
from kvplan_engine.requests.status import FinishReason, SequenceStatus
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.requests.stop import StopChecker
from kvplan_engine.scheduling.beam_search import make_beam_request
from kvplan_engine.scheduling.scheduler import Scheduler

_PARTS_OF_A_POOL = ("_runner", "scheduler", "_pool", "_requests", "_offload", "_intake", "_loop")


class Engine:
    """A model on a device with a paged KV pool, serving any number of requests by continuous batching.

    ``source``: what to load when it is not ``config.model`` itself (a resolved directory, say).
    ``tokenizer``: needed only for requests with stop strings.
    Raises OutOfDeviceMemory, ContextTooLong or EngineError when it cannot start.
    """

    def __init__(self, config: EngineConfig, *, source: Any = None, tokenizer: Any = None) -> None:
        self.config = config
        self.device = open_device(config.device, config.device_memory)
        with allocating("weights"):
            self.model = LoadedModel(
                config,
                config.model if source is None else source,
                self.device,
                lambda model_dtype: resolve_dtype(config.dtype, model_dtype, self.device),
            )
        self._stops = StopChecker(self.model.config.eos_token_ids, tokenizer)
        self._overhead_bytes = self.device.overhead_bytes
        self._profiled: tuple[int, int] = (0, 0)  # largest step measured: tokens, sequences
        self._graph_bytes: dict[tuple[int, ...], int] = {}  # by the sizes that are captured
        self._activation_peak_bytes = 0
        self._seconds_per_token = 0.0
        self._carve()

    # ---- memory

    def reconfigure(self, **changes: Any) -> None:
        """The same weights with other settings: a new workspace and a new pool. Nothing may be running.

        On an error the engine has no pool until a later call succeeds.
        """
        fixed = set(changes) - {name for name, knob in knobs().items() if knob.reconfigurable}
        if fixed:
            raise EngineError(f"cannot change {', '.join(sorted(fixed))} of a loaded engine.", hint="start a new one")
        self.config = replace(self.config, **changes)
        self._drop_pool()
        self._carve()

    def close(self) -> None:
        """Write the cached KV to disk where that is asked for, and give all memory back: pool, workspace and weights.

        What is still running is dropped. Using the engine afterwards is an EngineError; closing it again is none.
        """
        self._drop_pool()
        self.__dict__.pop("model", None)
        self.device.release_unused()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    if not TYPE_CHECKING:  # a type checker shall still know what an engine has

        def __getattr__(self, name: str) -> Any:
            """Called for what is not there: the parts of an engine that is closed, or has no pool."""
            if name == "model" or (name in _PARTS_OF_A_POOL and "model" not in self.__dict__):
                raise EngineError("the engine is closed.", hint="start a new one")
            if name in _PARTS_OF_A_POOL:
                raise EngineError("the engine has no pool.", hint="reconfigure it with settings that fit")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _drop_pool(self) -> None:
        if "_offload" in self.__dict__:
            self._offload.store_all()
        for name in _PARTS_OF_A_POOL:
            self.__dict__.pop(name, None)
        if self.device.is_asynchronous:
            gc.collect()  # an error that was raised in a step may hold its frames in a cycle, and these hold tensors
        self.device.release_unused()

    def _carve(self) -> None:
        """Workspace, pool and scheduler for ``self.config``, after what is not known beforehand has been measured."""
        config, model = self.config, self.model
        max_model_len = resolve_max_model_len(config, model.config)
        runner = ModelRunner(model, config, self.device, max_model_len)
        kv_dtype = config.kv_dtype(model.dtype)

        def plan() -> MemoryBreakdown:
            return plan_memory(
                config,
                model.config,
                kv_dtype,
                max_model_len,
                device_total_bytes=self.device.total_bytes,
                weight_bytes=model.weight_bytes,
                workspace_bytes=runner.workspace.num_bytes,
                overhead_bytes=self._overhead_bytes,
                graph_bytes=self._graph_bytes.get(runner.graph_sizes, 0),
            )

        memory = plan()
        if self._must_measure(runner):
            trial = self._trial_of(memory)
            runner.carve_pool(trial.num_blocks, kv_dtype)
            self._measure(runner, trial, max_model_len)
            if trial is not memory or self._overhead_bytes != memory.overhead_bytes:
                runner.drop_pool()
                self.device.release_unused()
                memory = plan()
        if runner.kv is None:
            runner.carve_pool(memory.num_blocks, kv_dtype)
        if runner.graph_sizes:
            runner.capture_graphs()
        self.memory = replace(memory, activation_peak_bytes=self._activation_peak_bytes)
        self.max_model_len = max_model_len
        self._runner = runner
        self._make_scheduler(memory)

    @property
    def _largest_step(self) -> tuple[int, int]:
        return self.config.max_num_batched_tokens, self.config.max_num_seqs

    def _must_measure(self, runner: ModelRunner) -> bool:
        """Whether a step is larger than those measured so far, or graphs have not been captured at these sizes."""
        is_larger = any(new > old for new, old in zip(self._largest_step, self._profiled, strict=True))
        return is_larger or (bool(runner.graph_sizes) and runner.graph_sizes not in self._graph_bytes)

    def _trial_of(self, memory: MemoryBreakdown) -> MemoryBreakdown:
        """``memory`` with the pool to measure in: on a GPU one that is just large enough for the largest step, so that
        even a device that is to be filled to the brim has room for what turns out to be needed."""
        if not self.device.is_asynchronous:
            return memory
        num_tokens, num_seqs = self._largest_step
        num_blocks = min(memory.num_blocks, num_tokens // memory.block_size + min(num_seqs, num_tokens) + 1)
        return replace(memory, num_blocks=num_blocks, kv_pool_bytes=num_blocks * memory.block_bytes)

    def _measure(self, runner: ModelRunner, memory: MemoryBreakdown, max_model_len: int) -> None:
        """The overhead that the largest step shows, and what the graphs take."""
        with allocating("runtime"):
            peak = measure_profile_step(runner, self.config, memory, max_model_len)
        self._activation_peak_bytes = peak.peak_bytes
        self._seconds_per_token = peak.seconds_per_token
        held_bytes = memory.weight_bytes + memory.activation_bytes + memory.kv_pool_bytes
        needed = max(self.device.used_bytes() - held_bytes, peak.extra_bytes)
        self._overhead_bytes = max(self._overhead_bytes, needed)
        self._profiled = self._largest_step
        if runner.graph_sizes:
            self._graph_bytes[runner.graph_sizes] = runner.capture_graphs().num_bytes

    def _make_scheduler(self, memory: MemoryBreakdown) -> None:
        config = self.config
        self._pool = BlockPool(memory.num_blocks, memory.block_size)
        salt = repr((self.model.config, self.model.dtype, config.kv_dtype(self.model.dtype))).encode()
        self.prefix_cache = PrefixCache(self._pool, enabled=config.caches_prefixes, salt=salt)
        assert self._runner.kv is not None
        self._offload = make_offload(config, memory, self._pool, self.model, self._runner.kv, self._seconds_per_token)
        self.scheduler = Scheduler(
            config,
            self.max_model_len,
            self._pool,
            self.prefix_cache,
            self._offload.preemption,
            self._offload.tiers,
            self._offload.log,
        )
        self._requests: dict[str, Request] = {}
        self._intake = OutputProcessor(self.scheduler, self._stops, self._requests, self.max_model_len)
        ahead = config.async_scheduling
        self._loop = StepLoop(
            self.scheduler,
            self._runner,
            self._offload.mover,
            self._intake,
            self._count,
            runs_ahead=self.device.is_asynchronous if ahead is None else ahead,
        )

    # ---- requests

    def add_request(
        self, request_id: str, prompt_token_ids: list[int], params: SamplingParams, *, prompt: str | None = None
    ) -> Request:
        """Queue a prompt. EngineError when its id is taken, a token is unknown, or it can never fit."""
        self._check_prompt(request_id, prompt_token_ids)
        self._stops.check_params(params)
        params.check_vocabulary(self.model.config.vocab_size)
        request = Request(request_id, prompt_token_ids, params, prompt=prompt)
        request.stop_ids = self._stops.stop_ids(params)
        self.scheduler.add(request)
        self._requests[request_id] = request
        return request

    def add_beam_search(
        self, request_id: str, prompt_token_ids: list[int], params: BeamSearchParams, *, prompt: str | None = None
    ) -> Request:
        """Queue a prompt whose answers are searched; they are in ``request.beams.finished`` at the end."""
        self._check_prompt(request_id, prompt_token_ids)
        max_length = min(len(prompt_token_ids) + params.max_tokens, self.max_model_len)
        group: BeamGroup[Sequence] = BeamGroup(params, frozenset(self.model.config.eos_token_ids), max_length)
        request = make_beam_request(request_id, prompt_token_ids, group, self.model.config.vocab_size, prompt=prompt)
        self.scheduler.add(request)
        group.scores = dict.fromkeys(request.sequences, np.float32(0))
        self._requests[request_id] = request
        return request

    def _check_prompt(self, request_id: str, prompt_token_ids: list[int]) -> None:
        if request_id in self._requests:
            raise EngineError(f"request id '{request_id}' is in use.")
        vocab_size = self.model.config.vocab_size
        if prompt_token_ids and not (min(prompt_token_ids) >= 0 and max(prompt_token_ids) < vocab_size):
            raise EngineError(f"a token of request '{request_id}' lies outside the vocabulary of {vocab_size:,}.")

    def abort(self, request_id: str) -> None:
        """Stop a request and return its blocks; an unknown or finished id is no error."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            for sequence in request.sequences:
                if sequence.status is not SequenceStatus.FINISHED:
                    self.scheduler.finish(sequence, FinishReason.ABORT)

    def has_unfinished_requests(self) -> bool:
        return self.scheduler.has_unfinished

    # ---- one step

    def step(self) -> Rows[StepOutput]:
        """Do a step; the tokens that came in, in the order of the batch's rows.

        Running ahead, these are the tokens of the step before. [] when none have come yet, or nothing is left to do.
        """
        return self._loop.step()

    @property
    def stats(self) -> StepStats:
        """What the last step saw."""
        return self._loop.stats

    def _count(self, plan: StepPlan) -> dict[str, int]:
        scheduler, pool = self.scheduler, self._pool
        # each running sequence's table, minus what it holds; a tail that siblings share is wasted once
        wasted = pool.num_references * pool.block_size - scheduler.running.num_tokens
        tails: set[int] = set()
        for sequence in scheduler.running.shared_tails:
            tail = sequence.table.blocks[-1]
            if tail in tails:
                wasted -= len(sequence.table) * pool.block_size - sequence.num_computed_tokens
            tails.add(tail)
        num_used_blocks = pool.num_used_blocks
        return {
            "num_running": len(scheduler.running),
            "num_waiting": len(scheduler.waiting),
            "num_swapped": len(scheduler.swapped),
            "num_scheduled_tokens": plan.num_tokens,
            "num_used_blocks": num_used_blocks,
            "num_free_blocks": pool.num_free_blocks,
            "num_used_tokens": num_used_blocks * pool.block_size - wasted,
            "num_running_tokens": scheduler.running.num_tokens,
            "internal_fragmentation_bytes": wasted * self.memory.block_bytes // pool.block_size,
            "num_preemptions": scheduler.num_preemptions,
            "num_swaps": scheduler.num_swaps,
            "recomputed_tokens": scheduler.num_recomputed_tokens,
            "num_blocked_admissions": scheduler.num_blocked_admissions,
        }

    # ---- looking in

    def get_stats(self) -> dict[str, Any]:
        """KV usage, queues and cache hits now, under the names that vLLM's metrics have."""
        pool, scheduler, cache = self._pool, self.scheduler, self.prefix_cache
        return {
            "kv_cache_usage_perc": pool.num_used_blocks / pool.num_blocks,
            "num_blocks": pool.num_blocks,
            "num_free_blocks": pool.num_free_blocks,
            "num_used_blocks": pool.num_used_blocks,
            "block_size": pool.block_size,
            "num_requests_running": len(scheduler.running),
            "num_requests_waiting": len(scheduler.waiting),
            "num_requests_swapped": len(scheduler.swapped),
            "num_preemptions": scheduler.num_preemptions,
            "num_swaps": scheduler.num_swaps,
            "recomputed_tokens": scheduler.num_recomputed_tokens,
            "num_steps": self._loop.num_steps,
            "num_steps_ahead": self._loop.num_ahead,
            "num_graph_replays": self._runner.num_graph_replays,
            "longest_stall_seconds": self._intake.longest_stall_seconds,
            "num_cached_tokens": cache.num_hit_tokens,
            "num_cached_blocks": pool.num_cached_blocks,
            "prefix_cache_queries": cache.num_queried_tokens,
            "prefix_cache_hits": cache.num_hit_tokens,
            **self._offload.get_stats(),
            "memory": {name: getattr(self.memory, name) for name in self.memory.__dataclass_fields__},
        }

    def check(self) -> None:
        """Assert every invariant of scheduler and pool (tests run it after every step)."""
        self.scheduler.check()

    @property
    def torch_threads(self) -> int:
        return torch.get_num_threads()
