"""One choice of an answer: its tokens to text, cut at stop strings, with what is known of each token."""

from __future__ import annotations

from typing import NamedTuple

from kvplan_engine.server.engine_client.generation import TokenEvent
from kvplan_engine.server.messages import TokenLogprobs
from kvplan_engine.server.openai.parameters import AnswerOptions
from kvplan_engine.server.text.decoding import AnswerDecoder
from kvplan_engine.server.text.stop_strings import StopStrings


class Delta(NamedTuple):
    """What one token adds to choice number ``choice``. stopped_early: at a stop string, so the engine goes on."""

    choice: int
    text: str
    token: int
    logprobs: TokenLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    stopped_early: bool = False


class Choice:
    """The state of one choice. min_tokens: before so many no stop string counts."""

    __slots__ = ("_min_tokens", "_stops", "decoder", "is_finished", "num_tokens")

    def __init__(self, decoder: AnswerDecoder, options: AnswerOptions, min_tokens: int) -> None:
        self.decoder = decoder
        self._min_tokens = min_tokens
        self._stops = StopStrings(options.stop_strings, include=options.include_stop) if options.stop_strings else None
        self.num_tokens = 0
        self.is_finished = False

    def add(self, token: int) -> str:
        """The text that an ordinary token adds, where there are no stop strings."""
        self.num_tokens += 1
        return self.decoder.add(token)

    def take(self, event: TokenEvent) -> Delta | None:
        """What ``event`` adds; None where the choice has ended at a stop string meanwhile."""
        if self.is_finished:
            return None
        if event.reason is None and self._stops is None:
            return Delta(event.choice, self.add(event.token), event.token, event.logprobs)
        self.num_tokens += 1
        return self._take_carefully(event)

    def _take_carefully(self, event: TokenEvent) -> Delta:
        text, stop = self._text_of(event)
        reason: str | None = event.reason if stop is None else "stop"
        self.is_finished = reason is not None
        return Delta(
            event.choice,
            text,
            event.token,
            event.logprobs,
            reason,
            event.stop_token if stop is None else stop,
            stopped_early=stop is not None and event.reason is None,
        )

    def _text_of(self, event: TokenEvent) -> tuple[str, str | None]:
        """The text that ``event`` adds, and the stop string that it completes."""
        decoder, stops = self.decoder, self._stops
        if event.reason == "stop":  # the token that ended the answer is not part of its text
            return (stops.flush() if stops else "") + decoder.flush(), None
        piece = decoder.add(event.token)
        if event.reason is not None:
            piece += decoder.flush()
        if stops is None:
            return piece, None
        released = stops.feed(piece, may_stop=self.num_tokens > self._min_tokens)
        if released.stop is None and event.reason is not None:
            return released.text + stops.flush(), None
        return released.text, released.stop
