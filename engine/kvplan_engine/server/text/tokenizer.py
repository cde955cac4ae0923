"""The model's tokenizer in the API process: the tokenizers library alone, from the JSON that the engine sent."""

from __future__ import annotations

import asyncio
from functools import lru_cache

from tokenizers import Tokenizer

from kvplan_engine.server.text.byte_level import ByteVocabulary

# From this many characters on, encoding takes milliseconds: it then runs in a thread, where it releases the GIL.
_LONG_TEXT = 8_000


class TextTokenizer:
    """Encodes and decodes as transformers' tokenizer of the same model does."""

    def __init__(self, tokenizer_json: str) -> None:
        self.backend: Tokenizer = Tokenizer.from_str(tokenizer_json)
        self.backend.no_truncation()
        self.backend.no_padding()
        self.token_text = lru_cache(maxsize=1 << 16)(self._token_text)
        self._byte_vocabularies: dict[bool, ByteVocabulary] = {}
        if ByteVocabulary.can_decode(self.backend):
            self._byte_vocabularies = {
                skips: ByteVocabulary(self.backend, skip_special_tokens=skips) for skips in (True, False)
            }

    def byte_vocabulary(self, *, skip_special_tokens: bool) -> ByteVocabulary | None:
        """Where each token stands for bytes of its own; None for other tokenizers."""
        return self._byte_vocabularies.get(skip_special_tokens)

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``."""
        if len(text) >= _LONG_TEXT:
            return await asyncio.to_thread(self._encode, text, add_special_tokens)
        return self._encode(text, add_special_tokens)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        text: str = self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def _token_text(self, token_id: int) -> str:
        """One token by itself, as log-probabilities name it."""
        return self.decode([token_id], skip_special_tokens=False)

    def token_strings(self, token_ids: list[int]) -> list[str]:
        """The vocabulary's own spelling of each token."""
        return [self.backend.id_to_token(token) or "" for token in token_ids]
