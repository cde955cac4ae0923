"""The engine: requests go in, steps run, tokens come out."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import asdict, replace
from typing import Any

from kvplan_engine.adapters.library import dummy_adapter
from kvplan_engine.blocks.block_table import layout_waste_pct
from kvplan_engine.blocks.prefix_cache import PrefixCache
from kvplan_engine.config import EngineConfig, knobs
from kvplan_engine.device.process_memory import available_memory_bytes
from kvplan_engine.errors import EngineError
from kvplan_engine.execution.capacity import refuse_beams, refuse_what_needs_logits
from kvplan_engine.execution.loop.step_runner import UNOBSERVED, StepObserver
from kvplan_engine.execution.serving import Serving, make_serving
from kvplan_engine.execution.starting import Started, start
from kvplan_engine.memory.plan import Reserve
from kvplan_engine.models.counted_model import EngineModel
from kvplan_engine.models.decoder import Decoder
from kvplan_engine.models.loaded_model import LoadedModel
from kvplan_engine.requests.beams import BeamGroup, BeamSearchParams
from kvplan_engine.requests.drafts import DraftCounts
from kvplan_engine.requests.outputs import StepOutput
from kvplan_engine.requests.request import AdapterKey, LoRARequest, Request, Sequence
from kvplan_engine.requests.sampling_params import SamplingParams, checked_token_ids
from kvplan_engine.requests.status import FinishReason, SequenceStatus
from kvplan_engine.requests.step_plan import StepStats
from kvplan_engine.requests.stop import StopChecker
from kvplan_engine.scheduling.beam_search import make_beam_request
from kvplan_engine.scheduling.scheduler import Scheduler
from kvplan_engine.scheduling.statistics import scheduler_stats
from kvplan_engine.transformers_backend.model import TransformersDecoder, TransformersModel

MOST_TOUCHED_BYTES = 1 << 30
"""Of a pool before it serves: memory that is first written costs 0.7 to 1.6 ms for each MiB."""


class Engine:
    """A model on a device with a paged KV pool, serving any number of requests by continuous batching.

    ``source``: what to load when it is not ``config.model`` itself (a resolved directory, say).
    ``tokenizer``: needed only for requests with stop strings. ``ranks``: the processes that share every layer with this
    one, None where none do.
    with_pool: False to load alone; ``reconfigure`` makes the first pool then.
    Raises OutOfDeviceMemory, ContextTooLong or EngineError when it cannot start.
    """

    def __init__(
        self, config: EngineConfig, *, source: Any = None, tokenizer: Any = None, with_pool: bool = True
    ) -> None:
        self.config = config
        started = start(config, config.model if source is None else source)
        self.device, self.ranks = started.device, started.ranks
        self._started: Started | None = started  # None once it is closed
        self._serving: Serving | None = None  # and while it has no pool
        self._stops = StopChecker(started.model.config.eos_token_ids, tokenizer)
        try:
            if with_pool:
                self._make_pool()
        except BaseException:
            self._end_ranks()
            raise

    @property
    def model(self) -> EngineModel:
        """The loaded model; EngineError once the engine is closed."""
        return self._open.model

    @property
    def serving(self) -> Serving:
        """What serves from the pool; EngineError where there is no pool."""
        if self._serving is not None:
            return self._serving
        if self._started is None:
            raise _closed()
        raise EngineError("the engine has no pool.", hint="reconfigure it with settings that fit")

    @property
    def scheduler(self) -> Scheduler:
        """Who runs in each step, and who owns which block."""
        return self.serving.scheduler

    @property
    def prefix_cache(self) -> PrefixCache:
        """What is cached in the pool."""
        return self.serving.prefix_cache

    @property
    def _open(self) -> Started:
        if self._started is None:
            raise _closed()
        return self._started

    @property
    def decoder(self) -> Decoder | TransformersDecoder:
        """What computes the model; EngineError where nothing is computed."""
        if not isinstance(self.model, (LoadedModel, TransformersModel)):
            raise EngineError("load_format 'none' computes nothing.", hint="use load_format='dummy' to time steps")
        return self.model.decoder

    # ---- memory

    def reconfigure(self, **changes: Any) -> None:
        """Keep the weights and change settings: a new workspace and a new pool. Nothing may be running.

        On an error the engine has no pool until a later call succeeds.
        """
        self._change(changes)
        self._drop_pool()
        self._make_pool()

    def settle(self, **changes: Any) -> Reserve:
        """Change settings, and say what a pool for them is going to leave free of the device, before it is made.

        What is not known of it is measured. ``reconfigure`` with the same settings makes the pool, or is refused, with
        these figures. Nothing may be running, and the engine has no pool afterwards.
        """
        self._change(changes)
        self._drop_pool()
        return self._open.carver.settle(self.config)

    def _change(self, changes: Mapping[str, Any]) -> None:
        fixed = set(changes) - {name for name, knob in knobs().items() if knob.reconfigurable}
        if fixed:
            raise EngineError(f"cannot change {', '.join(sorted(fixed))} of a loaded engine.", hint="start a new one")
        self.config = replace(self.config, **changes)

    @property
    def has_pool(self) -> bool:
        """False once it is closed, and after a ``reconfigure`` that failed."""
        return self._serving is not None

    def close(self) -> None:
        """Write the cached KV to disk if there is a disk cache, and free all memory: pool, workspace and weights.

        Requests that still run are dropped. Using the engine afterwards is an EngineError; closing it again is not.
        """
        self._drop_pool()
        self._started = None
        self._end_ranks()
        self.device.release_unused()

    def _end_ranks(self) -> None:
        if self.ranks is not None:
            self.ranks.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drop_pool(self) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.offload.close()
            del serving
        if self.device.is_asynchronous:
            gc.collect()  # an error raised in a step may keep its frames, and so tensors, alive in a cycle
        self.device.release_unused()

    def _make_pool(self) -> None:
        """Workspace, pool, scheduler and step loop for ``self.config``."""
        config, started = self.config, self._open
        carving = started.carver.carve(config)
        self.memory, self.max_model_len = carving.memory, carving.max_model_len
        runs_ahead = self.device.is_asynchronous if config.async_scheduling is None else config.async_scheduling
        runs_ahead = runs_ahead and config.speculative_config is None
        self._serving = make_serving(config, started.model, carving, self._stops, runs_ahead)

    def touch_blocks(self, num_blocks: int) -> None:
        """Write to the ``num_blocks`` blocks that the pool hands out first, before a measurement. Nothing may have run.

        A CPU's memory is backed page by page as it is first written: without this the first steps measure the operating
        system, on a virtual machine whose host backs memory so too up to 5 ms for 2 MiB. A GPU's is backed at once.
        """
        assert self.serving.loop.num_steps == 0, "the prefix cache would find blocks that are empty"
        if not self.device.is_asynchronous:
            self.serving.runner.touch(min(num_blocks, self.memory.num_blocks))

    def touch_pool(self) -> int:
        """Write to the blocks that requests hold first, before any of them has to wait for memory: returns bytes.

        As many as ``max_num_seqs`` of the longest can hold, half of what the machine has left at most, and
        ``MOST_TOUCHED_BYTES``: that takes a second or two. None on a GPU. Nothing may have run.
        """
        if self.device.is_asynchronous or self.config.is_counted:
            return 0
        block_bytes = self.memory.block_bytes
        wanted = self.config.max_num_seqs * self.scheduler.pool.layout.blocks_for(self.max_model_len)
        affordable = min(MOST_TOUCHED_BYTES, available_memory_bytes() // 2) // block_bytes
        num_blocks = min(wanted, affordable, self.memory.num_blocks)
        self.touch_blocks(num_blocks)
        return num_blocks * block_bytes

    # ---- requests

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        lora_request: LoRARequest | None = None,
        cache_salt: str | None = None,
    ) -> Request:
        """Queue a prompt, for the model itself or with an adapter. cache_salt: see Request.

        EngineError when its id is taken, a token is out of range, it can never fit, or the adapter cannot be loaded.
        """
        prompt_token_ids = self._checked_prompt(request_id, prompt_token_ids)
        if self.config.is_counted:
            refuse_what_needs_logits(params)
        self._stops.check_params(params)
        params.check_vocabulary(self.model.config.vocab_size)
        adapter = None if lora_request is None else self.load_adapter(lora_request)
        request = Request(request_id, prompt_token_ids, params, prompt=prompt, adapter=adapter, cache_salt=cache_salt)
        request.stop_ids = self._stops.stop_ids(params)
        self.scheduler.add(request)
        self.serving.requests[request_id] = request
        return request

    def add_beam_search(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: BeamSearchParams,
        *,
        prompt: str | None = None,
        cache_salt: str | None = None,
    ) -> Request:
        """Queue a prompt for beam search; in the end its answers are in ``request.beams.finished``."""
        prompt_token_ids = self._checked_prompt(request_id, prompt_token_ids)
        if self.config.is_counted:
            refuse_beams()
        max_length = min(len(prompt_token_ids) + params.max_tokens, self.max_model_len)
        group: BeamGroup[Sequence] = BeamGroup(params, frozenset(self.model.config.eos_token_ids), max_length)
        vocab_size = self.model.config.vocab_size
        request = make_beam_request(
            request_id, prompt_token_ids, group, vocab_size, prompt=prompt, cache_salt=cache_salt
        )
        self.scheduler.add(request)
        group.start(request.sequences)
        self.serving.requests[request_id] = request
        return request

    def _checked_prompt(self, request_id: str, prompt_token_ids: list[int]) -> list[int]:
        prompt_token_ids = checked_token_ids("a prompt", prompt_token_ids)
        if request_id in self.serving.requests:
            raise EngineError(f"request id '{request_id}' is in use.")
        vocab_size = self.model.config.vocab_size
        if prompt_token_ids and not (min(prompt_token_ids) >= 0 and max(prompt_token_ids) < vocab_size):
            raise EngineError(f"a token of request '{request_id}' lies outside the vocabulary of {vocab_size:,}.")
        return prompt_token_ids

    def load_adapter(self, lora_request: LoRARequest) -> AdapterKey:
        """Hold an adapter in host memory. EngineError where it cannot be read, or there is no room for it."""
        if not self.config.enable_lora:
            raise EngineError(
                f"adapter '{lora_request.name}' cannot be loaded: the engine serves none.", hint="set enable_lora=True"
            )
        if self.model.adapters is None:  # memory is only counted
            return AdapterKey(lora_request.name, lora_request.name.encode())
        return self.model.adapters.key_of(lora_request, self._adapters_in_use)

    def add_dummy_adapter(self, name: str, seed: int = 0) -> LoRARequest:
        """Hold an adapter of random weights and the largest rank; requests with what this returns are served with it.

        EngineError where no adapters are served, or there is no room for it.
        """
        request = LoRARequest(name, f"dummy weights of seed {seed}")
        library = self.model.adapters
        if library is not None:
            adapter = dummy_adapter(self.model.config, self.config.max_lora_rank, self.model.dtype, seed)
            library.hold(request, adapter, self._adapters_in_use)
        self.load_adapter(request)
        return request

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter. EngineError where none of this name is held, or its requests are unfinished."""
        if self.model.adapters is None:
            raise EngineError(f"no adapter is called '{name}'.", hint="the engine serves none")
        self.model.adapters.forget(name, self._adapters_in_use)

    @property
    def _adapters_in_use(self) -> set[AdapterKey]:
        return {request.adapter for request in self.serving.requests.values() if request.adapter is not None}

    def abort(self, request_id: str, index: int | None = None) -> bool:
        """Stop a request, or only its sample ``index``, and return the blocks. Whether nothing of it is left.

        One that is unknown or finished is not an error. Samples other than 0 exist from the first token on, so that a
        request whose sample 0 is stopped before it has ended.
        """
        request = self.serving.requests.get(request_id)
        if request is None:
            return True
        for sequence in request.sequences:
            if index in (None, sequence.index) and sequence.status is not SequenceStatus.FINISHED:
                self.scheduler.finish(sequence, FinishReason.ABORT)
        is_over = index is None or request.is_finished
        if is_over:
            del self.serving.requests[request_id]
        return is_over

    def has_unfinished_requests(self) -> bool:
        return self.scheduler.has_unfinished

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False, and nothing is forgotten, while a request is unfinished."""
        if self.has_unfinished_requests():
            return False
        self.prefix_cache.reset()
        return True

    # ---- steps

    def step(self) -> Rows[StepOutput]:
        """Run a step; returns the new tokens, in the order of the batch's rows.

        With async scheduling these are the tokens of the step before. [] when there are none yet, or nothing to do.
        RankDied where several ranks share every layer and one of them is lost.
        """
        outputs = self.serving.loop.step()
        if self.ranks is not None and self.device.is_asynchronous:
            self.ranks.check()  # collectives on a GPU that were ended for its sake have left anything
        return outputs

    def observe_steps(self, observer: StepObserver | None) -> None:
        """Tell ``observer`` of every step from now on, None to stop. A reconfigured engine has none."""
        self.serving.loop.observer = UNOBSERVED if observer is None else observer

    @property
    def stats(self) -> StepStats:
        """Counts and times of the step whose tokens came last: another object for each."""
        return self.serving.loop.stats

    def get_stats(self) -> dict[str, Any]:
        """KV usage, queues and cache hits now, under the names of vLLM's metrics where it has them."""
        return {
            **scheduler_stats(self.scheduler),
            **self.serving.offload.get_stats(),
            "num_steps": self.serving.loop.num_steps,
            "num_steps_ahead": self.serving.loop.num_ahead,
            "num_graph_replays": self.serving.runner.num_graph_replays,
            "longest_stall_seconds": self.serving.output_processor.longest_stall_seconds,
            **self._draft_stats(),
            "memory": asdict(self.memory),
        }

    @property
    def draft_counts(self) -> DraftCounts:
        """Which drafts were accepted since the pool was made."""
        return self.serving.output_processor.draft_counts

    def _draft_stats(self) -> dict[str, Any]:
        """Counts of drafts under the names of vLLM's metrics; none without speculation, as there."""
        if self.config.speculative_config is None:
            return {}
        counts = self.draft_counts
        return {
            "spec_decode_num_drafts": counts.num_drafts,
            "spec_decode_num_draft_tokens": counts.num_draft_tokens,
            "spec_decode_num_accepted_tokens": counts.num_accepted_tokens,
            "spec_decode_num_accepted_tokens_per_pos": list(counts.accepted_per_position),
        }

    def layout_waste_pct(self) -> float | None:
        """What decoding sequences hold beyond what the architecture keeps of them now, in percent; None without any."""
        sequences = self.scheduler.running.decoding.sequences
        tables = ((each.table, max(each.num_computed_tokens - 1, 0)) for each in sequences)
        return layout_waste_pct(self.scheduler.pool.layout, tables)

    def check(self) -> None:
        """Assert every invariant of scheduler and pool (tests run it after every step)."""
        self.scheduler.check()


def _closed() -> EngineError:
    return EngineError("the engine is closed.", hint="start a new one")
