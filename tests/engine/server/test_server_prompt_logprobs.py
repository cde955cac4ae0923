"""Log-probabilities of prompts over HTTP, in the shapes that vLLM's clients and lm-eval read."""

from __future__ import annotations

from typing import Any

import pytest
from server_process import ServerProcess

from kvplan_engine import LLM, SamplingParams

pytestmark = pytest.mark.xdist_group("server")  # one server for all who share it

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
