"""Values of the wrong type: a 400 before anything is queued, for every field that is not refused as a whole."""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from server_process import ServerProcess

from kvplan_engine.server.openai.requests import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody

pytestmark = pytest.mark.xdist_group("server")  # one server for all who share it

VALUES: dict[str, Any] = {
    "text": "1", "flag": True, "number": 2.5, "integral": 2.0, "integer": 3, "list": [], "object": {},
    "nested": [[[0]]],
}  # fmt: skip
_FITTING = {
    "str": {"text"}, "bool": {"flag"}, "int": {"integer"}, "float": {"number", "integral", "integer"}, "list": {"list"},
    "dict": {"object"}, "StreamOptions": {"object"},
}  # fmt: skip

ENDPOINTS: dict[str, tuple[type, dict[str, Any]]] = {
    "/v1/completions": (CompletionBody, {"prompt": "the cache", "max_tokens": 1}),
    "/v1/chat/completions": (ChatBody, {"messages": [{"role": "user", "content": "the"}], "max_tokens": 1}),
    "/tokenize": (TokenizeBody, {"prompt": "the cache"}),
    "/detokenize": (DetokenizeBody, {"tokens": [1, 2]}),
}


def _wrong_values(hint: Any) -> dict[str, Any]:
    """Those of VALUES that are of none of the types in ``hint``."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    fitting = {name for part in parts for name in _FITTING.get((get_origin(part) or part).__name__, ())}
    return {name: value for name, value in VALUES.items() if name not in fitting}


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_value_of_the_wrong_type_is_a_400_that_names_its_field(server: ServerProcess, path: str) -> None:
    kind, fine = ENDPOINTS[path]
    num_tried = 0
    for field, hint in get_type_hints(kind).items():
        if hint is Any:  # refused, but for values that ask for nothing
            continue
        for name, value in _wrong_values(hint).items():
            answer = server.post(path, {**fine, field: value})
            assert answer.status == 400, (field, name, answer)
            assert field in answer.error["message"], (field, name, answer.error)
            num_tried += 1
    assert num_tried > 5 * len(get_type_hints(kind)) / 2
    assert server.wait_until_idle()["num_used_blocks"] == 0


@pytest.mark.parametrize("field", [name for name, hint in get_type_hints(ChatBody).items() if hint is Any])
def test_what_is_not_supported_is_refused_whatever_its_type(server: ServerProcess, field: str) -> None:
    for value in (True, 3, 2.5, "x", ["x"], {"x": 1}):
        answer = server.post("/v1/chat/completions", {**ENDPOINTS["/v1/chat/completions"][1], field: value})
        assert answer.status == 400
        assert field in answer.error["message"]


@pytest.mark.parametrize("fields", [
    {"prompt": [True]}, {"prompt": [1.0]}, {"prompt": [[1, "a"]]}, {"prompt": [[True]]}, {"prompt": [None]},
    {"prompt": {"a": 1}}, {"stop": [1]}, {"stop": [["a"]]}, {"stop_token_ids": [1.5]}, {"stop_token_ids": [True]},
    {"logit_bias": {"5": "1"}}, {"logit_bias": {"5": True}}, {"logit_bias": {"5": None}}, {"logit_bias": {"a": 1}},
    {"logit_bias": {"1_0": 1}}, {"logit_bias": {" 1": 1}}, {"logit_bias": {"1.0": 1}}, {"logit_bias": {"-1": 1}},
    {"stream": True, "stream_options": {"include_usage": "yes"}}, {"best_of": 2}, {"n": 2**70}, {"max_tokens": 2**70},
    {"min_tokens": 2**70}, {"truncate_prompt_tokens": -2}, {"stop_token_ids": [2**70]}, {"temperature": 10**400},
    {"logprobs": 2**70}, {"prompt_logprobs": -1}, {"n": 0}, {"n": -1}, {"max_tokens": -1},
], ids=str)  # fmt: skip
def test_wrong_values_within_a_field_are_a_400(server: ServerProcess, fields: dict[str, Any]) -> None:
    answer = server.post("/v1/completions", {"prompt": "the", **fields})
    assert answer.status == 400, answer
    field = list(fields)[-1]
    assert field in answer.error["message"] or answer.error["param"] == field or "not valid" in answer.error["message"]


@pytest.mark.parametrize("changes", [
    {"max_num_seqs": True}, {"max_num_seqs": 2.5}, {"max_num_seqs": "4"}, {"max_num_seqs": [4]},
    {"max_num_seqs": 2**70}, {"gpu_memory_utilization": "0.5"}, {"gpu_memory_utilization": True},
    {"enable_prefix_caching": 1}, {"enable_prefix_caching": "yes"}, {"max_model_len": {"a": 1}},
    {"block_size": 16.5}, {"max_model_len": 0},
], ids=str)  # fmt: skip
def test_settings_of_the_wrong_type_change_nothing(server: ServerProcess, changes: dict[str, Any]) -> None:
    before = server.get("/v1/runtime_config").json
    answer = server.request("PATCH", "/v1/runtime_config", changes)
    assert answer.status == 400, answer
    assert server.get("/v1/runtime_config").json == before


def test_names_are_not_sent_back_at_any_length(server: ServerProcess) -> None:
    answer = server.post("/v1/completions", {"prompt": "the", "model": "x" * 1_000_000})
    assert answer.status == 404
    assert len(answer.body) < 5000
    answer = server.post("/v1/completions", {"prompt": "the", "x" * 1_000_000: 1})
    assert answer.status == 400
    assert len(answer.body) < 5000


# ---- amounts


@pytest.mark.parametrize(("path", "body"), [
    ("/v1/completions", {"prompt": "the cache " * 3000}),
    ("/v1/completions", {"prompt": ["the", "the cache " * 3000]}),
    ("/v1/completions", {"prompt": "the cache " * 300_000}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "the cache " * 3000}]}),
], ids=["text", "list", "huge", "chat"])  # fmt: skip
def test_a_text_that_cannot_fit_is_refused_by_its_characters(server: ServerProcess, path: str, body: Any) -> None:
    answer = server.post(path, body)
    assert answer.status == 400
    assert answer.error["param"] == "prompt"
    assert "maximum context length is 256 tokens" in answer.error["message"]
    assert "0,0" in answer.error["message"] and "characters" in answer.error["message"]


def test_a_text_that_is_only_encoded_may_be_longer(server: ServerProcess) -> None:
    text = "the cache " * 3000
    assert server.post("/tokenize", {"prompt": text}).json["count"] > 256
    cut = server.complete(text, max_tokens=1, truncate_prompt_tokens=10)
    assert cut["usage"]["prompt_tokens"] == 10
    for path, fields in (("/tokenize", {}), ("/v1/completions", {"truncate_prompt_tokens": 10})):
        answer = server.post(path, {"prompt": "the cache " * 110_000, **fields})
        assert answer.status == 400
        assert "at most 1,048,576 are encoded at once" in answer.error["message"]


@pytest.mark.parametrize("message", [
    {"content": "a" * 1_100_000}, {"content": "a", "tool_calls": [{"arguments": {"x": "a" * 1_100_000}}]},
    {"content": [{"type": "text", "text": "a" * 550_000}] * 2},
], ids=["content", "elsewhere", "parts"])  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_a_long_conversation_is_refused_before_it_is_rendered(server: ServerProcess, path: str, message: Any) -> None:
    answer = server.post(path, {"messages": [{"role": "user", **message}]})
    assert answer.status == 400
    assert "characters; at most 1,048,576" in answer.error["message"]


def test_tokens_are_decoded_up_to_the_context(server: ServerProcess) -> None:
    assert server.post("/detokenize", {"tokens": [300] * 256}).status == 200
    assert server.post("/detokenize", {"tokens": []}).json == {"prompt": ""}
    answer = server.post("/detokenize", {"tokens": [300] * 257})
    assert answer.status == 400
    assert "maximum context length is 256 tokens" in answer.error["message"]


def test_a_body_of_a_million_lists_is_not_decoded(server: ServerProcess) -> None:
    for field in ("user", "prompt", "stop", "metadata", "logit_bias"):
        body = b'{"prompt": "a", "%b": [' % field.encode() + b"[]," * 1_000_000 + b"[]]}"
        answer = server.post("/v1/completions", body)
        assert answer.status == 400
        assert "65,536 lists and objects" in answer.error["message"]


def test_many_prompts_do_not_each_name_many_tokens(server: ServerProcess) -> None:
    answer = server.post("/v1/completions", {"prompt": [[1]] * 1024, "stop_token_ids": [5] * 600, "max_tokens": 1})
    assert answer.status == 400
    assert "524,288 tokens" in answer.error["message"]
    answer = server.post("/v1/completions", {"prompt": [[1]] * 1024, "n": 17, "max_tokens": 1})
    assert answer.status == 400
    assert "at most 16,384" in answer.error["message"]
