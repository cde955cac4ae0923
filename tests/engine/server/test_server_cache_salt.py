"""cache_salt: tenants of one server that do not want to share a prefix cache."""

from __future__ import annotations

from typing import Any

import pytest
from server_process import ServerProcess

pytestmark = pytest.mark.xdist_group("server")  # one server for all who share it

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
