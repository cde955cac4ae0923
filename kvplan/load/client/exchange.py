"""One request and its answer: bytes in, times and token counts out.

Server-sent events of an OpenAI-compatible server: bytes -> payloads -> what each says of tokens.

A line may be as long as it likes and may arrive in any pieces; comments (keep-alive) and other fields are left out.
https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from kvplan.files import parse_json
from kvplan.load.client.record import RequestRecord
from kvplan.units import MIB

DONE: Final = b"[DONE]"
_OK: Final = 200
_MOST_ERROR_BYTES: Final = 65536
_BYTES_PER_TOKEN: Final = 16384
_BYTES_BESIDE_TOKENS: Final = 16 * MIB
"""Heads, keep-alives, and a last event that repeats prompt and answer, as llama.cpp's does."""
_TOKENS_BESIDE_PROMPT: Final = 100_000
"""A chat template with a system prompt of its own. A token of what was sent has a byte at least."""
_LONGEST_REASON: Final = 100
_LARGEST_SAID: Final = 10**18


class Exchange:
    """Fed by a connection; ``done`` is resolved when the answer is complete or broken.

    Tokens are counted by what the server says, never by chunks: by usage in every chunk (the difference to the last),
    else by the token ids in it, else only at the end. Chunks without a count leave times whose counts are unknown.

    Nobody vouches for the server: an answer has no more bytes and no more tokens than what was asked for can have.
    num_bytes_sent: of the request.
    """

    __slots__ = ("_body", "_bytes_left", "_events", "_is_done", "_num_bytes_sent", "_seen", "done", "has_answer",
                 "record")  # fmt: skip

    def __init__(self, record: RequestRecord, done: asyncio.Future[None], num_bytes_sent: int) -> None:
        self.record = record
        self.done = done
        self.has_answer = False
        self._num_bytes_sent = num_bytes_sent
        self._bytes_left = _BYTES_BESIDE_TOKENS + _BYTES_PER_TOKEN * record.num_output_tokens_asked
        self._events = EventSplitter()
        self._body = b""
        self._seen = 0
        self._is_done = False

    def takes(self, num_bytes: int) -> bool:
        """Whether so many bytes more, heads included, are still a possible answer; the request has failed if not."""
        self._bytes_left -= num_bytes
        if self._bytes_left >= 0:
            return True
        self.record.fail("the answer has more bytes than the tokens asked for can have")
        return False

    def on_status(self, status: int) -> None:
        self.has_answer = True
        self.record.status = status

    def on_body(self, data: bytes, now: float) -> None:
        if self.record.status != _OK:
            self._body = (self._body + data)[:_MOST_ERROR_BYTES]
            return
        for payload in self._events.feed(data):
            if payload == DONE:
                self._is_done = True
            else:
                self._take(payload, now)

    def on_complete(self, now: float) -> None:
        """The answer has ended as HTTP means it to."""
        record = self.record
        if record.status != _OK:
            record.fail(f"{record.status}: {error_text(self._body)}" if self._body else f"status {record.status}")
        elif not (self._is_done or record.finish_reason):
            record.fail("the stream ended before its answer did")
        elif not record.times:
            record.fail("no token came")
        self._end(now)

    def on_lost(self, now: float, reason: str) -> None:
        """The connection broke. A stream that had said its last word is complete all the same."""
        if not self._is_done:
            self.record.fail(reason)
        self._end(now)

    def _end(self, now: float) -> None:
        record = self.record
        record.ended = now
        if record.token_source in ("continuous_usage", "token_ids"):
            # The end may count tokens that no chunk carried: a stop token.
            record.num_output_tokens = max(record.num_output_tokens or 0, self._seen)
        if not self.done.done():
            self.done.set_result(None)

    def _take(self, payload: bytes, now: float) -> None:
        try:
            chunk = decode_chunk(payload)
        except ValueError:
            self.record.fail(f"a chunk could not be read: {payload[:80]!r}")
            return
        if chunk.error is not None:
            self.record.fail(error_text(payload))
            return
        record, choices = self.record, chunk.choices
        if choices:
            choice = choices[0]
            if choice.finish_reason:
                record.finish_reason = choice.finish_reason[:_LONGEST_REASON]
            num_new = self._num_new(chunk)
            if num_new or (num_new is None and choice.carries_output):
                record.times.append(now)
                if num_new:
                    record.counts.append(num_new)
        if chunk.usage is not None:
            self._take_usage(chunk)

    def _num_new(self, chunk: Chunk) -> int | None:
        """Tokens that came with the chunk; None where chunks do not say. The first one with output decides how."""
        record, usage = self.record, chunk.usage
        assert chunk.choices
        source, ids = record.token_source, chunk.choices[0].token_ids
        is_first = source is None and not record.times
        if usage is not None and usage.completion_tokens is not None and (source == "continuous_usage" or is_first):
            record.token_source = "continuous_usage"
            return self._seen_up_to(usage.completion_tokens)
        if ids is not None and (source == "token_ids" or is_first):
            record.token_source = "token_ids"
            return self._seen_up_to(self._seen + len(ids))
        return None if source is None else 0

    def _seen_up_to(self, num_tokens: int) -> int:
        """Tokens that are new where ``num_tokens`` were counted in all; a wrong count is none, and a failed request."""
        if not self._is_possible(num_tokens):
            return 0
        if num_tokens < self._seen:
            self.record.fail(f"the server counts {self._seen:,} tokens, and later only {_count(num_tokens)}")
            return 0
        new, self._seen = num_tokens - self._seen, num_tokens
        return new

    def _is_possible(self, num_tokens: int) -> bool:
        asked = self.record.num_output_tokens_asked
        if 0 <= num_tokens <= asked:
            return True
        self.record.fail(f"the server counts {_count(num_tokens)} tokens, but {asked:,} were asked for")
        return False

    def _take_usage(self, chunk: Chunk) -> None:
        record, usage = self.record, chunk.usage
        assert usage is not None
        if usage.completion_tokens is not None and self._is_possible(usage.completion_tokens):
            record.num_output_tokens = usage.completion_tokens
            record.token_source = record.token_source or "usage"
        if usage.prompt_tokens is None:
            return
        if 0 <= usage.prompt_tokens <= self._num_bytes_sent + _TOKENS_BESIDE_PROMPT:
            record.num_prompt_tokens = usage.prompt_tokens
            details = usage.prompt_tokens_details
            cached = None if details is None else details.cached_tokens
            if cached is not None and 0 <= cached <= usage.prompt_tokens:
                record.num_cached_tokens = cached
        else:
            sent = f"a request of {self._num_bytes_sent:,} bytes"
            record.fail(f"the server counts {_count(usage.prompt_tokens)} tokens in the prompt of {sent}")


def _count(number: int) -> str:
    """A number that may have thousands of digits."""
    return f"{number:,}" if abs(number) < _LARGEST_SAID else "a number of more than 18 digits of"


class EventSplitter:
    """Feeds on the bytes of an answer's body and gives the payloads of the events that are complete."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that end within ``data``, in their order."""
        if b"\n" not in data:  # put together only once its end is there: a long line may come byte by byte
            self._rest.append(data)
            return []
        lines = b"".join((*self._rest, data)).split(b"\n")
        self._rest = [lines.pop()]
        # Each of these servers writes an event's data in one line, so a line is an event.
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class PromptDetails(msgspec.Struct):
    """What is said of a prompt's tokens: how many the prefix cache had (vLLM: ``--enable-prompt-tokens-details``)."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Token counts so far."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Delta(msgspec.Struct):
    """A chat chunk's news."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: msgspec.Raw | None = None

    @property
    def carries_output(self) -> bool:
        """vLLM's rule: any text, or an empty one without a role. The role chunk alone carries no token."""
        if self.content or self.reasoning or self.reasoning_content or self.tool_calls:
            return True
        return self.content == "" and self.role is None


class Choice(msgspec.Struct):
    """One of a chunk's choices: ``text`` of completions, ``delta`` of chats."""

    text: str | None = None
    delta: Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None

    @property
    def carries_output(self) -> bool:
        if self.delta is not None:
            return self.delta.carries_output and not (self.finish_reason is not None and not self.delta.content)
        return bool(self.text) or (self.text is not None and self.finish_reason is None)


class Chunk(msgspec.Struct):
    """The fields of a chunk that are looked at; all others are skipped unread."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


_DECODER: Final = msgspec.json.Decoder(Chunk)


def decode_chunk(payload: bytes) -> Chunk:
    """ValueError (msgspec.MsgspecError is one) if the payload is no chunk, or nested deeper than one reads."""
    try:
        return _DECODER.decode(payload)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def error_text(body: bytes) -> str:
    """The message in an error's body, in OpenAI's form, FastAPI's or plain; at most 300 characters of it."""
    try:
        document = parse_json(body)
    except ValueError:
        document = None
    found = _message_in(document)
    text = found if found else body.decode("utf-8", errors="replace")
    return " ".join(text.split())[:300]


def _message_in(document: Any) -> str:
    if isinstance(document, str):
        return document
    if isinstance(document, dict):
        for name in ("error", "message", "detail", "object"):
            if name in document:
                return _message_in(document[name]) or str(document[name])
    return ""
