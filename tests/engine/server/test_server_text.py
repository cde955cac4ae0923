"""Text in the API process: decoding token by token, stop strings, chat templates."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from server_process import plain
from tokenizers import decoders
from transformers import AutoTokenizer

from kvplan_engine.requests.detokenizer import Detokenizer, answer_text
from kvplan_engine.server.text.byte_level import ByteStreamDecoder
from kvplan_engine.server.text.chat_template import ChatTemplate, TemplateFailed
from kvplan_engine.server.text.decoding import AnswerDecoder, StreamDecoder, answer_decoder
from kvplan_engine.server.text.stop_strings import StopStrings
from kvplan_engine.server.text.tokenizer import TextTokenizer


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> TextTokenizer:
    return TextTokenizer((model_path / "tokenizer.json").read_text(encoding="utf-8"))


def _by_bytes(tokenizer: TextTokenizer, prompt: list[int]) -> AnswerDecoder:
    decoder = answer_decoder(tokenizer, prompt)
    assert isinstance(decoder, ByteStreamDecoder)
    return decoder


_either_decoder = pytest.mark.parametrize("make", [StreamDecoder, _by_bytes], ids=["library", "bytes"])
Make = Callable[[TextTokenizer, list[int]], AnswerDecoder]


def _streamed(decoder: AnswerDecoder, tokens: list[int]) -> str:
    return "".join(map(decoder.add, tokens)) + decoder.flush()


@pytest.mark.parametrize("first", [0, 3, 130], ids=["any", "no-special", "words"])
def test_a_stream_decodes_as_the_engine_does(tokenizer: TextTokenizer, first: int) -> None:
    """Tokens at random: most are no valid text, and special tokens are among them."""
    draw = random.Random(first)
    for _ in range(300):
        prompt = [draw.randrange(first, 384) for _ in range(draw.randrange(1, 12))]
        tokens = [draw.randrange(first, 384) for _ in range(draw.randrange(1, 40))]
        reference = Detokenizer(tokenizer, prompt)
        expected = "".join(map(reference.add, tokens)) + reference.flush()
        assert plain(_streamed(StreamDecoder(tokenizer, prompt), tokens)) == plain(expected)


@pytest.mark.parametrize("first", [0, 3, 130], ids=["any", "no-special", "words"])
def test_bytes_decode_as_a_whole_answer_does(tokenizer: TextTokenizer, first: int) -> None:
    """To the character, also where tokens are no valid text."""
    draw = random.Random(first)
    for _ in range(300):
        prompt = [draw.randrange(first, 384) for _ in range(draw.randrange(1, 12))]
        tokens = [draw.randrange(first, 384) for _ in range(draw.randrange(1, 40))]
        assert _streamed(_by_bytes(tokenizer, prompt), tokens) == answer_text(tokenizer, prompt, tokens)


@_either_decoder
def test_a_stream_of_valid_text_is_what_a_whole_answer_decodes_to(tokenizer: TextTokenizer, make: Make) -> None:
    text = "the cache 🙂 holds äöü and 日本語 <|end|> of Paris"
    tokens = tokenizer._encode(text, True)
    for start in range(1, len(tokens)):
        expected = answer_text(tokenizer, tokens[:start], tokens[start:])
        assert _streamed(make(tokenizer, tokens[:start]), tokens[start:]) == expected


@_either_decoder
def test_text_arrives_as_soon_as_its_characters_are_complete(tokenizer: TextTokenizer, make: Make) -> None:
    tokens = tokenizer._encode("the cache 🙂🙂 ö", True)
    decoder = make(tokenizer, [300])
    pieces = [decoder.add(token) for token in tokens]
    assert "".join(pieces) == "the cache 🙂🙂 ö"
    assert "\ufffd" not in "".join(pieces)
    assert decoder.flush() == ""


@_either_decoder
def test_held_tokens_are_not_lost_when_an_answer_ends_within_a_character(tokenizer: TextTokenizer, make: Make) -> None:
    smile = tokenizer._encode("x語", True)
    assert len(smile) > 2, "one token per character cannot tell"
    assert _streamed(make(tokenizer, []), smile[:-1]).rstrip("\ufffd") == "x"


def test_texts_are_encoded_as_transformers_does(model_path: Path, tokenizer: TextTokenizer) -> None:
    reference = AutoTokenizer.from_pretrained(str(model_path))
    for text in ("the capital", " Paris 🙂", "<|end|>the", ""):
        assert tokenizer._encode(text, True) == reference.encode(text)


def test_special_tokens_are_text_where_they_are_not_skipped(tokenizer: TextTokenizer) -> None:
    tokens = tokenizer._encode("the<|end|> cache", True)
    assert _streamed(answer_decoder(tokenizer, [300]), tokens) == "the cache"
    assert _streamed(answer_decoder(tokenizer, [300], skip_special_tokens=False), tokens) == "the<|end|> cache"


def test_tokens_that_depend_on_their_neighbours_are_left_to_the_library(tokenizer: TextTokenizer) -> None:
    other = TextTokenizer(tokenizer.backend.to_str())
    other.backend.decoder = decoders.Metaspace()
    assert isinstance(answer_decoder(TextTokenizer(other.backend.to_str()), [300]), StreamDecoder)


# ---- stop strings


@pytest.mark.parametrize(("stops", "text", "kept"), [
    (("abc",), "xabxabcy", "xabx"),
    (("ab", "b"), "xxab", "xx"),
    (("bcd", "cx"), "abcx", "ab"),
    (("\n\n",), "a\nb\n\nc", "a\nb"),
    (("zz",), "abc z", "abc z"),
])  # fmt: skip
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_text_before_a_stop_string_is_released_whatever_the_pieces(
    stops: tuple[str, ...], text: str, kept: str, size: int
) -> None:
    finder = StopStrings(stops)
    released = ""
    for start in range(0, len(text), size):
        result = finder.feed(text[start : start + size])
        released += result.text
        if result.stop is not None:
            break
    else:
        released += finder.flush()
    assert released == kept


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    finder = StopStrings(("STOP",))
    assert finder.feed("go on").text == "go on"
    assert finder.feed(" ST").text == " "
    assert finder.feed("EP").text == "STEP"


def test_a_stop_string_before_the_least_length_is_text() -> None:
    finder = StopStrings(("ab",))
    assert finder.feed("ab", may_stop=False).text == "ab"
    assert finder.feed("xa", may_stop=False).text == "x"
    assert finder.feed("b").stop == "ab"


# ---- chat templates


def _render(source: str, messages: list[dict[str, Any]] | None = None, **variables: Any) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>"})
    given = messages if messages is not None else [{"role": "user", "content": "hi"}]
    return template.render(given, add_generation_prompt=True, variables=variables)


def test_a_template_renders_as_in_transformers(model_path: Path) -> None:
    reference = AutoTokenizer.from_pretrained(str(model_path))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "äh, hi {{ 1 }}"}]
    config = json.loads((model_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    template = ChatTemplate(reference.chat_template, {"bos_token": config["bos_token"]})
    for prompt in (True, False):
        expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        assert template.render(messages, add_generation_prompt=prompt, variables={}) == expected


def test_templates_have_what_published_ones_use() -> None:
    assert _render("{{ bos_token ~ messages|tojson }}") == '<s>[{"role": "user", "content": "hi"}]'
    assert _render("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}") == "hi"
    assert _render("{{ thinking }}{% for i in range(3) %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}",
                   thinking=True) == "True0"  # fmt: skip
    assert len(_render("{{ strftime_now('%Y') }}")) == 4


@pytest.mark.parametrize("source", [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in 'x' * 9999 %}{% for j in 'x' * 9999 %}{% endfor %}{% endfor %}",
    "{{ 'a' * 10**9 }}",
    "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{{ '%999999999d' % 1 }}",
    "{{ 'a'.center(10**9) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ messages.__class__.__mro__ }}",
    "{{ 1 / 0 }}",
    "{{ messages[7].content.x }}",
])  # fmt: skip
def test_a_template_that_asks_too_much_fails_in_one_sentence(source: str) -> None:
    with pytest.raises(TemplateFailed, match="chat template"):
        _render(source)


def test_a_template_that_is_no_jinja_is_said() -> None:
    with pytest.raises(TemplateFailed, match="not valid"):
        ChatTemplate("{% for %}", {})
