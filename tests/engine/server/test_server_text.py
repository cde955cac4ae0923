"""Text in the API process: decoding token by token, stop strings, chat templates."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from server_process import plain
from tokenizers import decoders
from transformers import AutoTokenizer

from kvplan_engine.requests.detokenizer import Detokenizer, answer_text
from kvplan_engine.server.openai.choices import StopStrings
from kvplan_engine.server.text.chat_template import ChatTemplate
from kvplan_engine.server.text.rendering import TemplateRenderer
from kvplan_engine.server.text.template_messages import PromptTooLong, TemplateFailed
from kvplan_engine.server.text.tokenizer import (
    AnswerDecoder,
    ByteStreamDecoder,
    StreamDecoder,
    TextTokenizer,
    TextTooLong,
    answer_decoder,
)


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


# ---- the process that renders them

_DOUBLED = "{% set ns = namespace(a=['x']) %}{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}"


@pytest.fixture
def same_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is started finds the modules that this one does."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entry for entry in sys.path if entry))


HI = [{"role": "user", "content": "hi"}]


def _render_apart(source: str, *conversations: list[dict[str, Any]]) -> list[str]:
    """What becomes of each of ``conversations``: the prompt, or why there is none."""

    async def render() -> list[str]:
        renderer = TemplateRenderer(source, {"bos_token": "<s>"}, cpu_seconds=0.25)
        outcomes = []
        for messages in conversations:
            try:
                text = await renderer.render(
                    messages, add_generation_prompt=True, variables={"n": 2**70}, most_characters=1_000_000
                )
                outcomes.append(text)
            except TemplateFailed as problem:
                outcomes.append(str(problem))
            except PromptTooLong as problem:
                outcomes.append(f"{problem.num_characters:,} characters")
        await renderer.close()
        return outcomes

    return asyncio.run(render())


@pytest.mark.usefixtures("same_imports")
def test_a_template_is_rendered_by_another_process_as_by_this_one() -> None:
    source = "{{ bos_token }}{{ n }}{% for m in messages %}{{ m.content }}{% endfor %}"
    messages = [{"role": "user", "content": "äh 🙂\n"}, {"role": "user", "content": "x" * 300_000}]
    assert _render_apart(source, messages, HI) == [
        _render(source, messages, n=2**70), "<s>1180591620717411303424hi"
    ]  # fmt: skip


@pytest.mark.usefixtures("same_imports")
def test_of_a_prompt_that_is_too_long_only_the_length_comes_back() -> None:
    messages = [{"role": "user", "content": "é" * 999_999}]
    assert _render_apart("{{ messages[0].content }}aa", messages, HI) == ["1,000,001 characters", "hiaa"]


@pytest.mark.parametrize("use", [
    "{{ ns.a }}", "{{ ns.a | tojson }}", "{{ ('x\n' * 9000000) | indent(99) | length }}", "{{ lipsum(n=100000) }}",
], ids=["text", "json", "indent", "lipsum"])  # fmt: skip
@pytest.mark.usefixtures("same_imports")
def test_a_template_that_nothing_in_python_can_end_is_ended(use: str) -> None:
    """Only for the messages with which it costs too much: the next ones are rendered again."""
    source = _DOUBLED + "{% if messages[0].content == 'attack' %}" + use + "{% else %}fine{% endif %}"
    attack = [{"role": "user", "content": "attack"}]
    refused, fine, again = _render_apart(source, attack, HI, attack)
    assert "too much" in refused or "too long a prompt" in refused
    assert fine == "fine"
    assert again == refused


@pytest.mark.parametrize(("source", "says"), [
    ("{% for %}", "not valid"),
    ("{{ [" + "[1] * 99999 + " * 200 + "[1]] }}" + "{{ 'a' * 9 }}" * 20_000, "too long to compile"),
], ids=["no-jinja", "endless"])  # fmt: skip
@pytest.mark.usefixtures("same_imports")
def test_a_template_that_cannot_be_compiled_is_said_with_each_request(source: str, says: str) -> None:
    first, second = _render_apart(source, HI, HI)
    assert says in first
    assert second == first


# ---- long texts


def _num_turns(work: Callable[[], object]) -> int:
    """How often this thread had its turn while ``work`` ran in another."""
    thread = threading.Thread(target=work)
    thread.start()
    turns = 0
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    return turns


def test_long_work_leaves_the_event_loop_its_turns(tokenizer: TextTokenizer) -> None:
    """The library's plain encode and decode keep the interpreter's lock until they are done: one turn, or two."""
    text = "the cache holds the keys " * 20_000
    assert _num_turns(lambda: tokenizer._encode_long(text, True, None)) > 10
    token_ids = tokenizer._encode(text, True)
    assert _num_turns(lambda: tokenizer._decode_freely(token_ids * 5, True)) > 10


def test_long_texts_have_the_tokens_of_short_ones(tokenizer: TextTokenizer) -> None:
    text = "the cache 🙂 holds äöü and 日本語 of Paris " * 100
    reference = tokenizer.backend.encode(text).ids
    assert asyncio.run(tokenizer.encode(text)) == asyncio.run(tokenizer.encode(text, most_tokens=2)) == reference
    assert asyncio.run(tokenizer.decode_long(reference)) == tokenizer.backend.decode(reference)


def test_a_text_of_far_too_many_tokens_is_not_encoded_to_its_end(tokenizer: TextTokenizer) -> None:
    text = "the cache " * 200_000
    with pytest.raises(TextTooLong):
        tokenizer._check_length(text, 1000)
    tokenizer._check_length(text, len(text))
    assert tokenizer.longest_token == max(map(len, tokenizer.backend.get_vocab()))
