"""Assumptions that change what a number means."""

from __future__ import annotations


class Caveat(str):
    """A sentence that is printed beside the number it is about; other assumptions stand under ``--explain``."""

    __slots__ = ()


def said_of(whose: str, sentence: str) -> str:
    """Return ``sentence`` with the name of what it is about; a caveat stays one."""
    return type(sentence)(f"{whose}: {sentence}")
