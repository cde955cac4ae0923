"""Requests of files, with what their prompts share and whom they wait for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvplan.errors import KvplanError
from kvplan.fleet.requests import FleetRequest, TokenRun, merged_runs, requests_of_file

DATA = Path(__file__).parents[1] / "data"
EXCERPT = DATA / "mooncake_conversation_100.jsonl"


def _file(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_ids_are_runs_and_a_run_stands_for_all_before_it(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1000, "output_length": 7, "hash_ids": [1, 2]},
        {"timestamp": 500, "input_length": 1300, "output_length": 8, "hash_ids": [1, 3, 2]},
        {"timestamp": 900, "input_length": 700, "output_length": 9, "hash_ids": [1, 3]},
    ]
    first, second, third = requests_of_file(_file(tmp_path / "trace.jsonl", rows))
    assert [run.end for run in first.runs] == [512, 1000]
    assert [run.end for run in second.runs] == [512, 1024, 1300]
    assert first.runs[0].key == second.runs[0].key == third.runs[0].key
    assert second.runs[1].key == third.runs[1].key
    assert first.runs[1].key != second.runs[2].key, "block 2 behind another beginning"
    assert [each.sent for each in (first, second, third)] == [0.0, 0.5, 0.9]
    assert first.after is None and first.answer_key is None


def test_turns_without_times_wait_for_the_answer_before_them(tmp_path: Path) -> None:
    rows = [
        {"session_id": "a", "timestamp": 1000, "input_length": 100, "output_length": 10},
        {"session_id": "b", "timestamp": 1500, "input_length": 60, "output_length": 5},
        {"session_id": "a", "delay": 2000, "input_length": 20, "output_length": 10},
        {"session_id": "a", "delay": 500, "input_length": 30, "output_length": 10},
    ]
    found = requests_of_file(_file(tmp_path / "sessions.jsonl", rows))
    chat = [each for each in found if each.answer_key == found[0].answer_key]
    assert [each.num_prompt_tokens for each in chat] == [100, 130, 170]
    assert [(each.after, each.think_seconds) for each in chat] == [
        (None, 0.0),
        (chat[0].number, 2.0),
        (chat[1].number, 0.5),
    ]
    assert [len(each.runs) for each in chat] == [1, 1, 1]
    assert {each.runs[0].key for each in chat} == {found[0].answer_key}


def test_a_conversation_is_a_closed_loop(tmp_path: Path) -> None:
    turns = [{"from": who, "value": "word " * 40} for who in ("human", "gpt", "human", "gpt")]
    rows = [{"conversations": turns}, {"conversations": turns[:2]}]
    path = tmp_path / "chats.json"
    path.write_text(json.dumps(rows))
    first, second, third = requests_of_file(path)
    assert (first.after, second.after, third.after) == (None, 0, None)
    assert second.runs[0].key == first.answer_key != third.answer_key


def test_longer_requests_are_left_out_and_an_answer_is_waited_for_all_the_same(tmp_path: Path) -> None:
    rows = [
        {"session_id": "a", "timestamp": 0, "input_length": 10, "output_length": 1},
        {"session_id": "a", "delay": 1, "input_length": 900, "output_length": 1},
    ]
    path = _file(tmp_path / "sessions.jsonl", rows)
    assert len(requests_of_file(path, longest=100)) == 1
    with pytest.raises(KvplanError, match="longer than 5 tokens"):
        requests_of_file(path, longest=5)


def test_merged_runs_say_the_same() -> None:
    def request(number: int, keys: list[int], prompt: int | None = None) -> FleetRequest:
        end = prompt or 8 * len(keys)
        runs = tuple(TokenRun(key, min(8 * place, end)) for place, key in enumerate(keys, 1))
        return FleetRequest(number, 0.0, end, 4, runs)

    requests = [request(0, [1, 2, 3, 4]), request(1, [1, 2, 3, 5]), request(2, [1, 2], 13), request(3, [9])]
    assert [each.runs for each in merged_runs(requests)] == [
        (TokenRun(2, 16), TokenRun(3, 24)),
        (TokenRun(2, 16), TokenRun(3, 24)),
        (TokenRun(2, 13),),
        (),
    ]
    again = merged_runs(requests)
    assert merged_runs(again) == again


def test_an_excerpt_of_a_published_trace() -> None:
    requests = requests_of_file(EXCERPT)
    blocks = [run.key for each in requests for run in each.runs]
    assert (len(requests), len(blocks), len(set(blocks))) == (100, 3034, 2935)
