"""Requests of a trace as a fleet plays them, and days of them that a shape makes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from kvplan.errors import KvplanError
from kvplan.fleet.requests import FleetRequest, TokenRun, merged_runs, requests_of_file
from kvplan.fleet.shapes import DAY_SECONDS, LoadShape, ShapePoint, read_shape, stretched

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


REQUESTS = tuple(
    FleetRequest(each, 18.0 * each, 600, 10, (TokenRun(1, 512), TokenRun(2 + each, 600))) for each in range(200)
)
"""An hour, a request every 18 s, which all begin with the same 512 tokens."""


def shape(tmp_path: Path, text: str) -> LoadShape:
    path = tmp_path / "day.csv"
    path.write_text(text, encoding="utf-8")
    return read_shape(path)


def test_factors_hold_from_their_time_on(tmp_path: Path) -> None:
    by_hour = shape(tmp_path, "hour,factor\n0,0.5\n9,2\n18.5,1\n")
    assert [by_hour.factor(3600 * hour) for hour in (0, 8.99, 9, 18.49, 18.5, 23.9)] == [0.5, 0.5, 2, 2, 1, 1]
    by_clock = shape(tmp_path, "Time,Factor\n06:30,0.25\n12:00:30,3\n")
    assert [by_clock.factor(each) for each in (0, 23_399, 43_229, 43_230)] == [0.25, 0.25, 0.25, 3]


def test_a_day_has_as_many_requests_as_its_factors_say() -> None:
    day = stretched(REQUESTS, LoadShape((ShapePoint(0, 0.4), ShapePoint(43_200, 2.5))))
    assert all(0 <= earlier.sent <= later.sent < DAY_SECONDS for earlier, later in pairwise(day))
    assert [each.number for each in day] == list(range(len(day)))
    morning = sum(each.sent < 43_200 for each in day)
    assert morning == pytest.approx(0.4 * 2400, rel=0.08)
    assert len(day) - morning == pytest.approx(2.5 * 2400, rel=0.05)


def test_a_factor_of_one_repeats_the_trace_as_it_is() -> None:
    day = stretched(REQUESTS, LoadShape((ShapePoint(0, 1.0),)))
    assert len(day) == 4_800
    assert [(each.sent, each.runs) for each in day[:200]] == [(each.sent, each.runs) for each in REQUESTS]
    assert day[200].sent == pytest.approx(3600.0)


def test_what_comes_again_has_tokens_of_its_own() -> None:
    day = stretched(REQUESTS, LoadShape((ShapePoint(0, 2.0),)))
    first = {each.runs[0].key for each in day}
    assert len(first) == 2 * 24  # a round and a copy share what they begin with, and nothing else
    assert len({each.runs[1].key for each in day}) == len(day)


def test_turns_follow_those_of_their_own_copy() -> None:
    turns = (
        FleetRequest(0, 0.0, 100, 10, (TokenRun(1, 100),)),
        FleetRequest(1, 500.0, 200, 10, (TokenRun(1, 200),), 0, 3.0),
    )
    chat = tuple(replace(each, answer_key=1) for each in turns)
    day = stretched(chat, LoadShape((ShapePoint(0, 2.0),)))
    by_number = {each.number: each for each in day}
    followers = [each for each in day if each.after is not None]
    assert followers and all(by_number[each.after].answer_key == each.answer_key for each in followers)  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("when,factor\n1,1\n", "has no columns hour"),
        ("hour,factor\n1,x\n", "Line 2 of the load shape .* is malformed"),
        ("hour,factor\n24,1\n", "Line 2 .* is not within a day"),
        ("hour,factor\n3,1\n2,1\n", "Line 3 .* is not later"),
        ("hour,factor\n3,-1\n", "factor of -1; it must be from 0"),
        ("hour,factor\n3,0\n", "no factor above 0"),
        ("hour,factor\n", "no factor above 0"),
        ("time,factor\n09:75,1\n", "is malformed"),
    ],
)
def test_a_file_that_cannot_be_used_is_said_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(KvplanError, match=sentence) as error:
        shape(tmp_path, text)
    assert error.value.hint


def test_a_day_that_is_too_long_to_play_says_how_much_of_it_is_not() -> None:
    with pytest.raises(KvplanError, match="more than the 400,000 that are played") as error:
        stretched(REQUESTS, LoadShape((ShapePoint(0, 100.0),)))
    assert error.value.hint is not None and "--sample 166" in error.value.hint
