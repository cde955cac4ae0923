"""One request and its answer: bytes in, times and token counts out."""

from __future__ import annotations

import asyncio
from typing import Final

from kvplan.load.client.events import DONE, Chunk, EventSplitter, decode_chunk, error_text
from kvplan.load.client.record import RequestRecord
from kvplan.units import MIB

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
