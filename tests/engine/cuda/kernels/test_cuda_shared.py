"""Prefixes that decoding sequences share: found on the device, attended to once, and merged with what follows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from cuda_cases import AttentionCase, Batch, attend, build_batch, largest_error, tolerance
from engine_answers import logits_behind, random_prompts
from fake_gpu import FakeGpu, take_gpu
from small_models import saved_model

from kvplan_engine import LLM, SamplingParams
from kvplan_engine.attention import cuda_plan
from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.kernels.cuda.launching.emulation import BACKWARD, EMULATED_PROPERTIES, FORWARD, EmulatedRuntime

F16, BF16, FP8 = torch.float16, torch.bfloat16, torch.float8_e4m3fn
SHUFFLED = 7
Groups = tuple[tuple[tuple[int, ...], int], ...]
"""Sequences, and the tokens that they have in common, whole blocks."""


@pytest.fixture(autouse=True)
def short_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefixes and parts of 64 tokens count."""
    monkeypatch.setattr(cuda_plan, "MIN_SHARED", 64)
    monkeypatch.setattr(cuda_plan, "MIN_PART", 64)


def runtime_of(order: int = FORWARD) -> EmulatedRuntime:
    """A device with room for more blocks than tiles, so that what is shared is cut into parts."""
    return EmulatedRuntime(replace(EMULATED_PROPERTIES, num_multiprocessors=8), order)


def share(batch: Batch, case: AttentionCase, groups: Groups) -> Batch:
    """The members' tables begin as their first one's."""
    for members, tokens in groups:
        blocks = tokens // case.block_size
        tables = batch.metadata.block_tables
        tables[list(members), :blocks] = tables[members[0], :blocks].clone()
    return batch


def shared_case(head_size: int, block_size: int, heads: int, kv_heads: int, *lengths: int, **options) -> AttentionCase:
    return AttentionCase(head_size, block_size, heads, kv_heads, lengths, (1,) * len(lengths), **options)


CASES = [
    # one alone, three that share, two that share less than is worth it, an empty one, two with a whole prefix in common
    (
        shared_case(64, 16, 6, 2, 90, 300, 161, 420, 70, 71, 0, 193, 200, scalar=BF16),
        (((1, 2, 3), 160), ((4, 5), 48), ((7, 8), 192)),
    ),
    # the same lengths in another order: who shares stands apart, and a table of zeros beside
    (
        shared_case(64, 16, 6, 2, 200, 300, 70, 161, 0, 90, 193, 420, 71, scalar=BF16),
        (((0, 6), 192), ((1, 3, 7), 160), ((2, 8), 48)),
    ),
    # more rows than a tile has, and a prefix that ends between multiples of 64
    (shared_case(64, 16, 4, 1, *range(150, 190), scalar=F16), ((tuple(range(40)), 144),)),
    (shared_case(128, 5, 7, 1, 205, 300, scalar=F16, softcap=3.0, sinks=True), (((0, 1), 200),)),
    (shared_case(128, 16, 4, 1, 130, 131, 132, scalar=BF16, cache=FP8), (((0, 1, 2), 128),)),
    (shared_case(256, 32, 2, 2, 97, 200, scalar=BF16), (((0, 1), 96),)),
]


MANY = (
    shared_case(64, 16, 2, 1, *[150 + number % 7 for number in range(300)], scalar=BF16),
    tuple((tuple(range(first, 300, 5)), 144 - 16 * first) for first in range(4)),
)
"""More sequences than the plan's block has threads, of five prompts in turn; one of these is of nobody else."""


def plan_in(backend: CudaBackend) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Items of decode and of shared prefixes that have work, the latter of a first member; each one's first item."""
    ((_, plan),) = backend._planner._step.plans.values()
    assert plan.shared is not None
    decode = plan.decode_items.view(-1, 8)[: plan.num_decode_items].tolist()
    shared = plan.shared.items.tolist()
    members = plan.shared.members.tolist()
    assert sorted(members) == list(range(len(members)))
    used = [[row for row in rows if row[0] >= 0] for rows in (decode, shared)]
    used[1] = [[members[row[0]], *row[1:]] for row in used[1]]
    return used[0], used[1], plan.shared.first_items.tolist()


@pytest.mark.parametrize(("case", "groups"), CASES, ids=str)
def test_shared_prefixes_match_the_reference_in_any_order(case: AttentionCase, groups: Groups) -> None:
    """Twice by one backend: what counts finished parts is zero again."""
    runtime, results = runtime_of(), []
    backend = CudaBackend(runtime, shares=True)
    for order in (FORWARD, BACKWARD, SHUFFLED):
        runtime.order = order
        batch = share(build_batch(case), case, groups)
        attend(backend, case, batch)
        assert largest_error(case, batch) < tolerance(case)
        results.append(batch.out.clone())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    buffers = backend._planner.buffers
    assert (buffers.finished_parts == 0).all()
    assert (buffers.finished == 0).all()


@pytest.mark.parametrize(("case", "groups"), [*CASES[:3], MANY], ids=str)
def test_each_token_of_a_shared_prefix_is_read_once_for_a_tile_of_rows(case: AttentionCase, groups: Groups) -> None:
    """What the items name is read: a group's tokens once for each 64 rows, others once for each sequence."""
    backend = CudaBackend(runtime_of(), shares=True)
    attend(backend, case, share(build_batch(case), case, groups))
    decode, shared, first_items = plan_in(backend)
    prefixes = dict.fromkeys(range(len(case.seq_lens)), 0)
    expected = 0
    for members, tokens in groups:
        if tokens < 64:
            continue
        prefix = tokens // 64 * 64
        prefixes |= dict.fromkeys(members, prefix)
        tiles = -(-len(members) * (case.num_query_heads // case.num_kv_heads) // 64)
        read = [row for row in shared if row[0] == members[0]]
        assert sum(row[3] - row[2] for row in read) == tiles * prefix
        assert all(row[7] == len(members) for row in read)
        expected += len(read)
    assert expected == len(shared) > len(groups), "some prefix is cut into parts"
    for sequence, prefix in prefixes.items():
        own = [row for row in decode if row[0] == sequence]
        assert sum(row[2] - row[1] for row in own) == case.seq_lens[sequence] - prefix
        assert {(row[3], row[4], row[7]) for row in own} == {
            (first_items[sequence], len(own) + (prefix > 0), int(prefix > 0))
        }
        assert min(row[1] for row in own) == prefix


def test_prompts_stand_beside_sequences_that_share() -> None:
    case = AttentionCase(64, 16, 6, 2, (150, 170, 40, 160, 165), (1, 1, 17, 1, 1), scalar=BF16)
    batch = share(build_batch(case), case, (((0, 4), 128), ((1, 3), 144)))
    backend = CudaBackend(runtime_of(), shares=True)
    attend(backend, case, batch)
    assert largest_error(case, batch) < tolerance(case)
    assert {row[0] for row in plan_in(backend)[1]} == {0, 1}


def test_tables_of_the_next_step_make_groups_of_their_own() -> None:
    """As the replay of a graph does: the same memory, other tables."""
    case, groups = CASES[0]
    backend = CudaBackend(runtime_of(), shares=True)
    for own in (groups, (), (((3, 4), 64),), (((1, 7), 64), ((2, 3, 8), 144))):
        batch = share(build_batch(case), case, own)
        attend(backend, case, batch)
        assert largest_error(case, batch) < tolerance(case)
        assert {row[0] for row in plan_in(backend)[1]} == {members[0] for members, tokens in own if tokens >= 64}


@pytest.mark.parametrize("options", [{"window": 100}, {"slopes": True}, {"scalar": torch.float32}], ids=str)
def test_what_the_kernel_has_not_is_attended_to_one_by_one(options: dict) -> None:
    case = shared_case(64, 16, 6, 2, 150, 170, **{"scalar": BF16} | options)
    batch = share(build_batch(case), case, (((0, 1), 128),))
    backend = CudaBackend(runtime_of(), shares=True)
    attend(backend, case, batch)
    assert largest_error(case, batch) < tolerance(case)
    ((_, plan),) = backend._planner._step.plans.values()
    assert plan.shared is None


def test_samples_behind_one_prompt_are_those_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight samples, and requests behind two cached prefixes in turn, in replayed graphs; to float16's rounding."""
    take_gpu(monkeypatch, FakeGpu())
    config = transformers.Qwen3Config(
        hidden_size=128,
        intermediate_size=96,
        num_hidden_layers=1,
        vocab_size=384,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=160,
    )
    model = saved_model(config, tmp_path)
    sizes = {"max_num_batched_tokens": 160, "max_num_seqs": 8, "max_model_len": 160}
    settings = {"attention_backend": "cuda_cascade", "cudagraph_mode": "full_decode_only"}
    llm = LLM(str(tmp_path), dtype="float16", **settings, **sizes)
    prompt, second = random_prompts(133, 134)
    asked = SamplingParams(n=8, temperature=1.0, seed=5, max_tokens=3, ignore_eos=True, logprobs=0)
    (samples,) = llm.generate([{"prompt_token_ids": prompt}], asked)
    (found,) = llm.engine.model.attention._planner._shared_memory.values()
    assert found[:8].tolist() == [128] * 8
    llm.generate([{"prompt_token_ids": second}], SamplingParams(max_tokens=1))
    others = [{"prompt_token_ids": [*cached[:130], token]} for token in (7, 8) for cached in (prompt, second)]
    cached = llm.generate(others, replace(asked, n=1))
    assert found[:4].tolist() == [128] * 4, "as the last step left it, of sequences that are not neighbours"
    assert llm.engine.get_stats()["num_graph_replays"] >= 4, "steps that decode are replayed"
    for output in (samples, *cached):
        for sample in output.outputs:
            tokens = list(sample.token_ids)
            rows = torch.log_softmax(logits_behind(model, list(output.prompt_token_ids), tokens), -1)
            expected = rows.gather(1, torch.tensor(tokens)[:, None]).sum()
            assert sample.cumulative_logprob == pytest.approx(float(expected), abs=0.1)
