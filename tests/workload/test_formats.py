"""Every format that people have, ten lines each: how many requests, how long, when, and what they share.

tests/data/workloads/README.md names the source of each format.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from kvplan.workload.files import FileRequest, read_requests, survey_file
from kvplan.workload.part import FilePart
from kvplan.workload.texts import num_tokens

FILES = Path(__file__).parents[1] / "data" / "workloads"


class Expected(NamedTuple):
    """Of a file: requests, the tokens of all prompts and answers, seconds from the first to the last, block size."""

    num_requests: int
    prompts: int
    answers: int
    seconds: float
    block_tokens: int = 0


# Prompt and answer tokens of the files whose ten lines have the same lengths.
LENGTHS = (15399, 2341)
FORMATS = {
    "mooncake.jsonl": Expected(10, *LENGTHS, 13.5, 512),
    "bailian.jsonl": Expected(10, 1721, 263, 155.7, 16),
    "azure_2023.csv": Expected(10, *LENGTHS, 9.001),
    "azure_2024.csv": Expected(10, *LENGTHS, 27.006993),
    "burstgpt_1.csv": Expected(9, 14636, 2146, 360.0),
    "burstgpt_3.csv": Expected(10, *LENGTHS, 279.0),
    "servegen.csv": Expected(10, *LENGTHS, 0.639),
    "servegen_offline_lengths.jsonl": Expected(10, *LENGTHS, 0.0),
    "sharegpt.json": Expected(17, 850, 439, 0.0),
    "wildchat.jsonl": Expected(15, 515, 343, 0.0),
    "openai_chat_logs.jsonl": Expected(10, 224, 205, 0.0),
    "openai_batch.jsonl": Expected(10, 978, 1045, 0.0, 16),
    "vllm_bench_custom.jsonl": Expected(10, 194, 145, 0.0, 16),
    "vllm_bench_timed_trace.jsonl": Expected(10, 685, 80, 3.6, 16),
    "aiperf_single_turn.jsonl": Expected(10, 194, 245, 9.0, 16),
    "aiperf_multi_turn.jsonl": Expected(20, 753, 320, 0.0),
    "aiperf_mooncake_sessions.jsonl": Expected(10, 2021, 200, 3.0),
    "aiperf_inputs.json": Expected(10, 208, 320, 0.0, 16),
    "baseten.jsonl": Expected(10, 1325, 135, 6.57, 64),
    "weka_agent.json": Expected(10, 8764, 210, 42.5, 64),
    "vidur.csv": Expected(10, *LENGTHS, 1.179),
    "splitwise.csv": Expected(10, *LENGTHS, 2.25),
    "guidellm.jsonl": Expected(10, 1325, 640, 0.0),
    "alpaca.jsonl": Expected(10, 288, 247, 0.0, 16),
    "plain.csv": Expected(10, *LENGTHS, 0.0),
    "plain_timed.csv": Expected(10, *LENGTHS, 22.5),
    "gateway_log.csv": Expected(10, *LENGTHS, 45.0),
}


def requests_of(name: str) -> list[FileRequest]:
    return list(read_requests(FILES / name))


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_read_by_its_columns(name: str, tmp_path: Path) -> None:
    expected = FORMATS[name]
    nameless = tmp_path / "requests"  # nothing follows from a file's name
    nameless.write_bytes((FILES / name).read_bytes())
    found, requests = survey_file(nameless), list(read_requests(nameless))
    assert found.num_requests == len(requests) == expected.num_requests
    assert sum(each.num_prompt_tokens for each in requests) == expected.prompts
    assert sum(each.num_output_tokens for each in requests) == expected.answers
    assert found.seconds == pytest.approx(expected.seconds, abs=1e-6)
    assert found.block_tokens == expected.block_tokens
    assert found.has_times == all(each.arrival_seconds is not None for each in requests)


def test_every_file_is_tried() -> None:
    files = {path.name for path in FILES.iterdir()} - {"README.md"}
    assert files == {*FORMATS, "servegen_offline_hashes.jsonl"}
    assert len(files) >= 20


def test_lengths_are_those_of_the_columns() -> None:
    with (FILES / "azure_2023.csv").open() as file:
        rows = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]
    for name in ("mooncake.jsonl", "azure_2024.csv", "servegen.csv", "vidur.csv", "splitwise.csv", "plain.csv"):
        assert [(each.num_prompt_tokens, each.num_output_tokens) for each in requests_of(name)] == rows, name


def test_a_row_without_an_answer_is_counted_and_said() -> None:
    assert "burstgpt_1.csv: 1 row without an answer left out" in survey_file(FILES / "burstgpt_1.csv").notes


def test_block_ids_are_kept_with_their_size() -> None:
    lines = [json.loads(line) for line in (FILES / "mooncake.jsonl").read_text().splitlines()]
    assert [list(each.block_ids) for each in requests_of("mooncake.jsonl")] == [line["hash_ids"] for line in lines]
    assert {each.block_tokens for each in requests_of("mooncake.jsonl")} == {512}
    assert {each.block_tokens for each in requests_of("bailian.jsonl")} == {16}


def test_answers_without_a_length_take_the_given_one() -> None:
    path = FILES / "servegen_offline_hashes.jsonl"
    requests = list(read_requests(path, FilePart(output_tokens=32)))
    assert {each.num_output_tokens for each in requests} == {32}
    assert requests[0].block_ids[:23] == requests[9].block_ids[:23] and requests[0].block_tokens == 16
    (said,) = [note for note in survey_file(path, FilePart(output_tokens=32)).notes if "--output-len" in note]
    assert said.endswith("10 answers without a length: --output-len 32")


def test_all_turns_of_a_chat_are_requests_whose_prompts_grow() -> None:
    chat = json.loads((FILES / "sharegpt.json").read_text())[2]["conversations"]
    assert len(chat) == 6
    turns = [each for each in requests_of("sharegpt.json") if each.chat == 2]
    said = [num_tokens(turn["value"]) for turn in chat]
    assert [each.num_prompt_tokens for each in turns] == [said[0], sum(said[:3]), sum(said[:5])]
    assert [each.num_output_tokens for each in turns] == said[1::2]


def test_sessions_grow_by_what_their_rows_add() -> None:
    """AIPerf's Mooncake sessions: a row holds what is new; the next waits for ``delay`` after the one before."""
    turns = [each for each in requests_of("aiperf_mooncake_sessions.jsonl") if each.chat == 1]
    assert [each.num_prompt_tokens for each in turns] == [101, 101 + 20 + 105, 101 + 20 + 105 + 20 + 109]
    assert [each.arrival_seconds for each in turns] == pytest.approx([1.0, 1.25, 1.5])


def test_prompts_that_begin_alike_have_equal_blocks() -> None:
    """A system prompt that all requests of a batch have."""
    first, *others = requests_of("openai_batch.jsonl")
    shared = [sum(a == b for a, b in zip(first.block_ids, each.block_ids, strict=False)) for each in others]
    assert min(shared) == 4  # of 303 characters, the role among them
    assert max(shared) < len(first.block_ids)


def test_an_agents_ids_hold_within_its_trace(tmp_path: Path) -> None:
    text = (FILES / "weka_agent.json").read_text()
    two = tmp_path / "agents.jsonl"
    two.write_text("\n".join(json.dumps(json.loads(text) | {"id": name}) for name in ("a", "b")))
    requests = list(read_requests(two))
    assert requests[0].block_ids == requests[1].block_ids[:10]
    assert not set(requests[0].block_ids) & set(requests[10].block_ids)
