"""How much there is to decode in a body: texts are told apart from lists, objects and numbers."""

from __future__ import annotations

import json
import random

import pytest

from kvplan_engine.server.openai import parameters
from kvplan_engine.server.openai.parameters import MOST_CONTAINERS, MOST_VALUES, is_decoded_soon

_ESCAPED = rb"[,\\" * 700_000 + rb"\",["
_SLICE = b'["' + rb"\\" * 131_071 + rb"x\""  # its last two bytes lie in two slices


@pytest.mark.parametrize(("body", "is_soon"), [
    (b'{"a": [1, 2, {"b": "c"}]}', True),
    (b"[" + b"0," * (MOST_VALUES - 1) + b"0]", True),
    (b"[" + b"0," * MOST_VALUES + b"0]", False),
    (b"[" + b"[]," * (MOST_CONTAINERS - 2) + b"[]]", True),
    (b"[" + b"[]," * (MOST_CONTAINERS - 1) + b"[]]", False),
    (b"[" * 100_000 + b"]" * 100_000, False),
    (b'["' + b"[,{" * 700_000 + b'"]', True),
    (b'["' + _ESCAPED + b'", "' + _ESCAPED + b'"]', True),
    (_SLICE + b"[" * 70_000 + b'"]', True),
    (_SLICE + b'", ' + b"[]," * 70_000 + b'"[,["]', False),
    (b"[" + b'"[",' * (MOST_VALUES - 1) + b'""]', True),
], ids=[
    "small", "values", "values+1", "lists", "lists+1", "deep", "text", "escapes", "cut", "cut-then-lists", "texts",
])  # fmt: skip
def test_only_what_takes_long_to_decode_is_large(body: bytes, is_soon: bool) -> None:
    assert is_decoded_soon(body) is is_soon


def _slowly_outside_texts(body: bytes) -> str:
    """One character after the other."""
    outside, is_in_text, is_escaped = "", False, False
    for letter in body.decode():
        if not is_in_text:
            is_in_text = letter == '"'
            outside += "" if is_in_text else letter
        elif is_escaped:
            is_escaped = False
        else:
            is_in_text, is_escaped = letter != '"', letter == "\\"
    return outside


def test_texts_are_told_apart_wherever_a_body_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "_SLICE_BYTES", 7)
    draw = random.Random(3)
    for _ in range(300):
        text = "".join(draw.choice('\\"[{,x') for _ in range(draw.randrange(1, 60)))
        body = json.dumps([text, {"a": 0}, []] * draw.randrange(1, 6)).encode()
        assert b"".join(parameters._outside_texts(body)).decode() == _slowly_outside_texts(body)
