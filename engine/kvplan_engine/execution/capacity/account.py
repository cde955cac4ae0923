"""Capacity without tensors (``load_format="none"``): the memory is divided as it would be, and nothing is allocated.

Everything that decides who runs when is the real one: scheduler, block pool, prefix cache, swap space, host tier,
preemption, and how sequences end. Weights, workspace and KV pool are bytes in an account: those that the engine would
allocate for these settings. There is no profile step: overhead is the device's constant, and a GPU's graphs, which
only a start can measure, are not counted. Nor is the room in which a GPU widens weights in few bits: a config does not
say which those are.

``rank_accounts`` gives all of this instead, as another engine would take it; what is left is divided by the same rules.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NoReturn

from kvplan_engine.config import EngineConfig
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.device.counted import CountedDevice
from kvplan_engine.errors import EngineError
from kvplan_engine.execution.capacity.runner import CapacityRunner
from kvplan_engine.execution.carving import Carving
from kvplan_engine.memory.device_buffers import cuda_buffers
from kvplan_engine.memory.plan import kv_layout, resolve_max_model_len
from kvplan_engine.memory.ranks import Needs, plan_ranks
from kvplan_engine.memory.reserve import Reserve
from kvplan_engine.memory.step_buffers import draft_buffers, step_buffers
from kvplan_engine.models.counted_model import CountedModel
from kvplan_engine.requests.sampling_params import SamplingParams

# Without a measured step, recomputing costs more than any copy: what there is room for is swapped and cached.
_UNKNOWN_SECONDS_PER_TOKEN = math.inf
_WITH_TENSORS = "use load_format 'dummy', or real weights"


def refuse_what_needs_logits(params: SamplingParams) -> None:
    """EngineError for log-probabilities and stop strings: random tokens have no probability, and mean no text."""
    asked = "log-probabilities" if params.logprobs is not None else "stop strings" if params.stop_strings else None
    if asked is not None:
        raise EngineError(f"load_format 'none' draws random tokens, so it has no {asked}.", hint=_WITH_TENSORS)


def refuse_beams() -> NoReturn:
    """EngineError: a search follows probabilities."""
    raise EngineError("load_format 'none' draws random tokens, so no beam is better.", hint=_WITH_TENSORS)


class CapacityCarver:
    """Divides the memory that the weights of ``model`` would leave, any number of times."""

    def __init__(self, model: CountedModel, device: CountedDevice) -> None:
        self._model = model
        self._device = device

    def settle(self, config: EngineConfig) -> Reserve:
        """See MemoryCarver.settle: nothing is measured."""
        return Reserve(self._device.total_bytes, self._device.overhead_bytes, 0)

    def carve(self, config: EngineConfig) -> Carving:
        """See MemoryCarver.carve: the same errors, nothing allocated."""
        model = self._model
        max_model_len = resolve_max_model_len(config, model.config)
        if config.drafts_with_model and model.drafter is None:
            raise EngineError("the engine was started without this drafter.", hint="start a new one")
        drafter = model.drafter if config.drafts_with_model else None
        layout = kv_layout(config, model.config, model.dtype, max_model_len, drafter)
        stages = [(model.config, model.weight_bytes), *model.other_stages]
        needs = [self._needs(config, *stage, max_model_len, drafter) for stage in stages]
        if config.rank_accounts is not None:
            needs = [
                replace(each, workspace_bytes=account.activation_bytes, overhead_bytes=account.overhead_bytes)
                for each, account in zip(needs, config.rank_accounts, strict=True)
            ]
        total = self._device.total_bytes
        memory = plan_ranks(config, layout, max_model_len, needs, device_total_bytes=total)
        runner = CapacityRunner(model.config.vocab_size, config.seed)
        return Carving(runner, memory, layout, max_model_len, _UNKNOWN_SECONDS_PER_TOKEN)

    def _needs(
        self,
        config: EngineConfig,
        part: ModelDescription,
        weight_bytes: int,
        max_model_len: int,
        drafter: ModelDescription | None,
    ) -> Needs:
        dtype = self._model.dtype
        layout = kv_layout(config, part, dtype, max_model_len, drafter)
        of_kernels = cuda_buffers(config, part, holds_few_bits=False) if self._device.kind == "cuda" else []
        buffers = step_buffers(part, dtype, config, layout, max_model_len, of_kernels=of_kernels)
        if drafter is not None:
            buffers += draft_buffers(drafter, dtype, config, layout, max_model_len)
        workspace_bytes = sum(buffer.num_bytes for buffer in buffers)
        return Needs(weight_bytes, workspace_bytes, self._device.overhead_bytes, layout.block_bytes)
