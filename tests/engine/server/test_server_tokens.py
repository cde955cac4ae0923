"""Streams, options, log-probabilities of prompts and drafts: tokens and text are those without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guessing import NGRAM
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


PROMPT = [9, 300, 4, 4, 77, 120, 8]


def expected(llm: LLM, prompt: list[int], number: int) -> list[dict[int, float] | None]:
    """What the engine says without a server."""
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=number)
    (output,) = llm.generate({"prompt_token_ids": prompt}, params)
    assert output.prompt_logprobs is not None
    return output.prompt_logprobs


def decoded(server: ServerProcess, token: int) -> str:
    text: str = server.post("/detokenize", {"tokens": [token]}).json["prompt"]
    return text


def test_echo_puts_the_prompts_before_the_answers(server: ServerProcess, llm: LLM) -> None:
    fields: dict[str, Any] = {"max_tokens": 3, "ignore_eos": True, "logprobs": 2}
    whole = server.complete(PROMPT, echo=True, **fields)["choices"][0]
    logprobs, answer = whole["logprobs"], server.complete(PROMPT, **fields)["choices"][0]["logprobs"]
    number = len(PROMPT)
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert logprobs["tokens"] == [decoded(server, token) for token in PROMPT] + answer["tokens"]
    assert logprobs["token_logprobs"][number:] == pytest.approx(answer["token_logprobs"], abs=1e-4)
    lengths = [len(token) for token in logprobs["tokens"]]
    assert logprobs["text_offset"] == [sum(lengths[:index]) for index in range(number + 3)]
    values = expected(llm, PROMPT, 2)
    for index in range(1, number):
        own = values[index]
        assert own is not None
        assert logprobs["token_logprobs"][index] == pytest.approx(own[PROMPT[index]], abs=1e-4)
        shown = {decoded(server, token): value for token, value in own.items()}
        assert logprobs["top_logprobs"][index] == pytest.approx(shown, abs=1e-4)


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_a_stream_echoes_with_its_first_chunk_what_a_whole_answer_has(server: ServerProcess, max_tokens: int) -> None:
    body = {"prompt": PROMPT, "max_tokens": max_tokens, "logprobs": 2, "echo": True, "n": 2, "seed": 1}
    whole = server.post("/v1/completions", body).json["choices"]
    events = [event["choices"][0] for event in server.events("/v1/completions", body)[:-1]]
    for choice in whole:
        chunks = [event for event in events if event["index"] == choice["index"]]
        assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
        assert len(chunks[0]["logprobs"]["tokens"]) == len(PROMPT) + (max_tokens > 0)
        for key in ("tokens", "text_offset"):
            assert [value for chunk in chunks for value in chunk["logprobs"][key]] == choice["logprobs"][key]
        values = [value for chunk in chunks for value in chunk["logprobs"]["token_logprobs"]]
        assert values[1:] == pytest.approx(choice["logprobs"]["token_logprobs"][1:], abs=1e-4)


def test_a_prompt_is_scored_without_an_answer(server: ServerProcess, llm: LLM) -> None:
    """As lm-eval asks: many prompts, echo, logprobs and no token to generate; a prompt of one token has no score."""
    prompts = [PROMPT, [5], PROMPT[::-1]]
    answer = server.complete(prompts, max_tokens=0, echo=True, logprobs=1)
    assert answer["usage"]["prompt_tokens"] == 15
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        assert choice["text"] == server.post("/detokenize", {"tokens": prompt}).json["prompt"]
        scores = choice["logprobs"]["token_logprobs"]
        wanted = [own[token] for token, own in zip(prompt, expected(llm, prompt, 1), strict=True) if own is not None]
        assert scores[0] is None
        assert scores[1:] == pytest.approx(wanted, abs=1e-4)


def check_prompt_logprobs(reported: list[Any], prompt: list[int], values: list[dict[int, float] | None]) -> None:
    assert reported[0] is None
    for token, entries, own in zip(prompt[1:], reported[1:], values[1:], strict=True):
        assert own is not None
        assert next(iter(entries)) == str(token), "the prompt's own token comes first"
        assert {int(each): entry["logprob"] for each, entry in entries.items()} == pytest.approx(own, abs=1e-4)
        best = sorted(own.values(), reverse=True)[:4]
        for entry in entries.values():
            assert isinstance(entry["decoded_token"], str)
            if entry["rank"] <= 4:
                assert entry["logprob"] == pytest.approx(best[entry["rank"] - 1], abs=1e-4)
            else:
                assert entry["logprob"] < best[-1]


def test_completions_report_them_with_each_choice(server: ServerProcess, llm: LLM) -> None:
    answer = server.complete([PROMPT, PROMPT[:4]], max_tokens=2, prompt_logprobs=4, n=2)
    for number, choice in enumerate(answer["choices"]):
        prompt = (PROMPT, PROMPT[:4])[number // 2]
        assert choice["logprobs"] is None
        check_prompt_logprobs(choice["prompt_logprobs"], prompt, expected(llm, prompt, 4))
    assert server.complete(PROMPT, max_tokens=2)["choices"][0]["prompt_logprobs"] is None


def test_chats_report_them_beside_their_choices(server: ServerProcess, llm: LLM) -> None:
    body = {"messages": [{"role": "user", "content": "the cache"}], "max_tokens": 2, "return_token_ids": True}
    answer = server.post("/v1/chat/completions", {**body, "prompt_logprobs": 4}).json
    check_prompt_logprobs(
        answer["prompt_logprobs"], answer["prompt_token_ids"], expected(llm, answer["prompt_token_ids"], 4)
    )
    assert server.post("/v1/chat/completions", body).json["prompt_logprobs"] is None


@pytest.mark.parametrize(("fields", "says"), [
    ({"prompt_logprobs": 1, "stream": True}, "'prompt_logprobs' are not available with 'stream': true"),
    ({"prompt_logprobs": 21}, "'prompt_logprobs' must lie in [0, 20]"),
    ({"prompt_logprobs": -1}, "'prompt_logprobs' must lie in [0, 20]"),
    ({"max_tokens": 0}, "must be at least 1"),
])  # fmt: skip
def test_what_has_no_place_is_refused(server: ServerProcess, fields: dict[str, Any], says: str) -> None:
    answer = server.post("/v1/completions", {"prompt": PROMPT, **fields})
    assert answer.status == 400
    assert says in answer.error["message"]


REPEATING = "the keys and values of the keys and values of the keys and values"


@pytest.fixture(scope="module")
def speculating(model_path: Path) -> Iterator[ServerProcess]:
    settings = {"speculative_config": NGRAM, "dtype": "float32"}
    with ServerProcess(str(model_path), served_model_names=["small"], settings=settings) as server:
        yield server


def counts(server: ServerProcess) -> dict[str, float]:
    """Read /metrics: values by name and position."""
    found = {}
    for (name, labels), value in server.metrics().items():
        if name.startswith("vllm:spec_decode_") and not name.endswith("_created"):
            position = "".join(f" {value}" for _, value in labels)
            found[name.removeprefix("vllm:spec_decode_").removesuffix("_total") + position] = value
    return found


def test_streams_have_the_tokens_that_come_without_speculation(speculating: ServerProcess, llm: LLM) -> None:
    fields: list[dict[str, Any]] = [
        {"temperature": 0.0 if number % 2 else 0.9, "seed": number, "max_tokens": 8 + number % 17}
        for number in range(NUM_STREAMS)
    ]
    params = [SamplingParams(**own) for own in fields]
    expected = [
        (output.outputs[0].token_ids, plain(output.outputs[0].text)) for output in llm.generate(PROMPTS, params)
    ]
    assert asyncio.run(all_streamed(speculating, fields)) == expected
    assert speculating.wait_until_idle()["num_used_blocks"] == 0


def test_log_probabilities_belong_to_their_tokens(speculating: ServerProcess, llm: LLM) -> None:
    fields: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40, "logprobs": 2}
    (expected,) = llm.generate([REPEATING], SamplingParams(**fields))
    (choice,) = speculating.complete(REPEATING, return_token_ids=True, **fields)["choices"]
    own = expected.outputs[0]
    assert choice["token_ids"] == own.token_ids and choice["finish_reason"] == own.finish_reason
    want = [alternatives[token] for token, alternatives in zip(own.token_ids, own.logprobs or [], strict=True)]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(want, abs=1e-4)


def test_metrics_count_drafts_as_vllm_does(speculating: ServerProcess, server: ServerProcess) -> None:
    before = counts(speculating)
    speculating.complete(REPEATING, temperature=0.0, max_tokens=40, ignore_eos=True)
    after = counts(speculating)
    grown = {name: after[name] - before[name] for name in after}
    positions = [grown[f"num_accepted_tokens_per_pos {position}"] for position in range(4)]
    assert 0 < grown["num_drafts"] <= grown["num_draft_tokens"] <= 4 * grown["num_drafts"]
    assert sum(positions) == grown["num_accepted_tokens"] <= grown["num_draft_tokens"]
    assert positions == sorted(positions, reverse=True)
    assert counts(server) == {}, "vLLM shows none without speculation"
