"""A batch's tensors and outputs that are made when they are looked at: those of builders without memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_answers import small_llm
from scheduler_harness import SchedulerHarness
from small_models import Checkpoint

from kvplan_engine import SamplingParams
from kvplan_engine.attention.layer_cache import TablePlace
from kvplan_engine.blocks.layout import KvLayout, plan_layout, uniform_layout
from kvplan_engine.description.kept_units import KeptUnit
from kvplan_engine.description.mixers import FULL, STATE, Kept
from kvplan_engine.execution.inputs.batch import BatchBuilder
from kvplan_engine.memory.step_buffers import index_buffers
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.step_batch import StepBatch
from kvplan_engine.requests.outputs import PlainOutputs
from kvplan_engine.requests.step_plan import StepPlan

BLOCK_SIZE, MAX_LEN, NUM_SEQS, NUM_TOKENS = 3, 30, 5, 12


PAGE_BYTES = 48  # of three tokens
UNIFORM = uniform_layout(BLOCK_SIZE, block_bytes=PAGE_BYTES)
WINDOWS = uniform_layout(BLOCK_SIZE, block_bytes=PAGE_BYTES, kept=Kept("window", 7))
GROUPS = plan_layout(
    [
        KeptUnit(layer, part, kept, PAGE_BYTES // BLOCK_SIZE)
        for layer, kept in enumerate([Kept("window", 4), FULL, Kept("window", 4), Kept("window", 4), Kept("chunk", 6)])
        for part in ("keys", "values")
    ],
    BLOCK_SIZE,
    lambda _: 1,
)
_STATES = [
    KeptUnit(0, "conv", STATE, 8, num_rows=3),
    KeptUnit(0, "recurrent", STATE, 20, num_rows=6),
    KeptUnit(2, "recurrent", STATE, 20, num_rows=6),
]
_FULL = [KeptUnit(1, part, FULL, PAGE_BYTES // BLOCK_SIZE) for part in ("keys", "values")]
HYBRID = plan_layout([_STATES[0], *_FULL, *_STATES[1:]], BLOCK_SIZE, lambda _: 1)
STATES = plan_layout(_STATES, BLOCK_SIZE, lambda _: 1)
LAYOUTS = {"uniform": UNIFORM, "windows": WINDOWS, "groups": GROUPS, "hybrid": HYBRID, "states": STATES}


def places(layout: KvLayout) -> list[TablePlace]:
    """Every block of every bundle, as keys and as values of some layer."""
    return [
        TablePlace(index, slot, group.width - 1 - slot)
        for index, group in enumerate(layout.groups)
        for slot in range(group.width)
        if not group.is_state
    ]


def builder(layout: KvLayout) -> BatchBuilder:
    specs = index_buffers(layout, max_num_batched_tokens=NUM_TOKENS, max_num_seqs=NUM_SEQS, max_model_len=MAX_LEN)
    workspace = Workspace(specs, torch.device("cpu"))
    workspace.touch()
    return BatchBuilder(workspace, layout, [spec.name for spec in specs], places(layout))


def content(batch: StepBatch, plan: StepPlan) -> list[object]:
    """All that the model reads of the step; of the tables only the blocks that the sequences hold."""
    found: list[object] = [batch.token_ids.tolist(), batch.positions.tolist(), batch.sampled_rows.tolist()]
    found.append(batch.sampled)
    for place, attention in batch.attention.items():
        held = [len(item.sequence.table.groups[place.group].bundles) for item in plan.scheduled]
        for tables in filter(lambda each: each is not None, (attention.block_tables, attention.value_tables)):
            found.append([row[:number] for row, number in zip(tables.tolist(), held, strict=True)])
        slots = (attention.slots.keys, attention.slots.values)
        found += [None if each is None else each.tolist() for each in slots]
        found += [attention.seq_lens.tolist(), attention.query_starts.tolist()]
    if batch.states is not None:
        found += [batch.states.tables.tolist(), batch.states.query_starts.tolist(), batch.states.positions.tolist()]
    return found


def defined(batch: StepBatch, plan: StepPlan) -> None:
    """Assert what the tables and slots mean: the place of every token that each group holds."""
    for place, attention in batch.attention.items():
        value_tables = attention.block_tables if attention.value_tables is None else attention.value_tables
        value_slots = attention.slots.keys if attention.slots.values is None else attention.slots.values
        row_of_token = 0
        for row, item in enumerate(plan.scheduled):
            table = item.sequence.table.groups[place.group]
            first = item.sequence.num_computed_tokens
            assert attention.seq_lens[row] == first + item.num_new_tokens - table.first * BLOCK_SIZE
            for index, bundle in enumerate(table.bundles):
                blocks = item.sequence.table.blocks_of(bundle)
                assert attention.block_tables[row, index] == blocks[place.key_slot]
                assert value_tables[row, index] == blocks[place.value_slot]
            for position in range(first, first + item.num_new_tokens):
                blocks = item.sequence.table.blocks_of(table.bundles[position // BLOCK_SIZE - table.first])
                offset = position % BLOCK_SIZE
                assert attention.slots.keys[row_of_token] == blocks[place.key_slot] * BLOCK_SIZE + offset
                assert value_slots[row_of_token] == blocks[place.value_slot] * BLOCK_SIZE + offset
                row_of_token += 1
    if batch.states is not None:
        assert batch.num_seqs == len(plan.scheduled) == batch.states.num_seqs
        for row, item in enumerate(plan.scheduled):
            (bundle,) = item.sequence.table.groups[-1].bundles
            assert batch.states.tables[row].tolist() == list(item.sequence.table.blocks_of(bundle))
            start = int(batch.states.query_starts[row])
            assert batch.states.positions[start] == item.sequence.num_computed_tokens
            assert batch.states.query_starts[row + 1] - start == item.num_new_tokens


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("seed", range(6))
def test_a_builder_that_remembers_and_one_that_does_not_agree(layout: KvLayout, seed: int) -> None:
    harness = SchedulerHarness(
        num_blocks=_num_blocks(layout),
        block_size=BLOCK_SIZE,
        max_num_seqs=NUM_SEQS,
        max_num_batched_tokens=NUM_TOKENS,
        max_model_len=MAX_LEN,
        num_swap_slots=20 * max(layout.widths) if seed % 2 else 0,
        seed=seed,
        layout=layout,
    )
    remembering = builder(layout)
    commit = harness.scheduler.commit
    num_compared = 0
    latest = None

    def compare_and_commit(plan: StepPlan) -> None:
        nonlocal num_compared
        if plan.num_tokens:
            unknown = replace(plan, fresh_rows=list(range(len(plan.decodes))))
            batch = remembering.build(plan, latest)
            defined(batch, plan)
            assert content(batch, plan) == content(builder(layout).build(unknown), plan)
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
    assert harness.scheduler.num_preemptions > 0 or layout is STATES  # which take no more as they grow


def _num_blocks(layout: KvLayout) -> int:
    """Few enough that sequences are preempted."""
    if layout is GROUPS:
        return 10 * layout.token_blocks
    states = sum(group.width for group in layout.groups if group.is_state)
    return 14 * layout.token_blocks + 3 * states


def test_outputs_of_plain_steps_and_of_ending_ones(checkpoints: dict[str, Checkpoint]) -> None:
    engine = small_llm(checkpoints["gpt2"].path, max_model_len=64).engine
    lengths = {"a": 5, "b": 9, "c": 9}
    requests = {
        name: engine.add_request(
            name, [ord(name)] * 3, SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
        )
        for name, length in lengths.items()
    }
    seen: dict[str, list[int]] = {name: [] for name in lengths}
    kept, num_plain = [], 0
    while engine.has_unfinished_requests():
        outputs = engine.step()
        num_plain += isinstance(outputs, PlainOutputs)
        kept.append((outputs, [(output.request_id, output.new_token_ids) for output in outputs]))
        for output in outputs:
            assert output.index == 0
            seen[output.request_id] += output.new_token_ids
            is_last = len(seen[output.request_id]) == lengths[output.request_id]
            assert output.finished == is_last
            assert output.finish_reason == ("length" if is_last else None)
    assert seen == {name: request.sequences[0].output_token_ids for name, request in requests.items()}
    assert num_plain >= 3
    for outputs, then in kept:  # still the same when the engine has gone on
        assert [(output.request_id, output.new_token_ids) for output in outputs] == then
        assert len(outputs) == len(then)
        assert [outputs[row].new_token_ids for row in range(len(outputs))] == [tokens for _, tokens in then]
        assert [output.new_token_ids for output in outputs[-1:]] == [then[-1][1]]
