"""Stop strings in a stream of text: what may be released, and where the answer ends."""

from __future__ import annotations

from typing import NamedTuple


class Released(NamedTuple):
    """Text that is certain to be part of the answer. stop: the stop string that ended it."""

    text: str
    stop: str | None = None


class StopStrings:
    """Looks for ``stops`` in an answer. Text that may be the beginning of one is held back until that is decided.

    include: the stop string stays part of the text.
    """

    __slots__ = ("_held", "_include", "_longest", "_stops", "_tail")

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = stops
        self._longest = max(map(len, stops))
        self._include = include
        self._tail = ""  # the end of the text, long enough to find a stop string that began in an earlier piece
        self._held = ""  # the end of that: not released yet

    def feed(self, piece: str, *, may_stop: bool = True) -> Released:
        """What ``piece``, the newest text, releases. Of several stop strings, the one that begins first counts.

        may_stop: if False, none ends the answer, but one that has begun may be completed later.
        """
        window, pending = self._tail + piece, self._held + piece
        matches = [(start, stop) for stop in self._stops if (start := window.find(stop)) >= 0] if may_stop else []
        if matches:
            start, stop = min(matches)
            end = start + len(stop) if self._include else start
            self._held = ""
            return Released(pending[: max(0, len(pending) - len(window) + end)], stop)
        self._tail = window[max(0, len(window) - self._longest + 1) :]
        num_held = self._num_to_hold(pending)
        self._held = pending[len(pending) - num_held :]
        return Released(pending[: len(pending) - num_held])

    def flush(self) -> str:
        """At the end of an answer: what was held back in vain."""
        held, self._held = self._held, ""
        return held

    def _num_to_hold(self, text: str) -> int:
        """The length of the longest end of ``text`` that a stop string begins with."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stops):
                return length
        return 0
