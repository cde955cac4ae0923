"""Log-probabilities in OpenAI's two shapes: of completions and of chat completions."""

from __future__ import annotations

from typing import Any

from kvplan_engine.server.messages import TokenLogprobs
from kvplan_engine.server.openai.choices import Delta
from kvplan_engine.server.text.tokenizer import TextTokenizer

# What vLLM shows for a probability of zero, which JSON has no number for.
_LOWEST = -9999.0


def _shown(logprob: float) -> float:
    return max(logprob, _LOWEST)


def _likeliest(logprobs: TokenLogprobs, number: int) -> list[tuple[int, float]]:
    """The ``number`` likeliest alternatives, best first."""
    ranked = sorted(logprobs.alternatives.items(), key=lambda pair: -pair[1])
    return ranked[:number]


def _text(tokenizer: TextTokenizer | None, token: int) -> str:
    return f"token_id:{token}" if tokenizer is None else tokenizer.token_text(token)


class CompletionLogprobs:
    """Gathers ``logprobs`` of one choice of a completion; ``text_offset`` goes on from chunk to chunk."""

    def __init__(self, tokenizer: TextTokenizer | None, number: int, offset: int = 0) -> None:
        self._tokenizer = tokenizer
        self._number = number
        self._offset = offset

    def of(self, deltas: list[Delta]) -> dict[str, list[Any]]:
        result: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for delta in deltas:
            if delta.logprobs is None:
                continue
            text = _text(self._tokenizer, delta.token)
            top = {_text(self._tokenizer, token): _shown(value) for token, value in self._top(delta.logprobs)}
            top.setdefault(text, _shown(delta.logprobs.logprob))
            result["tokens"].append(text)
            result["token_logprobs"].append(_shown(delta.logprobs.logprob))
            result["top_logprobs"].append(top)
            result["text_offset"].append(self._offset)
            self._offset += len(text)
        return result

    def _top(self, logprobs: TokenLogprobs) -> list[tuple[int, float]]:
        return _likeliest(logprobs, self._number)


class ChatLogprobs:
    """``logprobs`` of one choice of a chat completion."""

    def __init__(self, tokenizer: TextTokenizer | None, number: int) -> None:
        self._tokenizer = tokenizer
        self._number = number

    def of(self, deltas: list[Delta]) -> dict[str, list[Any]]:
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
