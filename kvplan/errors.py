"""Errors that a user can cause, with the exit code each ends in."""

from __future__ import annotations

from typing import NoReturn


class KvplanError(Exception):
    """Something a user can fix: one clear sentence and, where there is a way out, a hint.

    Exit code 1: the request was understood and cannot be met (infeasible, failed, unreadable file).
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(KvplanError):
    """A wrong command line (unknown name, malformed or out-of-range value). Exit code 2."""

    exit_code = 2


def check(good: bool, sentence: str, hint: str) -> None:
    """UsageError with ``sentence``, which lacks its full stop, unless ``good``."""
    if not good:
        raise UsageError(sentence + ".", hint=hint)


class UnknownArchitectureError(KvplanError):
    """A config whose attention kvplan cannot size: refused by name, never guessed."""


def unhandled_kind(kind: NoReturn, question: str) -> KvplanError:
    """The error to raise for a kind of layer, part or state that ``question`` has no answer for.

    The type NoReturn makes mypy report the branch that is missing when a kind is added.
    """
    return KvplanError(
        f"{type(kind).__name__} has no answer to {question}: layers of this kind are not sized there.",
        hint="this is a gap in kvplan: please report it with the model's name",
    )
