"""Where an engine begins: device, model, and who divides the memory; with tensors, or counted without any."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from kvplan_engine.blocks.block_pool import BlockPool
from kvplan_engine.blocks.block_table import BlockTable
from kvplan_engine.checkpoints.families.multi_token import multi_token_model
from kvplan_engine.checkpoints.hub import resolve_source
from kvplan_engine.checkpoints.loaders import plan_held_weights, read_config
from kvplan_engine.checkpoints.quantised.held import refuse_held
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.division import Rank, part_of
from kvplan_engine.device.allocation import allocating, is_out_of_memory, loading_weights
from kvplan_engine.device.device import CpuDevice, Device, count_device, open_device, resolve_dtype
from kvplan_engine.errors import EngineError, OutOfDeviceMemory
from kvplan_engine.execution.capacity import CapacityCarver
from kvplan_engine.execution.carving import Carving, MemoryCarver
from kvplan_engine.execution.model_runner import ModelRunner
from kvplan_engine.execution.ranks.group import RankGroup
from kvplan_engine.execution.ranks.leading import LeadingCarver
from kvplan_engine.memory.plan import Reserve, kv_layout, resolve_max_model_len
from kvplan_engine.models.counted_model import CountedModel, EngineModel
from kvplan_engine.models.known_parts import refuse_unknown_parts
from kvplan_engine.models.loaded_model import LoadedModel
from kvplan_engine.requests.request import Request, Sequence
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.transformers_backend.model import RunnableModel, TransformersModel
from kvplan_engine.transformers_backend.ways import chosen_implementation

# Before a class of transformers serves anything: its steps over the pool against its own forward pass.
#
# Two short sequences of random tokens run as an engine would run them (pieces of prompts, several sequences in a step,
# tokens one by one), and each step's logits are compared with what the class gives for the whole sequence at once.


logger = logging.getLogger("kvplan_engine")

_STEPS = ((9, 6), (5, 1), (1, 1), (1, 4))
"""How many tokens each of the two sequences computes in each step."""
_LENGTHS = tuple(sum(counts) for counts in zip(*_STEPS, strict=True))
_BLOCK_SIZE = 4
_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1, "float16": 0.02}
"""Largest norm of a difference by the logits' own. Wrong kernels differ by 0.1 to 1 in float32, right ones by 1e-6."""

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


class Carver(Protocol):
    """Divides the memory that the weights leave."""

    def carve(self, config: EngineConfig) -> Carving:
        """OutOfDeviceMemory or ContextTooLong when that is not possible."""
        ...

    def settle(self, config: EngineConfig) -> Reserve:
        """What the next pool, if it is for ``config``, is going to leave free, or is refused with."""
        ...


@dataclass(frozen=True, slots=True)
class Started:
    """What stays while pools come and go. ranks: that share every layer with this one, None where none do."""

    device: Device
    model: EngineModel
    carver: Carver
    ranks: RankGroup | None = None


def start(config: EngineConfig, source: Any) -> Started:
    """``source`` loaded on the device that ``config`` names. OutOfDeviceMemory or EngineError."""
    if config.is_counted:
        return _count(config, source)
    return _load_divided(config, source) if config.num_ranks > 1 else _load(config, source)


def _load_divided(config: EngineConfig, source: Any) -> Started:
    """The first rank's part here, and the others' in processes of their own."""
    count, each = config.num_ranks, Rank.all_of(config.tensor_parallel_size, config.pipeline_parallel_size)
    # what cannot be divided is refused before a process is started
    whole = read_config(source, whole_experts=config.enable_expert_parallel)
    refuse_unknown_parts(whole)
    for rank in each:
        part_of(whole, rank)
    refuse_held(plan_held_weights(whole, source, config.load_format, config.quantization, config.seed))
    device = open_device(config.device, config.device_memory, count)
    kind = "cuda" if device.is_asynchronous else "cpu"
    if kind == "cuda" and torch.cuda.device_count() < count:
        raise EngineError(
            f"{count} ranks need as many GPUs, and there are {torch.cuda.device_count()}.",
            hint="lower tensor_parallel_size or pipeline_parallel_size, or use device='cpu'",
        )
    ranks = RankGroup(each)
    try:
        of_rank = replace(config, device=kind, device_memory=device.total_bytes if kind == "cpu" else None)
        collectives = ranks.load(of_rank, source, on_gpu=device.is_asynchronous)
        with loading_weights():
            model = LoadedModel(config, source, device, _dtype_on(device, config), collectives)
        ranks.loaded()
    except BaseException:
        ranks.close()
        raise
    return Started(device, model, LeadingCarver(model, device, ranks, collectives), ranks)


def _dtype_on(device: Device, config: EngineConfig) -> Callable[[str], str]:
    """The dtype that a model published in another one is computed in."""
    return lambda model_dtype: resolve_dtype(config.dtype, model_dtype, device)


def _load(config: EngineConfig, source: Any) -> Started:
    implementation = chosen_implementation(config, source)  # imports what it needs before memory is measured
    device = _open_partly_backed(config) if config.shares_layers else open_device(config.device, config.device_memory)
    if config.drafts_with_model:
        _refuse_drafter(config, source, device)
    dtype_of = _dtype_on(device, config)
    model: RunnableModel
    with loading_weights():
        if implementation == "native":
            model = LoadedModel(config, source, device, dtype_of)
        else:
            model = TransformersModel(config, source, device, dtype_of)
    if config.drafts_with_model and isinstance(model, LoadedModel):
        _add_drafter(model, config, source, device)
    if isinstance(model, TransformersModel):
        choose_way(model, config, device)
    return Started(device, model, MemoryCarver(model, device))


def _refuse_drafter(config: EngineConfig, source: Any, device: Device) -> None:
    """EngineError for a drafter that cannot run, before anything is loaded."""
    if device.is_asynchronous:
        raise EngineError(
            "a drafter with layers of its own runs on the CPU alone.", hint="use device='cpu', or method 'ngram'"
        )
    if config.drafts_with_own_layer:
        if str(source).endswith(".gguf"):
            raise EngineError(
                "no layer for multi-token prediction is read from a .gguf file.", hint="use method 'ngram'"
            )
        multi_token_model(read_config(source))


def _add_drafter(model: LoadedModel, config: EngineConfig, source: Any, device: Device) -> None:
    """Load what ``config`` names to draft, as it is stored. OutOfDeviceMemory or EngineError."""
    assert config.speculative_config is not None
    kept = ["device", "dtype", "load_format", "seed", "attention_backend"]
    name, target = config.speculative_config.model, None
    if config.drafts_with_own_layer:
        name, target = config.model, model
        kept += ["quantization", "group_size"]
    else:
        source = resolve_source(name, config.load_format).loadable
    own = EngineConfig(name, **{setting: getattr(config, setting) for setting in kept})
    with loading_weights():
        model.drafter = LoadedModel(own, source, device, _dtype_on(device, own), target=target)
    model.weight_bytes += model.drafter.weight_bytes


def _open_partly_backed(config: EngineConfig) -> Device:
    """A CPU's memory may be more than is free: most of the weights exist only in the account."""
    if config.device != "cpu" or config.device_memory is None:
        return open_device(config.device, config.device_memory)
    return CpuDevice(config.device_memory)


def _count(config: EngineConfig, source: Any) -> Started:
    device = count_device(config.device, config.device_memory)
    model = CountedModel(config, source, device)
    return Started(device, model, CapacityCarver(model, device))
