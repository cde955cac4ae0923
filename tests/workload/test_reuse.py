"""What a trace's block ids say that prompts share is what the engine's prefix cache finds, block for block."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvplan.load.traffic.prompts import PromptBook
from kvplan.workload.files import read_requests
from kvplan.workload.lengths import Lengths
from kvplan.workload.requests import RequestSpec, WorkloadSpec, clip_requests, generate_requests, prompt_token_ids
from kvplan_engine import LLM, SamplingParams

FILES = Path(__file__).parents[1] / "data" / "workloads"
BLOCK = 16


def requests_of(path: Path, count: int = 100) -> tuple[RequestSpec, ...]:
    return generate_requests(WorkloadSpec(count, Lengths(1, 1), Lengths(1, 1), file=str(path)))


def tree_of_prompts(path: Path, count: int, block_tokens: int) -> Path:
    """A trace in Mooncake's columns whose prompts branch off each other, as those of chats and agents do."""
    rng, rows, next_id = random.Random(3), [], 0
    for place in range(count):
        before = rng.choice(rows)["hash_ids"] if rows and rng.random() < 0.7 else []
        kept = before[: rng.randint(0, len(before))]
        own = list(range(next_id, next_id + rng.randint(1, 4)))
        next_id += len(own)
        ids = kept + own
        length = block_tokens * (len(ids) - 1) + rng.randint(1, block_tokens)
        rows.append({"timestamp": 1000 * place, "input_length": length, "output_length": 2, "hash_ids": ids})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tokens_alike(one: RequestSpec, other: RequestSpec) -> int:
    """By their ids alone: tokens that both prompts begin with."""
    alike = 0
    for first, second in zip(one.block_ids, other.block_ids, strict=False):
        if first != second:
            break
        alike += one.block_tokens
    return min(alike, one.num_prompt_tokens, other.num_prompt_tokens)


def found_by_ids(requests: Sequence[RequestSpec]) -> list[int]:
    """Whole blocks of the engine that an earlier prompt had, of all but the last token."""
    found = []
    for place, request in enumerate(requests):
        most = max((tokens_alike(request, earlier) for earlier in requests[:place]), default=0)
        found.append(min(most, request.num_prompt_tokens - 1) // BLOCK * BLOCK)
    return found


def found_by_the_engine(requests: Sequence[RequestSpec], vocab_size: int) -> list[int]:
    llm = LLM(model="smollm2-135m", load_format="none", device_memory=64 << 30, block_size=BLOCK, max_num_seqs=4)
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    return [
        llm.generate([{"prompt_token_ids": prompt_token_ids(0, request, vocab_size)}], params)[0].num_cached_tokens
        for request in requests
    ]


@pytest.mark.parametrize("block_tokens", [512, 64])
def test_the_prefix_cache_finds_what_the_ids_say(tmp_path: Path, block_tokens: int) -> None:
    requests = requests_of(tree_of_prompts(tmp_path / "t.jsonl", 40, block_tokens))
    assert {each.block_tokens for each in requests} == {block_tokens}
    expected = found_by_ids(requests)
    assert sum(expected) > 30 * block_tokens and 0 in expected
    assert found_by_the_engine(requests, 49152) == expected


def test_a_growing_chat_finds_all_its_earlier_turns() -> None:
    requests = requests_of(FILES / "aiperf_mooncake_sessions.jsonl")
    in_order = sorted(requests, key=lambda each: (each.chat, each.num_prompt_tokens))
    expected, known = [], {}
    for each in in_order:
        expected.append(min(known.get(each.chat, 0), each.num_prompt_tokens - 1) // BLOCK * BLOCK)
        known[each.chat] = each.num_prompt_tokens
    assert sum(expected) > 500
    assert found_by_the_engine(in_order, 49152) == expected


def test_equal_ids_are_equal_tokens_and_no_others_are() -> None:
    requests = requests_of(FILES / "mooncake.jsonl")
    prompts = [prompt_token_ids(0, each, 50_000) for each in requests]
    assert [len(prompt) for prompt in prompts] == [each.num_prompt_tokens for each in requests]
    for place, request in enumerate(requests):
        for other in range(place):
            alike = tokens_alike(request, requests[other])
            assert prompts[place][:alike] == prompts[other][:alike]
            after = prompts[place][alike : alike + 8]
            assert after != prompts[other][alike : alike + 8]
    (short,) = clip_requests(requests[4:5], 700).requests
    assert prompt_token_ids(0, short, 50_000) == prompts[4][: short.num_prompt_tokens]
    assert prompt_token_ids(1, requests[0], 50_000) != prompts[0]


def test_texts_of_a_load_begin_alike_by_the_same_ids() -> None:
    """Words of one token each; another run asks nothing that this one has asked."""
    requests = requests_of(FILES / "mooncake.jsonl")
    texts = [PromptBook(0, run="a").prompt_of(each).split() for each in requests]
    assert [len(words) for words in texts] == [each.num_prompt_tokens for each in requests]
    for place, request in enumerate(requests):
        for other in range(place):
            alike = tokens_alike(request, requests[other])
            assert texts[place][:alike] == texts[other][:alike]
            assert texts[place][alike : alike + 8] != texts[other][alike : alike + 8]
    assert texts[0][:16] != PromptBook(0, run="b").prompt_of(requests[0]).split()[:16]
    turns = [each for each in requests_of(FILES / "sharegpt.json") if each.chat == 2]
    first, second, third = (PromptBook(0).prompt_of(each).split() for each in turns)
    assert second[: len(first)] == first and third[: len(second)] == second


def test_a_trace_that_shares_survives_the_way_to_a_worker() -> None:
    from kvplan.sweeps.worker.protocol import TrialOrder

    requests = requests_of(FILES / "bailian.jsonl")
    order = TrialOrder("t", {"load_format": "none"}, {}, requests, None, 0, 100)
    assert TrialOrder.from_json(json.loads(json.dumps(order.as_json()))).requests == requests


def test_a_file_has_as_many_requests_as_it_says() -> None:
    assert len(list(read_requests(FILES / "bailian.jsonl"))) == len(requests_of(FILES / "bailian.jsonl")) == 10
