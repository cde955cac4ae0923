"""Texts of request files as numbers of tokens, and what they begin with in common.

No tokenizer is at hand here, so tokens are estimated: four characters each, as English text has in byte-pair tokens.
Blocks of 16 such tokens are told apart by their text and by all that stands before them.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

CHARACTERS_PER_TOKEN: Final = 4
TEXT_BLOCK_TOKENS: Final = 16
_BLOCK_CHARACTERS: Final = TEXT_BLOCK_TOKENS * CHARACTERS_PER_TOKEN


def num_tokens(text: str) -> int:
    """Estimated; at least 1 of a text that is not empty."""
    return max(len(text) // CHARACTERS_PER_TOKEN, 1) if text else 0


def block_ids_of(text: str) -> tuple[int, ...]:
    """One of each whole block: equal where the texts are equal up to its end."""
    ids, before = [], b""
    for place in range(_BLOCK_CHARACTERS, len(text) + 1, _BLOCK_CHARACTERS):
        chunk = text[place - _BLOCK_CHARACTERS : place].encode("utf-8", "surrogatepass")
        before = blake2b(before + chunk, digest_size=8).digest()
        ids.append(int.from_bytes(before, "big"))
    return tuple(ids)


def block_ids_of_tokens(tokens: list[Any]) -> tuple[int, ...]:
    """The same of token ids."""
    ids, before = [], b""
    for place in range(TEXT_BLOCK_TOKENS, len(tokens) + 1, TEXT_BLOCK_TOKENS):
        chunk = ",".join(map(str, tokens[place - TEXT_BLOCK_TOKENS : place])).encode()
        before = blake2b(before + chunk, digest_size=8).digest()
        ids.append(int.from_bytes(before, "big"))
    return tuple(ids)


def text_of(content: Any) -> str:
    """The text of a message: as a string, or of the parts of a list that are text. ValueError for anything else."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part if isinstance(part, str) else text_of(part.get("text")) for part in content if part)
    raise ValueError("it has a message whose content is no text")


def has_other_parts(content: Any) -> bool:
    """Whether a message has an image or something else beside text."""
    return isinstance(content, list) and any(isinstance(part, dict) and "text" not in part for part in content)
