"""Log-probabilities in OpenAI's two shapes: of completions and of chat completions."""

from __future__ import annotations

from typing import Any

from kvplan_engine.server.messages import PromptLogprobsMessage, TokenLogprobs
from kvplan_engine.server.openai.choices import Delta
from kvplan_engine.server.text.tokenizer import TextTokenizer

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
