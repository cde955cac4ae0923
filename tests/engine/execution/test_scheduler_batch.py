"""The batch's tensors, built from what changed, are those that a builder without memory would make."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scheduler_harness import SchedulerHarness

from kvplan_engine.execution.batch import BatchBuilder
from kvplan_engine.memory.breakdown import BufferSpec
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.step_batch import StepBatch
from kvplan_engine.requests.step_plan import StepPlan

BLOCK_SIZE, MAX_LEN, NUM_SEQS, NUM_TOKENS = 3, 30, 5, 12


def builder() -> BatchBuilder:
    specs = [BufferSpec(name, (NUM_TOKENS,), "int64") for name in ("token_ids", "positions", "slots")]
    specs += [BufferSpec("block_tables", (NUM_SEQS, MAX_LEN // BLOCK_SIZE), "int32")]
    specs += [BufferSpec("seq_lens", (NUM_SEQS,), "int32"), BufferSpec("query_starts", (NUM_SEQS + 1,), "int32")]
    workspace = Workspace(specs, torch.device("cpu"))
    workspace.touch()
    return BatchBuilder(workspace, BLOCK_SIZE)


def content(batch: StepBatch, plan: StepPlan) -> list[object]:
    attention = batch.attention
    tables = attention.block_tables.tolist()
    used = [row[: len(item.sequence.table)] for row, item in zip(tables, plan.scheduled, strict=True)]
    tensors = (batch.token_ids, batch.positions, attention.slots, attention.seq_lens, attention.query_starts)
    return [*(tensor.tolist() for tensor in tensors), batch.sampled_rows.tolist(), batch.sampled, used]


@pytest.mark.parametrize("seed", range(6))
def test_a_builder_that_remembers_and_one_that_does_not_agree(seed: int) -> None:
    harness = SchedulerHarness(
        num_blocks=14,
        block_size=BLOCK_SIZE,
        max_num_seqs=NUM_SEQS,
        max_num_batched_tokens=NUM_TOKENS,
        max_model_len=MAX_LEN,
        num_swap_slots=20 if seed % 2 else 0,
        seed=seed,
    )
    remembering = builder()
    commit = harness.scheduler.commit
    num_compared = 0
    latest = None

    def compare_and_commit(plan: StepPlan) -> None:
        nonlocal num_compared
        if plan.num_tokens:
            unknown = replace(plan, fresh_rows=list(range(len(plan.decodes))))
            assert content(remembering.build(plan, latest), plan) == content(builder().build(unknown), plan)
            num_compared += 1
        commit(plan)

    harness.scheduler.commit = compare_and_commit  # type: ignore[method-assign]
    for _ in range(150):
        if harness.rng.random() < 0.4:
            prompt = [harness.rng.randrange(2) for _ in range(harness.rng.randrange(1, 20))]
            harness.add(prompt, n=harness.rng.choice([1, 1, 3]), max_tokens=harness.rng.randrange(1, 15))
        if harness.requests and harness.rng.random() < 0.05:
            harness.abort(harness.rng.choice(sorted(harness.requests)))
        sampled = harness.step().sampled
        latest = np.array([sequence.token_ids[-1] for sequence in sampled]) if seed % 3 else None
    assert num_compared > 100
    assert harness.scheduler.num_preemptions > 0
