"""Chunks of ordinary tokens, written as their frame arrives: the way of nearly every token that is streamed.

All that a chunk says beside the text is made once. What a token costs here is mostly memory that has left the
processor's caches since the step before, so its way is short: few calls, few objects, one write.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from kvplan_engine.server.openai.choices import Choice

_encode = msgspec.json.Encoder().encode


class LiveOutput(Protocol):
    """Where a stream goes, without waiting. is_ready: whether anything may be written: the client keeps up."""

    is_ready: bool

    def write(self, data: bytes) -> None:
        """A piece of the stream, to be sent together with what follows soon."""

    def send(self, data: bytes) -> None:
        """A piece of the stream, to be sent at once."""


class PlainStream:
    """Writes to ``output`` what tokens add to the only choice of a request.

    before, after: what stands around the text in each chunk.
    """

    __slots__ = ("_after", "_before", "_choice", "_decoder", "_output")

    def __init__(self, choice: Choice, before: bytes, after: bytes, output: LiveOutput) -> None:
        self._choice = choice
        self._decoder = choice.decoder
        self._before = before
        self._after = after
        self._output = output

    def write(self, choice: int, token: int, is_late: bool) -> bool:
        """False, and nothing is done, for a client that does not keep up. is_late: the next chunk follows at once."""
        output = self._output
        if not output.is_ready:
            return False
        self._choice.num_tokens += 1
        chunk = b"%b%b%b" % (self._before, _encode(self._decoder.add(token)), self._after)
        if is_late:
            output.write(chunk)
        else:
            output.send(chunk)
        return True
