"""The model's tokenizer in the API process: the tokenizers library alone, from the JSON that the engine sent.

The library's ``encode`` and ``decode`` keep the interpreter's lock for the whole text. Their siblings for batches give
it up, so long texts go through those, each in a thread: the event loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import ctypes
from codecs import utf_8_decode
from collections import deque
from functools import cache, lru_cache
from typing import Protocol

from tokenizers import Tokenizer, decoders
from tokenizers.decoders import DecodeStream

from kvplan_engine.requests.detokenizer import common_length

# From this many characters or tokens on, the work takes milliseconds, and is done in a thread.
_LONG_TEXT = 2_000
_LONG_ANSWER = 2_000
# Texts are counted in pieces of at least so many characters before they are encoded as a whole. Encoding takes about
# 130 bytes of memory for each character.
_PIECE_CHARACTERS = 1 << 20
_CHARACTERS_PER_TOKEN = 8  # twice those of English: a piece holds more tokens than the context, but for odd texts
# From so many characters on, the memory that encoding took is given back to the system.
_HUGE_TEXT = 100_000


class TextTooLong(Exception):
    """A text stands for more tokens than may be."""


class TextTokenizer:
    """Encodes and decodes as transformers' tokenizer of the same model does.

    longest_token: of the vocabulary, in characters: no token stands for more of a text, unless the tokenizer drops or
    replaces characters.
    """

    def __init__(self, tokenizer_json: str) -> None:
        self.backend: Tokenizer = Tokenizer.from_str(tokenizer_json)
        self.backend.no_truncation()
        self.backend.no_padding()
        self.longest_token = max(map(len, self.backend.get_vocab()), default=1)
        self.token_text = lru_cache(maxsize=1 << 16)(self._token_text)
        self._byte_vocabularies: dict[bool, ByteVocabulary] = {}
        if ByteVocabulary.can_decode(self.backend):
            self._byte_vocabularies = {
                skips: ByteVocabulary(self.backend, skip_special_tokens=skips) for skips in (True, False)
            }

    def byte_vocabulary(self, *, skip_special_tokens: bool) -> ByteVocabulary | None:
        """Where each token stands for bytes of its own; None for other tokenizers."""
        return self._byte_vocabularies.get(skip_special_tokens)

    # ---- encoding

    async def encode(self, text: str, *, add_special_tokens: bool = True, most_tokens: int | None = None) -> list[int]:
        """Token ids of ``text``. TextTooLong as soon as they are seen to be clearly more than ``most_tokens``."""
        if len(text) < _LONG_TEXT:
            return self._encode(text, add_special_tokens)
        return await asyncio.to_thread(self._encode_long, text, add_special_tokens, most_tokens)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        (encoding,) = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def _encode_long(self, text: str, add_special_tokens: bool, most_tokens: int | None) -> list[int]:
        try:
            if most_tokens is not None:
                self._check_length(text, most_tokens)
            return self._encode(text, add_special_tokens)
        finally:
            if len(text) >= _HUGE_TEXT:
                _trim_memory()

    def _check_length(self, text: str, most_tokens: int) -> None:
        """TextTooLong for far more tokens than ``most_tokens``, without encoding all of them."""
        size = most_characters(most_tokens)
        if len(text) <= size:
            return
        most = most_tokens
        for start in range(0, len(text), size):
            most -= len(self._encode(text[start : start + size], False))
            if most + self.longest_token * (start // size + 1) < 0:  # each cut may divide a token
                raise TextTooLong

    # ---- decoding

    async def decode_long(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Decode as ``decode`` does; many tokens in a thread."""
        if len(token_ids) < _LONG_ANSWER:
            return self.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return await asyncio.to_thread(self._decode_freely, token_ids, skip_special_tokens)

    def _decode_freely(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        (text,) = self.backend.decode_batch([token_ids], skip_special_tokens=skip_special_tokens)
        return str(text)

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Decode a few tokens: it keeps the interpreter's lock."""
        text: str = self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def _token_text(self, token_id: int) -> str:
        """One token by itself, as log-probabilities name it."""
        return self.decode([token_id], skip_special_tokens=False)

    async def token_strings(self, token_ids: list[int]) -> list[str]:
        """The vocabulary's own spelling of each token."""
        if len(token_ids) < _LONG_ANSWER:
            return self._token_strings(token_ids)
        return await asyncio.to_thread(self._token_strings, token_ids)

    def _token_strings(self, token_ids: list[int]) -> list[str]:
        return [self.backend.id_to_token(token) or "" for token in token_ids]


def most_characters(most_tokens: int) -> int:
    """Most characters of a text that is encoded however many tokens it has, where ``most_tokens`` make up a context."""
    return max(_PIECE_CHARACTERS, _CHARACTERS_PER_TOKEN * most_tokens)


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _trim_memory() -> None:
    """Give what the C library keeps of freed memory back to the system, where it can: glibc does, musl need not."""
    trim = getattr(_c_library(), "malloc_trim", None)
    if trim is not None:
        trim(0)


# An answer's text where every token stands for bytes, whatever its neighbours: GPT-2's byte-level vocabularies.
#
# Most models have one (Llama 3, Qwen, SmolLM). A token's text is then looked up, and only characters whose bytes lie in
# several tokens are put together. That costs less than half of a call into the tokenizers library, which touches far
# more memory for each token.


# Tokens of the prompt in which a character may have begun that the answer completes.
_BYTE_LEVEL_NUM_CONTEXT_TOKENS = 5


def _bytes_by_letter() -> dict[str, int]:
    """The letter that stands for each byte: itself where it is printable Latin-1, others from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _bytes_by_letter()


class ByteVocabulary:
    """The bytes of a tokenizer's tokens. texts: by token, of those that are whole characters, as they are asked for."""

    def __init__(self, backend: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._backend = backend
        added = backend.get_added_tokens_decoder() if skip_special_tokens else {}
        self._skipped = frozenset(token.content for token in added.values() if token.special)
        self.texts: dict[int, str] = {}

    @staticmethod
    def can_decode(backend: Tokenizer) -> bool:
        """Whether tokens of ``backend`` stand for bytes and nothing else is done with them."""
        return isinstance(backend.decoder, decoders.ByteLevel)

    def bytes_of(self, token: int) -> bytes:
        """Empty for special tokens where they are skipped, and for what is no token."""
        letters = self._backend.id_to_token(token)
        if letters is None or letters in self._skipped:
            return b""
        try:
            return bytes([_BYTES[letter] for letter in letters])
        except KeyError:  # an added token, spelled as it is
            return letters.encode()


class ByteStreamDecoder:
    """The text of one answer to ``prompt_token_ids``."""

    __slots__ = ("_before", "_held", "_texts", "_vocabulary")

    def __init__(self, vocabulary: ByteVocabulary, prompt_token_ids: list[int]) -> None:
        self._vocabulary = vocabulary
        self._texts = vocabulary.texts
        prompt = b"".join(map(vocabulary.bytes_of, prompt_token_ids[-_BYTE_LEVEL_NUM_CONTEXT_TOKENS:]))
        self._held = prompt[utf_8_decode(prompt, "replace", False)[1] :]  # of a character that is not complete
        self._before = self._held.decode(errors="replace")  # what the prompt's text shows of it

    def add(self, token: int) -> str:
        """The text that ``token`` adds; "" while its character is incomplete."""
        if not self._held:
            text = self._texts.get(token)
            if text is not None:
                return text
        return self._add(token)

    def flush(self) -> str:
        """At the end of an answer: the text that is still held back."""
        held, self._held = self._held, b""
        return self._without_prompt(held.decode(errors="replace"))

    def _add(self, token: int) -> str:
        was_held, data = self._held, self._held + self._vocabulary.bytes_of(token)
        text, num_decoded = utf_8_decode(data, "replace", False)
        self._held = data[num_decoded:]
        if not (was_held or self._held):
            self._texts[token] = text
        return self._without_prompt(text) if num_decoded else text

    def _without_prompt(self, text: str) -> str:
        before, self._before = self._before, ""
        return text[common_length(before, text) :]


# An answer's text, token by token: from a table of the tokens' bytes where the tokenizer is so simple.
#
# Otherwise at the cost of one call into the tokenizers library per token.
#
# ``DecodeStream`` holds tokens back until their characters are complete, without bound, and keeps what it holds at the
# end. So after a few held tokens, and at the end, the text is taken from two whole decodings instead, as
# ``requests.detokenizer`` does for every token.


# Tokens of context: a tokenizer looks back one token, or to the start of a character of at most four bytes.
_DECODING_NUM_CONTEXT_TOKENS = 5
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
        self._recent = deque(
            prompt_token_ids[-_DECODING_NUM_CONTEXT_TOKENS:], maxlen=_DECODING_NUM_CONTEXT_TOKENS + _MAX_HELD_TOKENS + 1
        )
        self._num_held = 0
        self._restart()

    def _restart(self) -> None:
        """Go on behind the newest tokens. A stream whose context ends within a character would repeat it."""
        context = list(self._recent)[-_DECODING_NUM_CONTEXT_TOKENS:]
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
