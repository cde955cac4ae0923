"""One choice of an answer: its tokens to text, cut at stop strings, with what is known of each token."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import msgspec

from kvplan_engine.server.engine_client.generation import TokenEvent
from kvplan_engine.server.messages import PromptLogprobsMessage, TokenLogprobs
from kvplan_engine.server.openai.parameters import AnswerOptions
from kvplan_engine.server.text.tokenizer import AnswerDecoder, TextTokenizer

# Stop strings in a stream of text: what may be released, and where the answer ends.


class Released(NamedTuple):
    """Text that is certain to be part of the answer. stop: the stop string that ended it."""

    text: str
    stop: str | None = None


class StopStrings:
    """Looks for ``stops`` in an answer. Text that may be the beginning of one is held back until that is decided.

    include: the stop string stays part of the text.
    """

    __slots__ = ("_held", "_include", "_longest", "_stops", "_tail")

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = stops
        self._longest = max(map(len, stops))
        self._include = include
        self._tail = ""  # the end of the text, long enough to find a stop string that began in an earlier piece
        self._held = ""  # the end of that: not released yet

    def feed(self, piece: str, *, may_stop: bool = True) -> Released:
        """What ``piece``, the newest text, releases. Of several stop strings, the one that begins first counts.

        may_stop: if False, none ends the answer, but one that has begun may be completed later.
        """
        window, pending = self._tail + piece, self._held + piece
        matches = [(start, stop) for stop in self._stops if (start := window.find(stop)) >= 0] if may_stop else []
        if matches:
            start, stop = min(matches)
            end = start + len(stop) if self._include else start
            self._held = ""
            return Released(pending[: max(0, len(pending) - len(window) + end)], stop)
        self._tail = window[max(0, len(window) - self._longest + 1) :]
        num_held = self._num_to_hold(pending)
        self._held = pending[len(pending) - num_held :]
        return Released(pending[: len(pending) - num_held])

    def flush(self) -> str:
        """At the end of an answer: what was held back in vain."""
        held, self._held = self._held, ""
        return held

    def _num_to_hold(self, text: str) -> int:
        """The length of the longest end of ``text`` that a stop string begins with."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stops):
                return length
        return 0


# Log-probabilities in OpenAI's two shapes: of completions and of chat completions.


# What vLLM shows for a probability of zero, which JSON has no number for.
_LOWEST = -9999.0

Echoed = tuple[list[int], PromptLogprobsMessage]
"""A prompt's token ids, and what is said of them."""


def _shown(logprob: float) -> float:
    return max(logprob, _LOWEST)


def _likeliest(logprobs: TokenLogprobs, number: int) -> list[tuple[int, float]]:
    """The ``number`` likeliest alternatives, best first."""
    ranked = sorted(logprobs.alternatives.items(), key=lambda pair: -pair[1])
    return ranked[:number]


def _text(tokenizer: TextTokenizer | None, token: int) -> str:
    return f"token_id:{token}" if tokenizer is None else tokenizer.token_text(token)


def prompt_logprobs(tokenizer: TextTokenizer | None, echoed: Echoed) -> list[dict[str, dict[str, Any]] | None]:
    """Return, in vLLM's shape, each token of the prompt itself and its alternatives, by id; None for the first one."""
    token_ids, prompt = echoed

    def entry(token: int, logprob: float, rank: int) -> dict[str, Any]:
        decoded = None if tokenizer is None else tokenizer.token_text(token)
        return {"logprob": _shown(logprob), "rank": rank, "decoded_token": decoded}

    result: list[dict[str, dict[str, Any]] | None] = [None]
    for token, logprob, rank, top in zip(token_ids[1:], prompt.logprobs, prompt.ranks, prompt.tops, strict=True):
        entries = {str(token): entry(token, logprob, rank)}
        for place, (other, value) in enumerate(top.items(), start=1):
            if other != token:
                entries[str(other)] = entry(other, value, place)
        result.append(entries)
    return result


class CompletionLogprobs:
    """Gathers ``logprobs`` of one choice of a completion; ``text_offset`` goes on from chunk to chunk."""

    def __init__(self, tokenizer: TextTokenizer | None, number: int, offset: int = 0) -> None:
        self._tokenizer = tokenizer
        self._number = number
        self._offset = offset

    def of(self, deltas: list[Delta], echoed: Echoed | None = None) -> dict[str, list[Any]]:
        """echoed: the prompt, where its tokens come before the answer's."""
        result: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        if echoed is not None:
            self._add_prompt(result, *echoed)
        for delta in deltas:
            if delta.logprobs is not None:
                top = _likeliest(delta.logprobs, self._number)
                self._add(result, delta.token, delta.logprobs.logprob, top)
        return result

    def _add_prompt(self, result: dict[str, list[Any]], token_ids: list[int], prompt: PromptLogprobsMessage) -> None:
        self._add(result, token_ids[0], None, [])  # nothing comes before it
        for token, logprob, top in zip(token_ids[1:], prompt.logprobs, prompt.tops, strict=True):
            self._add(result, token, logprob, list(top.items())[: self._number])

    def _add(
        self, result: dict[str, list[Any]], token: int, logprob: float | None, top: list[tuple[int, float]]
    ) -> None:
        text = _text(self._tokenizer, token)
        shown = {_text(self._tokenizer, each): _shown(value) for each, value in top}
        if logprob is not None:
            shown.setdefault(text, _shown(logprob))
        result["tokens"].append(text)
        result["token_logprobs"].append(None if logprob is None else _shown(logprob))
        result["top_logprobs"].append(None if logprob is None else shown)
        result["text_offset"].append(self._offset)
        self._offset += len(text)


class ChatLogprobs:
    """``logprobs`` of one choice of a chat completion."""

    def __init__(self, tokenizer: TextTokenizer | None, number: int) -> None:
        self._tokenizer = tokenizer
        self._number = number

    def of(self, deltas: list[Delta], echoed: Echoed | None = None) -> dict[str, list[Any]]:
        """echoed: a chat repeats nothing."""
        assert echoed is None
        content = [
            {
                **self._entry(delta.token, delta.logprobs.logprob),
                "top_logprobs": [self._entry(*pair) for pair in _likeliest(delta.logprobs, self._number)],
            }
            for delta in deltas
            if delta.logprobs is not None
        ]
        return {"content": content}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = _text(self._tokenizer, token)
        return {"token": text, "logprob": _shown(logprob), "bytes": list(text.encode())}


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


# Chunks of ordinary tokens, written as their frame arrives: the way of nearly every token that is streamed.
#
# All that a chunk says beside the text is made once. What a token costs here is mostly memory that has left the
# processor's caches since the step before, so its way is short: few calls, few objects, one write.


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
