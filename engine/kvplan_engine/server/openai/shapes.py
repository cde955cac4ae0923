"""The chunks and the answer of a request, as far as completions and chat completions have them in common.

A chunk of an ordinary token is put together from bytes made once per choice and the token's text. All other chunks,
which carry more than text, are encoded from dictionaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kvplan_engine.requests.request import LoRARequest
from kvplan_engine.server.engine_client.generation import Generation
from kvplan_engine.server.openai.choices import ChatLogprobs, CompletionLogprobs, Delta, Echoed, prompt_logprobs
from kvplan_engine.server.openai.parameters import AnswerOptions
from kvplan_engine.server.text.tokenizer import TextTokenizer

_encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"
# Beyond them it takes more than a few milliseconds to make what a request needs, or its answer.
_MANY_CHOICES = 128
_MANY_TOKENS = 500


def event(content: dict[str, Any]) -> bytes:
    """``content`` as a server-sent event."""
    return b"data: " + _encode(content) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Prompt:
    """text: as it was given or rendered; None where token ids were given that are not to be repeated."""

    token_ids: list[int]
    text: str | None


@dataclass(frozen=True, slots=True)
class AnswerContext:
    """What every chunk of an answer says, and what it is made from. created: seconds of the epoch.

    engine: the one that the client chose; None: any. cache_salt: only requests with the same one share cached prefixes.
    """

    answer_id: str
    created: int
    model: str
    options: AnswerOptions
    prompts: list[Prompt]
    num_samples: int
    tokenizer: TextTokenizer | None
    lora_request: LoRARequest | None = None
    engine: int | None = None
    cache_salt: str | None = None

    @property
    def is_large(self) -> bool:
        """Whether its choices, or the prompts' tokens it speaks of, are so many that the event loop should not wait."""
        num_choices = len(self.prompts) * self.num_samples
        has_details = self.options.num_prompt_logprobs is not None
        num_tokens = sum(len(prompt.token_ids) for prompt in self.prompts) if has_details else 0
        return num_choices > _MANY_CHOICES or num_tokens > _MANY_TOKENS

    def prompt_of(self, choice: int) -> Prompt:
        return self.prompts[choice // self.num_samples]


class AnswerShape:
    """The chunks and the answer of one request. ``chunk_object``, ``answer_object``: OpenAI's ``object``.

    generations: one for each prompt, once they are submitted. plain_parts: for each choice, what stands before and
    behind the text in the chunk of an ordinary token; none where such chunks say more.
    """

    chunk_object = ""
    answer_object = ""

    def __init__(self, context: AnswerContext) -> None:
        self.context = context
        self.generations: Sequence[Generation] = ()
        options = context.options
        num_choices = len(context.prompts) * context.num_samples
        self._logprobs = [self._make_logprobs(index) for index in range(num_choices)]
        has_more = options.num_logprobs is not None or options.return_token_ids or options.continuous_usage
        self._is_plain = options.stream and not has_more and not options.echo_only
        self.plain_parts = [self._plain_parts(index) for index in range(num_choices)] if self._is_plain else []
        self._has_begun = [False] * num_choices

    # ---- streams

    def opening(self) -> bytes:
        """Chunks before the first token's."""
        return b""

    def chunk(self, delta: Delta, usage: dict[str, Any] | None) -> bytes:
        """The chunk of one token. usage: where it is shown in every chunk."""
        begins = not self._has_begun[delta.choice]
        if self._is_plain and delta.finish_reason is None and not (begins and self.context.options.echo):
            before, after = self.plain_parts[delta.choice]
            self._has_begun[delta.choice] = True
            return before + _encode(delta.text) + after
        self._has_begun[delta.choice] = True
        content = self._head(self.chunk_object)
        content["choices"] = [self._chunk_choice(delta, begins=begins)]
        if usage is not None:
            content["usage"] = usage
        return event(content)

    def usage_chunk(self, usage: dict[str, Any], metrics: dict[str, Any]) -> bytes:
        """The last chunk, without choices."""
        return event({**self._head(self.chunk_object), "choices": [], "usage": usage, "metrics": metrics})

    def _plain_parts(self, index: int) -> tuple[bytes, bytes]:
        """The bytes before and behind the text in the chunk of an ordinary token."""
        marker = "\0text\0"
        delta = Delta(index, marker, 0)
        content = {**self._head(self.chunk_object), "choices": [self._chunk_choice(delta, begins=False)]}
        before, after = event(content).split(_encode(marker))
        return before, after

    def _chunk_choice(self, delta: Delta, *, begins: bool) -> dict[str, Any]:
        raise NotImplementedError

    # ---- whole answers

    def answer(self, deltas: list[list[Delta]], usage: dict[str, Any], metrics: dict[str, Any]) -> dict[str, Any]:
        """The whole answer; ``deltas``: by choice."""
        choices = [self._answer_choice(index, own) for index, own in enumerate(deltas)]
        return {**self._head(self.answer_object), "choices": choices, "usage": usage, "metrics": metrics}

    def _answer_choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        raise NotImplementedError

    # ---- both

    def _head(self, kind: str) -> dict[str, Any]:
        context = self.context
        return {"id": context.answer_id, "object": kind, "created": context.created, "model": context.model}

    def _make_logprobs(self, index: int) -> CompletionLogprobs | ChatLogprobs | None:
        raise NotImplementedError

    def _logprobs_of(self, index: int, deltas: list[Delta], echoed: Echoed | None = None) -> dict[str, Any] | None:
        logprobs = self._logprobs[index]
        return None if logprobs is None else logprobs.of(deltas, echoed)

    def _reported_prompt(self, index: int) -> Echoed | None:
        """The prompt of choice ``index`` with its log-probabilities, where they were asked for."""
        reported = self.generations[index // self.context.num_samples].prompt_logprobs
        return None if reported is None else (self.context.prompt_of(index).token_ids, reported)

    def _prompt_logprobs(self, index: int) -> list[dict[str, dict[str, Any]] | None] | None:
        prompt = self._reported_prompt(index)
        return None if prompt is None else prompt_logprobs(self.context.tokenizer, prompt)

    def _endings(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        """Why a choice ended, if it has; its token ids, where they were asked for."""
        last = deltas[-1]
        endings: dict[str, Any] = {"finish_reason": last.finish_reason, "stop_reason": last.stop_reason}
        if self.context.options.return_token_ids:
            endings["token_ids"] = [delta.token for delta in deltas]
        return endings


class CompletionShape(AnswerShape):
    """/v1/completions."""

    chunk_object = answer_object = "text_completion"

    def _make_logprobs(self, index: int) -> CompletionLogprobs | None:
        number = self.context.options.num_logprobs
        return None if number is None else CompletionLogprobs(self.context.tokenizer, number)

    def _chunk_choice(self, delta: Delta, *, begins: bool) -> dict[str, Any]:
        options = self.context.options
        choice: dict[str, Any] = {
            "index": delta.choice,
            "text": (self._echo(delta.choice) if begins else "") + self._text([delta]),
            "logprobs": self._shown_logprobs(delta.choice, [delta], begins=begins),
            **self._endings([delta]),
        }
        if options.return_token_ids and begins:
            choice["prompt_token_ids"] = self.context.prompt_of(delta.choice).token_ids
        return choice

    def _answer_choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "text": self._echo(index) + self._text(deltas),
            "logprobs": self._shown_logprobs(index, deltas, begins=True),
            "prompt_logprobs": self._prompt_logprobs(index),
            **self._endings(deltas),
        }
        if self.context.options.return_token_ids:
            choice["prompt_token_ids"] = self.context.prompt_of(index).token_ids
        return choice

    def _shown(self, deltas: list[Delta]) -> list[Delta]:
        """Return those whose tokens are part of the answer."""
        return [] if self.context.options.echo_only else deltas

    def _text(self, deltas: list[Delta]) -> str:
        return "".join(delta.text for delta in self._shown(deltas))

    def _shown_logprobs(self, index: int, deltas: list[Delta], *, begins: bool) -> dict[str, Any] | None:
        """Where the answer begins with the prompt, so do they."""
        options = self.context.options
        echoes = begins and options.echo and options.num_logprobs is not None
        return self._logprobs_of(index, self._shown(deltas), self._reported_prompt(index) if echoes else None)

    def _echo(self, index: int) -> str:
        """The prompt's text, where it is to be repeated."""
        if not self.context.options.echo:
            return ""
        return self.context.prompt_of(index).text or ""


class ChatShape(AnswerShape):
    """/v1/chat/completions."""

    chunk_object = "chat.completion.chunk"
    answer_object = "chat.completion"

    def _make_logprobs(self, index: int) -> ChatLogprobs | None:
        number = self.context.options.num_logprobs
        return None if number is None else ChatLogprobs(self.context.tokenizer, number)

    def opening(self) -> bytes:
        """Return for each choice a chunk that says who speaks: it carries no token."""
        chunks = b""
        for index in range(self.context.num_samples):
            choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
            content = {**self._head(self.chunk_object), "choices": [{**choice, "finish_reason": None}]}
            if self.context.options.return_token_ids and index == 0:
                content["prompt_token_ids"] = self.context.prompts[0].token_ids
            chunks += event(content)
        return chunks

    def _chunk_choice(self, delta: Delta, *, begins: bool) -> dict[str, Any]:
        return {
            "index": delta.choice,
            "delta": {"content": delta.text},
            "logprobs": self._logprobs_of(delta.choice, [delta]),
            **self._endings([delta]),
        }

    def _answer_choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": "".join(delta.text for delta in deltas), "refusal": None},
            "logprobs": self._logprobs_of(index, deltas),
            **self._endings(deltas),
        }

    def answer(self, deltas: list[list[Delta]], usage: dict[str, Any], metrics: dict[str, Any]) -> dict[str, Any]:
        answer = {**super().answer(deltas, usage, metrics), "prompt_logprobs": self._prompt_logprobs(0)}
        if self.context.options.return_token_ids:
            answer["prompt_token_ids"] = self.context.prompts[0].token_ids
        return answer
