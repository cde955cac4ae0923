"""Before a class of transformers serves anything: its steps over the pool against its own forward pass.

Two short sequences of random tokens run as an engine would run them (pieces of prompts, several sequences in a step,
tokens one by one), and each step's logits are compared with what the class gives for the whole sequence at once.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from kvplan_engine.blocks.block_pool import BlockPool
from kvplan_engine.blocks.block_table import BlockTable
from kvplan_engine.config import EngineConfig
from kvplan_engine.device.allocation import allocating, is_out_of_memory
from kvplan_engine.device.device import Device
from kvplan_engine.errors import EngineError, OutOfDeviceMemory
from kvplan_engine.execution.model_runner import ModelRunner
from kvplan_engine.memory.plan import kv_layout, resolve_max_model_len
from kvplan_engine.requests.request import Request, Sequence
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.transformers_backend.model import TransformersModel

logger = logging.getLogger("kvplan_engine")

_STEPS = ((9, 6), (5, 1), (1, 1), (1, 4))
"""How many tokens each of the two sequences computes in each step."""
_LENGTHS = tuple(sum(counts) for counts in zip(*_STEPS, strict=True))
_BLOCK_SIZE = 4
_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1, "float16": 0.02}
"""Of the difference's norm, by the logits' own. What is wrong differs by 0.1 to 1 in float32, what is right by 1e-6."""

_FAILURES = (EngineError, RuntimeError, ValueError, TypeError, AttributeError, LookupError)
"""What a class may raise that is not made for a way: its code is not ours."""


def choose_way(model: TransformersModel, config: EngineConfig, device: Device) -> None:
    """Let ``model`` run by the first of its ways that gives what its class gives. EngineError where none does."""
    found = []
    for make in model.ways:
        try:
            way = make()
            model.run_by(way)
            with allocating("runtime"):
                check_steps(model, config, device)
        except _FAILURES as problem:
            if isinstance(problem, OutOfDeviceMemory) or is_out_of_memory(problem):
                raise
            found.append(str(problem).splitlines()[0] if str(problem) else type(problem).__name__)
            continue
        logger.info("%s runs in transformers, %s", model.config.architecture, way.name)
        return
    raise EngineError(
        f"{model.config.architecture} does not run through transformers: {found[-1].rstrip('.')}.",
        hint="load_format='none' measures its capacity without computing anything",
    )


def check_steps(model: TransformersModel, config: EngineConfig, device: Device) -> None:
    """EngineError where a step's logits are not those of the class."""
    small = _small(config, model)
    max_model_len = resolve_max_model_len(small, model.config)
    layout = kv_layout(small, model.config, model.dtype, max_model_len)
    pool = BlockPool(sum(layout.blocks_for(length, length) for length in _LENGTHS), layout)
    sequences = _sequences(model.config.vocab_size, pool)
    wanted = _logits_of_whole(model, sequences, device)
    runner = ModelRunner(model, small, device, layout, max_model_len)
    runner.carve_pool(pool.num_blocks, small.kv_dtype(model.dtype))
    for counts in _STEPS:
        found = _step(runner, sequences, counts)
        rows = [whole[sequence.num_computed_tokens - 1] for whole, sequence in zip(wanted, sequences, strict=True)]
        _compare(found, torch.stack(rows), _TOLERANCE[model.dtype])


def _small(config: EngineConfig, model: TransformersModel) -> EngineConfig:
    longest = max(_LENGTHS)
    limit = model.config.max_position_embeddings
    return replace(
        config,
        max_model_len=longest if limit is None else min(limit, longest),
        max_num_seqs=len(_LENGTHS),
        max_num_batched_tokens=max(map(sum, _STEPS)),
        block_size=_BLOCK_SIZE,
        kv_cache_dtype="auto",
    )


def _sequences(vocab_size: int, pool: BlockPool) -> list[Sequence]:
    generator = torch.Generator().manual_seed(0)
    params = SamplingParams(temperature=0.0)
    made = []
    for index, length in enumerate(_LENGTHS):
        tokens = torch.randint(vocab_size, (length,), generator=generator).tolist()
        made.append(Sequence(Request(f"check-{index}", tokens, params), 0, tokens, BlockTable(pool)))
    return made


def _logits_of_whole(model: TransformersModel, sequences: list[Sequence], device: Device) -> list[torch.Tensor]:
    model.use_own_attention()
    return [
        model.split.whole(torch.tensor(sequence.token_ids, device=device.torch_device)).float()
        for sequence in sequences
    ]


def _step(runner: ModelRunner, sequences: list[Sequence], counts: tuple[int, ...]) -> torch.Tensor:
    """Logits [S, vocab_size] behind each sequence's next ``counts`` tokens."""
    plan = StepPlan()
    for sequence, count in zip(sequences, counts, strict=True):
        first = sequence.num_computed_tokens
        sequence.table.reserve(first, first + count)
        plan.add(sequence, count)
    plan.chunks = [replace(item, needs_sampling=True) for item in plan.chunks]
    logits = runner.forward(runner.prepare(plan)).float().clone()
    for sequence, count in zip(sequences, counts, strict=True):
        sequence.num_computed_tokens += count
    return logits


def _compare(found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    difference = float((found - wanted).norm() / wanted.norm().clamp_min(1e-30))
    if not difference <= tolerance:
        raise EngineError(f"its logits over the pool differ from its own by {difference:.1e} of their size.")
