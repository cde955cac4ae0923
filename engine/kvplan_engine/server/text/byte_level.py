"""An answer's text where every token stands for bytes, whatever its neighbours: GPT-2's byte-level vocabularies.

Most models have one (Llama 3, Qwen, SmolLM). A token's text is then looked up, and only characters whose bytes lie in
several tokens are put together. That costs less than half of a call into the tokenizers library, which touches far
more memory for each token.
"""

from __future__ import annotations

from codecs import utf_8_decode

from tokenizers import Tokenizer, decoders

from kvplan_engine.requests.detokenizer import common_length

# Tokens of the prompt in which a character may have begun that the answer completes.
_NUM_CONTEXT_TOKENS = 5


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
        prompt = b"".join(map(vocabulary.bytes_of, prompt_token_ids[-_NUM_CONTEXT_TOKENS:]))
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
