"""The model's tokenizer in the API process: the tokenizers library alone, from the JSON that the engine sent.

The library's ``encode`` and ``decode`` keep the interpreter's lock for the whole text. Their siblings for batches give
it up, so long texts go through those, each in a thread: the event loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import ctypes
from functools import cache, lru_cache

from tokenizers import Tokenizer

from kvplan_engine.server.text.byte_level import ByteVocabulary

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
