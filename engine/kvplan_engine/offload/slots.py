"""Free slots of the host pool. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain


class FreeSlots:
    """``count`` slots from ``first`` on: those that came back are taken first, the last one before the others.

    Slots that were never taken are two numbers, however many there are.
    """

    def __init__(self, first: int, count: int) -> None:
        self._first, self._next, self._end = first, first, first + count
        self._returned: list[int] = []

    def __len__(self) -> int:
        return len(self._returned) + self._end - self._next

    def take(self, count: int) -> tuple[int, ...]:
        """``count`` of them: there must be as many."""
        assert count <= len(self), "more slots than are free"
        return tuple(self._take() for _ in range(count))

    def _take(self) -> int:
        if self._returned:
            return self._returned.pop()
        self._next += 1
        return self._next - 1

    def give_back(self, slots: tuple[int, ...]) -> None:
        """They are taken again in their order."""
        self._returned.extend(reversed(slots))

    def check(self, in_use: Iterable[int]) -> None:
        """Assert that each slot is either free or once among those ``in_use``."""
        known = sorted(chain(self._returned, in_use))
        assert known == list(range(self._first, self._next)), "host slots are lost or held twice"
