"""One step at the largest batch, to measure what a step takes beyond the buffers that are reserved for it.

On a CPU such a step takes seconds. Layers of one kind need the same memory and time, so there the step runs only the
first layers that include every kind, and its time is scaled up.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from kvplan_engine.blocks.block_pool import BlockPool
from kvplan_engine.blocks.block_table import BlockTable
from kvplan_engine.blocks.layout import KvLayout
from kvplan_engine.config import EngineConfig
from kvplan_engine.execution.model_runner import ModelRunner
from kvplan_engine.memory.breakdown import SAMPLER_ROWS, MemoryBreakdown
from kvplan_engine.models.decoder import Decoder
from kvplan_engine.requests.request import Request, Sequence
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.requests.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class ProfilePeak:
    """peak_bytes: the workspace plus what the step took on top. extra_bytes: the latter alone.

    seconds_per_token: of this large prefill step, with all layers.
    """

    peak_bytes: int
    extra_bytes: int
    seconds_per_token: float


def measure_profile_step(
    runner: ModelRunner, config: EngineConfig, memory: MemoryBreakdown, layout: KvLayout, max_model_len: int
) -> ProfilePeak:
    """Run a step of ``max_num_batched_tokens`` tokens over as many sequences as allowed, and sample for each."""
    pool = BlockPool(memory.num_blocks, layout)
    plan, sequences = _largest_step(config, pool, max_model_len)
    runner.touch(pool.num_used_blocks)
    if runner.device.is_asynchronous:
        _run(runner, plan)  # compiles kernels and loads libraries, which is not part of a step's time
    with runner.device.peak() as peak:
        seconds = _seconds_of_step(runner, plan)
    for sequence in sequences:
        sequence.table.release()
    return ProfilePeak(
        memory.activation_bytes + peak.bytes_above_start, peak.bytes_above_start, seconds / plan.num_tokens
    )


def _decoder_to_shorten(runner: ModelRunner) -> Decoder | None:
    """None on a GPU, for a class that runs its own layers, beside other ranks, and where it would save little."""
    decoder = runner.decoder
    if runner.device.is_asynchronous or not isinstance(decoder, Decoder) or not decoder.model.is_whole:
        return None
    return decoder if 2 * decoder.model.num_first_of_each <= decoder.model.num_layers else None


def _seconds_of_step(runner: ModelRunner, plan: StepPlan) -> float:
    """Seconds of a step of all layers. A shortened one runs twice, so that one-off costs are not scaled up."""
    decoder = _decoder_to_shorten(runner)
    if decoder is None:
        return _run(runner, plan)
    num_layers = decoder.model.num_first_of_each
    with decoder.shortened(num_layers):
        _run(runner, plan, all_rows=True)
        seconds = _run(runner, plan, all_rows=True)
    return seconds + decoder.layers_seconds * (decoder.model.num_layers / num_layers - 1)


def _run(runner: ModelRunner, plan: StepPlan, *, all_rows: bool = False) -> float:
    """The whole step, until its tokens are drawn; its seconds. all_rows: the last layer runs for all as well."""
    started = time.perf_counter()
    batch = runner.prepare(plan)
    logits = runner.forward(replace(batch, sampled_attention=None) if all_rows else batch)
    plan.sampled = batch.sampled[:SAMPLER_ROWS]  # the others are sampled in the same memory
    runner.chooser.sample_step(logits, plan)
    return time.perf_counter() - started


def _largest_step(config: EngineConfig, pool: BlockPool, max_model_len: int) -> tuple[StepPlan, list[Sequence]]:
    num_tokens = config.max_num_batched_tokens
    num_seqs = min(config.max_num_seqs, num_tokens, pool.num_blocks)
    # top_p takes the sampler's longest path
    params = SamplingParams(temperature=1.0, top_p=0.9)
    plan = StepPlan()
    sequences = []
    for index in range(num_seqs):
        share = num_tokens // num_seqs + (1 if index < num_tokens % num_seqs else 0)
        share = pool.layout.largest_sequence(pool.num_free_blocks, min(share, max_model_len), share)
        if share == 0:
            break
        sequence = Sequence(Request(f"profile-{index}", [0] * share, params), 0, [0] * share, BlockTable(pool))
        sequence.table.reserve(0, share)
        plan.add(sequence, share)
        sequences.append(sequence)
    return plan, sequences
