"""An answer's text, token by token: from a table of the tokens' bytes where the tokenizer is so simple.

Otherwise at the cost of one call into the tokenizers library per token.

``DecodeStream`` holds tokens back until their characters are complete, without bound, and keeps what it holds at the
end. So after a few held tokens, and at the end, the text is taken from two whole decodings instead, as
``requests.detokenizer`` does for every token.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from tokenizers.decoders import DecodeStream

from kvplan_engine.requests.detokenizer import common_length
from kvplan_engine.server.text.byte_level import ByteStreamDecoder
from kvplan_engine.server.text.tokenizer import TextTokenizer

# Tokens of context: a tokenizer looks back one token, or to the start of a character of at most four bytes.
_NUM_CONTEXT_TOKENS = 5
# A character has at most four bytes: what is still incomplete after as many tokens is not a character.
_MAX_HELD_TOKENS = 4
_REPLACEMENT = "\ufffd"


class AnswerDecoder(Protocol):
    """Tokens in, text out."""

    def add(self, token: int) -> str:
        """The text that ``token`` adds; "" while its character is incomplete."""

    def flush(self) -> str:
        """At the end of an answer: the text that is still held back."""


def answer_decoder(
    tokenizer: TextTokenizer | None, prompt_token_ids: list[int], *, skip_special_tokens: bool = True
) -> AnswerDecoder:
    """Return a decoder for an answer to ``prompt_token_ids``."""
    if tokenizer is None:
        return NoText()
    vocabulary = tokenizer.byte_vocabulary(skip_special_tokens=skip_special_tokens)
    if vocabulary is not None:
        return ByteStreamDecoder(vocabulary, prompt_token_ids)
    return StreamDecoder(tokenizer, prompt_token_ids, skip_special_tokens=skip_special_tokens)


class StreamDecoder:
    """The text of one answer to ``prompt_token_ids``."""

    __slots__ = ("_num_held", "_recent", "_skip_special_tokens", "_stream", "_tokenizer")

    def __init__(
        self, tokenizer: TextTokenizer, prompt_token_ids: list[int], *, skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        # the newest tokens: context, then those that are held back
        self._recent = deque(prompt_token_ids[-_NUM_CONTEXT_TOKENS:], maxlen=_NUM_CONTEXT_TOKENS + _MAX_HELD_TOKENS + 1)
        self._num_held = 0
        self._restart()

    def _restart(self) -> None:
        """Go on behind the newest tokens. A stream whose context ends within a character would repeat it."""
        context = list(self._recent)[-_NUM_CONTEXT_TOKENS:]
        is_complete = not self._decode(context).endswith(_REPLACEMENT)
        self._stream = DecodeStream(context, self._skip_special_tokens) if is_complete else None

    def add(self, token: int) -> str:
        self._recent.append(token)
        self._num_held += 1
        if self._stream is None:
            return self._release(at_least=_MAX_HELD_TOKENS)
        try:
            piece: str | None = self._stream.step(self._tokenizer.backend, token)
        except Exception as problem:  # of this very class
            if "prefix" not in str(problem):
                raise
            return self._release(at_least=0)
        if piece is not None:
            self._num_held = 0
            return piece
        return self._release(at_least=0) if self._num_held > _MAX_HELD_TOKENS else ""

    def flush(self) -> str:
        return self._release(at_least=0) if self._num_held else ""

    def _release(self, at_least: int) -> str:
        """The text of all held tokens; "" where it ends within a character and no more than ``at_least`` are held."""
        recent = list(self._recent)
        after = self._decode(recent)
        if after.endswith(_REPLACEMENT) and self._num_held <= at_least:
            return ""
        before = self._decode(recent[: len(recent) - self._num_held])
        self._num_held = 0
        self._restart()
        return after[common_length(before, after) :]

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)


class NoText:
    """What stands in the place of a decoder where the model has no tokenizer: answers are token ids alone."""

    __slots__ = ()

    def add(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""
