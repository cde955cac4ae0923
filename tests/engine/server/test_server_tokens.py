"""Streams and options give the tokens and the text of the engine without a server; salts keep prefixes apart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from server_process import ServerProcess, plain
from streams import NUM_STREAMS, PROMPTS, all_streamed

from kvplan_engine import LLM, SamplingParams

pytestmark = pytest.mark.xdist_group("server")  # one server for all who share it


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.95}],
    ids=["greedy", "seeded"],
)
def test_64_streams_give_the_same_tokens_and_text(server: ServerProcess, llm: LLM, sampling: dict[str, float]) -> None:
    """Also where tokens are parts of characters, or no valid text at all, as a random model's are."""
    fields: list[dict[str, Any]] = [
        {**sampling, "seed": number, "max_tokens": 8 + number % 17} for number in range(NUM_STREAMS)
    ]
    params = [SamplingParams(**own) for own in fields]
    expected = [
        (output.outputs[0].token_ids, plain(output.outputs[0].text)) for output in llm.generate(PROMPTS, params)
    ]
    assert len({tuple(tokens) for tokens, _ in expected}) > NUM_STREAMS // 2, "answers that cannot tell"
    assert asyncio.run(all_streamed(server, fields)) == expected
    assert server.wait_until_idle()["num_used_blocks"] == 0


@pytest.mark.parametrize("fields", [
    {"n": 3, "temperature": 0.8, "seed": 7, "max_tokens": 12},
    {"temperature": 0.0, "max_tokens": 24, "repetition_penalty": 1.3, "min_tokens": 4},
    {"temperature": 0.7, "seed": 1, "max_tokens": 10, "top_k": 5, "min_p": 0.05, "presence_penalty": 0.5},
], ids=["samples", "penalty", "truncated"])  # fmt: skip
def test_options_mean_what_they_mean_without_a_server(server: ServerProcess, llm: LLM, fields: dict[str, Any]) -> None:
    (expected,) = llm.generate(["the keys and values"], SamplingParams(**fields))
    answer = server.complete("the keys and values", return_token_ids=True, **fields)
    assert [choice["token_ids"] for choice in answer["choices"]] == [each.token_ids for each in expected.outputs]
    assert [plain(choice["text"]) for choice in answer["choices"]] == [plain(each.text) for each in expected.outputs]
    assert [choice["finish_reason"] for choice in answer["choices"]] == [
        each.finish_reason for each in expected.outputs
    ]


def test_a_stream_of_text_alone_has_the_text_of_the_whole_answer(server: ServerProcess) -> None:
    """A chunk for every token, also where characters lie in several: nothing of what a token says is asked for."""
    for prompt in PROMPTS[:6]:
        fields: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
        *events, done = server.events("/v1/completions", {"prompt": prompt, **fields})
        assert (len(events), done) == (24, "[DONE]")
        text = "".join(event["choices"][0]["text"] for event in events)
        assert text == server.complete(prompt, **fields)["choices"][0]["text"]
        assert [event["choices"][0]["finish_reason"] for event in events] == [None] * 23 + ["length"]


def test_stop_strings_end_an_answer_where_the_engine_would(server: ServerProcess, llm: LLM) -> None:
    """Every piece of an answer of two characters as a stop string, streamed and not."""
    params = {"temperature": 0.0, "max_tokens": 16}
    (whole,) = llm.generate(["every token"], SamplingParams(**params))  # type: ignore[arg-type]
    text = whole.outputs[0].text
    stops = sorted({text[start : start + 2] for start in range(len(text) - 2)} - {"\ufffd\ufffd"})[:6]
    assert len(stops) >= 3, text
    for stop in stops:
        (expected,) = llm.generate(["every token"], SamplingParams(stop=stop, **params))  # type: ignore[arg-type]
        own = expected.outputs[0]
        answer = server.complete("every token", stop=stop, return_token_ids=True, max_tokens=16)["choices"][0]
        assert (answer["text"], answer["token_ids"], answer["stop_reason"]) == (own.text, own.token_ids, stop)
        events = server.events("/v1/completions", {"prompt": "every token", "stop": [stop], **params})
        assert "".join(event["choices"][0]["text"] for event in events[:-1]) == own.text
        assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert server.wait_until_idle()["num_used_blocks"] == 0


def test_a_stop_string_ends_one_sample_and_not_its_siblings(server: ServerProcess) -> None:
    fields: dict[str, Any] = {"n": 4, "temperature": 1.0, "seed": 5, "max_tokens": 20, "ignore_eos": True}
    whole = [choice["text"] for choice in server.complete("a block", **fields)["choices"]]
    stop = next(text[4:6] for text in whole if "\ufffd" not in text[4:6])
    assert not all(stop in text for text in whole), "every sample would end"
    stopped = server.complete("a block", stop=stop, **fields)["choices"]
    assert [choice["text"] for choice in stopped] == [text.partition(stop)[0] for text in whole]
    kept = server.complete("a block", stop=stop, include_stop_str_in_output=True, **fields)["choices"]
    assert [choice["text"] for choice in kept] == [
        text.partition(stop)[0] + (stop if stop in text else "") for text in whole
    ]
    assert server.wait_until_idle()["num_used_blocks"] == 0


LENGTH = 100
CHAT = {"role": "user", "content": "the capital of France is Paris and the paged cache holds the keys and values"}


def _cached(server: ServerProcess, prompt: list[int], **fields: Any) -> int:
    answer = server.complete(prompt, max_tokens=1, **fields)
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_only_requests_with_the_same_salt_share_a_prefix(server: ServerProcess) -> None:
    """Nobody learns from cached_tokens, nor from the time to the first token, what others have asked."""
    prompt = [7 + number % 300 for number in range(LENGTH)]
    whole = LENGTH // 16 * 16
    assert _cached(server, prompt, cache_salt="tenant a") == 0
    assert _cached(server, prompt, cache_salt="tenant a") == whole
    for fields in ({"cache_salt": "tenant b"}, {}, {"cache_salt": "tenant a "}, {"cache_salt": "\0"}):
        assert _cached(server, prompt, **fields) == 0, fields
        assert _cached(server, prompt, **fields) == whole, fields
    assert _cached(server, prompt, cache_salt=None) == whole, "null counts as absent"


def test_chats_have_salts_too(server: ServerProcess) -> None:
    def cached(**fields: Any) -> int:
        body = {"messages": [CHAT], "max_tokens": 1, **fields}
        answer = server.post("/v1/chat/completions", body).json
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached(cache_salt=salt) > 0 for salt in ("a", "a", "b", "b")] == [False, True, False, True]
    assert [cached() > 0, cached() > 0] == [False, True]


def test_the_answer_does_not_depend_on_the_salt(server: ServerProcess) -> None:
    texts = {server.complete([9] * 40, max_tokens=8, **fields)["choices"][0]["text"]
             for fields in ({}, {"cache_salt": "a"}, {"cache_salt": "a"}, {"cache_salt": "b"})}  # fmt: skip
    assert len(texts) == 1


@pytest.mark.parametrize("salt", ["", 1, True, ["a"], {}])
def test_a_salt_that_is_no_text_or_empty_is_a_400(server: ServerProcess, salt: Any) -> None:
    answer = server.post("/v1/completions", {"prompt": "the", "cache_salt": salt})
    assert answer.status == 400
    assert "cache_salt" in answer.error["message"]
