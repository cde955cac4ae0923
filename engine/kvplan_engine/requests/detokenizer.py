"""Tokens to text as they come in: the cost of a token does not depend on how long the answer is. No torch.

A tokenizer decodes a token differently by what stands before it (a leading space, half a character), so a few tokens
are always decoded together:

    prompt and answer   . . . . c c c c n n        c: context, decoded before; n: new
    text of the step        decode(c n) - decode(c), held back while it ends in half a character
"""

from __future__ import annotations

from typing import Any

# Tokens of context. Tokenizers look back by one token, or to the start of a character of at most four bytes.
_NUM_CONTEXT_TOKENS = 5
# A character has at most four bytes: what is still half a character after as many tokens is no character.
_MAX_HELD_TOKENS = 4
_REPLACEMENT = "\ufffd"


class Detokenizer:
    """The text of one answer, and where a stop string cuts it.

    tokenizer: anything with ``decode(token_ids, skip_special_tokens=True)``. prompt_token_ids: what the answer follows.
    """

    __slots__ = ("_context", "_held", "_pieces", "_tail", "_tokenizer", "num_tokens")

    def __init__(self, tokenizer: Any, prompt_token_ids: list[int]) -> None:
        self._tokenizer = tokenizer
        self._context = list(prompt_token_ids[-_NUM_CONTEXT_TOKENS:])
        self._held: list[int] = []
        self._pieces: list[str] = []
        self._tail = ""  # the end of the text, long enough to find a stop string that began in an earlier token
        self.num_tokens = 0  # answer tokens seen

    @property
    def text(self) -> str:
        """The answer so far, without half characters at its end."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def add(self, token: int) -> str:
        """The text that ``token`` adds, possibly none yet."""
        self._held.append(token)
        self.num_tokens += 1
        return self._release(at_least=_MAX_HELD_TOKENS)

    def flush(self) -> str:
        """The text that is still held back, half characters replaced, at the end of an answer."""
        return self._release(at_least=0) if self._held else ""

    def _release(self, at_least: int) -> str:
        before = self._decode(self._context)
        after = self._decode(self._context + self._held)
        if after.endswith(_REPLACEMENT) and len(self._held) <= at_least:
            return ""
        self._context = (self._context + self._held)[-_NUM_CONTEXT_TOKENS:]
        self._held = []
        piece = after[_common_length(before, after) :]
        self._pieces.append(piece)
        return piece

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    # ---- stop strings

    def find_stop(self, piece: str, stops: tuple[str, ...], *, may_stop: bool = True) -> str | None:
        """The stop string that ``piece``, the newest text, has completed; the text is cut before it.

        Of several the one that begins first. may_stop: False looks for none, but remembers where one may have begun.
        """
        window = self._tail + piece
        found = [(start, stop) for stop in stops if (start := window.find(stop)) >= 0] if may_stop else []
        if found:
            start, stop = min(found)
            text = self.text
            self._pieces = [text[: len(text) - len(window) + start]]
            self._held = []
            return stop
        self._tail = window[max(0, len(window) - max(map(len, stops)) + 1) :]
        return None


def answer_text(tokenizer: Any, prompt_token_ids: list[int], token_ids: list[int]) -> str:
    """The text of a whole answer at once; what a :class:`Detokenizer` gives piece by piece."""
    context = list(prompt_token_ids[-_NUM_CONTEXT_TOKENS:])
    before = tokenizer.decode(context, skip_special_tokens=True)
    after: str = tokenizer.decode(context + token_ids, skip_special_tokens=True)
    return after[_common_length(before, after) :]


def _common_length(before: str, after: str) -> int:
    """How much of ``after`` was there before: all of it, but for half a character that has now become whole."""
    if after.startswith(before):
        return len(before)
    shorter = min(len(before), len(after))
    return next((i for i in range(shorter) if before[i] != after[i]), shorter)
