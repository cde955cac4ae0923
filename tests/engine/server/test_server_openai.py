"""The unmodified OpenAI SDK against the server, and the rules of streams that other clients count on."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from server_process import ServerProcess

pytestmark = pytest.mark.xdist_group("server")  # one server for all who share it

MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the capital"}]


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as client:
        yield client


# ---- the SDK


def test_models_are_listed_and_found_by_name(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["small", "org/small"]
    assert client.models.retrieve("org/small").model_dump()["max_model_len"] == 256


def test_a_chat_answer_has_its_parts(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="small", messages=MESSAGES, max_completion_tokens=7, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.model == "small"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 7


def test_a_streamed_chat_is_the_whole_one(client: openai.OpenAI) -> None:
    fields: Any = {"model": "small", "messages": MESSAGES, "max_tokens": 20, "temperature": 0.8, "seed": 3}
    whole = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_asynchronous_client_streams(server: ServerProcess) -> None:
    async def texts() -> list[str]:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any") as client:
            stream = await client.completions.create(model="small", prompt="the", max_tokens=5, stream=True)
            return [chunk.choices[0].text async for chunk in stream]

    assert len(asyncio.run(texts())) == 5


def test_log_probabilities_are_those_of_a_distribution(client: openai.OpenAI) -> None:
    fields: Any = {"model": "small", "messages": MESSAGES, "max_tokens": 4, "temperature": 0}
    content = client.chat.completions.create(**fields, logprobs=True, top_logprobs=20).choices[0].logprobs
    assert content is not None and content.content is not None
    assert len(content.content) == 4
    for token in content.content:
        values = [top.logprob for top in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert token.logprob == values[0], "greedy takes the likeliest"
        assert sum(map(math.exp, values)) <= 1 + 1e-6
        assert bytes(token.bytes or []).decode() == token.token
    completion = client.completions.create(model="small", prompt="the", max_tokens=4, temperature=0, logprobs=2)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens is not None and logprobs.text_offset is not None
    assert len(logprobs.token_logprobs or []) == len(logprobs.top_logprobs or []) == 4
    lengths = [len(token) for token in logprobs.tokens]
    assert logprobs.text_offset == [sum(lengths[:number]) for number in range(4)]


def test_streamed_log_probabilities_are_the_whole_ones(server: ServerProcess) -> None:
    body = {"prompt": "the capital", "max_tokens": 6, "temperature": 0.0, "logprobs": 3}
    whole = server.complete(**body)["choices"][0]["logprobs"]
    chunks = [event["choices"][0]["logprobs"] for event in server.events("/v1/completions", body)[:-1]]
    for key, values in whole.items():
        assert [value for chunk in chunks for value in chunk[key]] == values


@pytest.mark.parametrize(("fields", "kind", "says"), [
    ({"model": "other"}, openai.NotFoundError, "'other' does not exist; served: 'small', 'org/small'"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, openai.BadRequestError, "'tools' is not supported"),
    ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "'response_format' is not supported"),
    ({"max_tokens": 300}, openai.BadRequestError, "maximum context length is 256 tokens"),
    ({"temperature": -1}, openai.BadRequestError, "temperature must not be negative"),
    ({"n": 1000}, openai.BadRequestError, "'n' must be at most 128"),
    ({"extra_body": {"temprature": 1}}, openai.BadRequestError, "'temprature' is not supported"),
    ({"logit_bias": {"9999": 1}}, openai.BadRequestError, "outside the vocabulary"),
    ({"messages": [{"role": "tool", "content": "x"}]}, openai.BadRequestError, "roles are system, user and assistant"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     openai.BadRequestError, "a part of type 'image_url': only text"),
    ({"messages": []}, openai.BadRequestError, "'messages' is empty"),
])  # fmt: skip
def test_what_cannot_be_served_is_named(
    client: openai.OpenAI, fields: dict[str, Any], kind: type[openai.APIStatusError], says: str
) -> None:
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": "small", "messages": MESSAGES, **fields})
    assert says in caught.value.message


# ---- rules of streams


def test_a_chunk_for_every_token_and_none_besides(server: ServerProcess) -> None:
    """Clients count chunks as tokens: the role chunk alone carries ``role``, an empty text is a chunk all the same."""
    body = {"messages": MESSAGES, "max_tokens": 40, "temperature": 1.5, "seed": 11, "ignore_eos": True}
    events = server.events("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert events[-1] == "[DONE]"
    role, *tokens, usage = events[:-1]
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(tokens) == 40 == usage["usage"]["completion_tokens"]
    assert all(list(chunk["choices"][0]["delta"]) == ["content"] for chunk in tokens)
    assert any(chunk["choices"][0]["delta"]["content"] == "" for chunk in tokens), "no token within a character"
    assert [chunk["choices"][0]["finish_reason"] for chunk in tokens] == [None] * 39 + ["length"]
    assert usage["choices"] == []
    assert usage["metrics"]["time_to_first_token_ms"] > usage["metrics"]["queue_time_ms"] >= 0


def test_usage_can_come_with_every_chunk(server: ServerProcess) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = server.events("/v1/completions", {"prompt": "the", "max_tokens": 5, "stream_options": options})
    assert [event["usage"]["completion_tokens"] for event in events[:-1]] == [1, 2, 3, 4, 5, 5]


def test_token_ids_come_with_their_chunks(server: ServerProcess) -> None:
    body = {"prompt": [10, 11, 12], "max_tokens": 5, "temperature": 0.0, "return_token_ids": True}
    whole = server.complete(**body)["choices"][0]
    events = server.events("/v1/completions", body)[:-1]
    assert events[0]["choices"][0]["prompt_token_ids"] == [10, 11, 12] == whole["prompt_token_ids"]
    assert "prompt_token_ids" not in events[1]["choices"][0]
    assert [token for event in events for token in event["choices"][0]["token_ids"]] == whole["token_ids"]


def test_every_optional_field_may_be_null(server: ServerProcess) -> None:
    """GuideLLM sends ``stop: null``; others send the rest."""
    from kvplan_engine.server.openai.requests import ChatBody, CompletionBody

    completion: dict[str, Any] = dict.fromkeys(CompletionBody.__struct_fields__)
    answer = server.post("/v1/completions", {**completion, "prompt": "the"})
    assert answer.json["usage"]["completion_tokens"] <= 16
    chat: dict[str, Any] = dict.fromkeys(ChatBody.__struct_fields__)
    assert server.post("/v1/chat/completions", {**chat, "messages": MESSAGES, "max_tokens": 2}).status == 200


def test_several_prompts_and_samples_are_choices_in_order(server: ServerProcess) -> None:
    fields: dict[str, Any] = {"temperature": 0.9, "seed": 2, "max_tokens": 8, "n": 2, "return_token_ids": True}
    alone = [server.complete(prompt, **fields)["choices"] for prompt in ("the cache", "a token")]
    together = server.complete(["the cache", "a token"], **fields)
    assert [choice["index"] for choice in together["choices"]] == [0, 1, 2, 3]
    assert [each["token_ids"] for each in together["choices"]] == [each["token_ids"] for own in alone for each in own]
    events = server.events("/v1/completions", {"prompt": ["the cache", "a token"], **fields})[:-1]
    for index in range(4):
        own = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert [token for each in own for token in each["token_ids"]] == together["choices"][index]["token_ids"]


def test_echo_repeats_the_prompt(server: ServerProcess) -> None:
    plain = server.complete("the cache", max_tokens=3)["choices"][0]["text"]
    assert server.complete("the cache", max_tokens=3, echo=True)["choices"][0]["text"] == "the cache" + plain
    events = server.events(
        "/v1/completions", {"prompt": "the cache", "max_tokens": 3, "echo": True, "temperature": 0.0}
    )
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "the cache" + plain


def test_a_prompt_can_be_cut_to_its_end(server: ServerProcess) -> None:
    tokens = list(range(20, 60))
    cut = server.complete(tokens, max_tokens=2, truncate_prompt_tokens=8, return_token_ids=True)
    assert cut["choices"][0]["prompt_token_ids"] == tokens[-8:]
    longest = server.complete(list(range(300)), max_tokens=1, truncate_prompt_tokens=-1, return_token_ids=True)
    assert len(longest["choices"][0]["prompt_token_ids"]) == 255
    roomy = server.complete(list(range(300)), max_tokens=20, truncate_prompt_tokens=-1, return_token_ids=True)
    assert len(roomy["choices"][0]["prompt_token_ids"]) == 236
    assert roomy["usage"]["completion_tokens"] <= 20


# ---- tokens


def test_tokenize_and_detokenize_are_inverse(server: ServerProcess) -> None:
    answer = server.post("/tokenize", {"prompt": "the capital of Paris ö", "return_token_strs": True}).json
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 256
    assert server.post("/detokenize", {"tokens": answer["tokens"]}).json == {"prompt": "the capital of Paris ö"}
    chat = server.post("/tokenize", {"messages": MESSAGES}).json["tokens"]
    text = server.post("/detokenize", {"tokens": chat}).json["prompt"]
    assert text == "<|start|>system: Be brief.\n<|start|>user: the capital\n<|start|>assistant: "


def test_a_chat_answers_the_rendered_prompt(server: ServerProcess) -> None:
    tokens = server.post("/tokenize", {"messages": MESSAGES}).json["tokens"]
    completion = server.complete(tokens, max_tokens=9)["choices"][0]["text"]
    chat = server.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 9, "temperature": 0.0}).json
    assert chat["choices"][0]["message"]["content"] == completion
