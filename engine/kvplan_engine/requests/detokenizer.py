"""Tokens to text as they arrive, at a cost per token that does not depend on the length of the answer. No torch.

The text of a token depends on the tokens before it (a leading space, half a character), so a few tokens of context are
always decoded with it:

    prompt and answer   . . . . c c c c n n        c: context, already decoded; n: new
    text of the step        decode(c n) - decode(c), held back while it ends in an incomplete character

Unlike ``tokenizers.decoders.DecodeStream``, this works with any tokenizer that can decode, returns what is held back at
the end of an answer, and does not hold back more than one character's bytes.
"""

from __future__ import annotations

from typing import Any

# Tokens of context: a tokenizer looks back one token, or to the start of a character of at most four bytes.
_NUM_CONTEXT_TOKENS = 5
# A character has at most four bytes: what is still incomplete after as many tokens is not a character.
_MAX_HELD_TOKENS = 4
_REPLACEMENT = "\ufffd"


class Detokenizer:
    """The text of one answer, cut where a stop string begins.

    tokenizer: anything with ``decode(token_ids, skip_special_tokens=True)``. prompt_token_ids: what comes before the
    answer.
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
        """The answer so far, without an incomplete character at its end."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def add(self, token: int) -> str:
        """The text that ``token`` adds; "" while its character is incomplete."""
        self._held.append(token)
        self.num_tokens += 1
        return self._release(at_least=_MAX_HELD_TOKENS)

    def flush(self) -> str:
        """At the end of an answer: the text that is still held back, with U+FFFD for incomplete characters."""
        return self._release(at_least=0) if self._held else ""

    def _release(self, at_least: int) -> str:
        before = self._decode(self._context)
        after = self._decode(self._context + self._held)
        if after.endswith(_REPLACEMENT) and len(self._held) <= at_least:
            return ""
        self._context = (self._context + self._held)[-_NUM_CONTEXT_TOKENS:]
        self._held = []
        piece = after[common_length(before, after) :]
        self._pieces.append(piece)
        return piece

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    # ---- stop strings

    def find_stop(self, piece: str, stops: tuple[str, ...], *, may_stop: bool = True) -> str | None:
        """The stop string that ``piece``, the newest text, completes, if any; the text is cut before it.

        Of several, the one that begins first. may_stop: if False, none is returned, but one that has begun may be
        completed later.
        """
        window = self._tail + piece
        matches = [(start, stop) for stop in stops if (start := window.find(stop)) >= 0] if may_stop else []
        if matches:
            start, stop = min(matches)
            text = self.text
            self._pieces = [text[: len(text) - len(window) + start]]
            self._held = []
            return stop
        self._tail = window[max(0, len(window) - max(map(len, stops)) + 1) :]
        return None


def answer_text(tokenizer: Any, prompt_token_ids: list[int], token_ids: list[int]) -> str:
    """The text of a whole answer at once: what a :class:`Detokenizer` returns piece by piece."""
    context = list(prompt_token_ids[-_NUM_CONTEXT_TOKENS:])
    before = tokenizer.decode(context, skip_special_tokens=True)
    after: str = tokenizer.decode(context + token_ids, skip_special_tokens=True)
    return after[common_length(before, after) :]


def common_length(before: str, after: str) -> int:
    """Length of the common prefix: all of ``before``, unless it ended in a character that ``after`` completes."""
    if after.startswith(before):
        return len(before)
    shorter = min(len(before), len(after))
    return next((i for i in range(shorter) if before[i] != after[i]), shorter)
