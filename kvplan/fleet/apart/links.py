"""Transfers over links that they share: a fluid with max-min fair shares.

Each endpoint, a replica that sends or one that receives, has a bandwidth in the direction that is used. Transfers that
are under way at one moment share it: the endpoint with the smallest share for each of its transfers sets their speed,
what they leave of other endpoints is divided anew, and so on (progressive filling: Bertsekas and Gallager, Data
Networks, section 6.5.2). Shares change when a transfer begins or ends, and between two such moments nothing else does.

    one sender at 50 GB/s, two receivers at 50 GB/s     25 GB/s for each of two transfers
    the sender's first transfer ends                    50 GB/s for the other from then on
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

_ROUNDED: Final = 1e-12
"""Share of a transfer's bytes that is lost in rounding."""


class EndedTransfer(NamedTuple):
    """When a transfer ended, and which."""

    at: float
    number: int


@dataclass(slots=True)
class _Transfer:
    """bytes_left: at the last change of shares; bytes_per_second: from then on."""

    number: int
    ends: tuple[Hashable, Hashable]
    num_bytes: float
    bytes_left: float
    bytes_per_second: float = 0.0


class Links:
    """bandwidths: bytes per second of each endpoint."""

    def __init__(self, bandwidths: Mapping[Hashable, float]) -> None:
        assert all(each > 0 for each in bandwidths.values()), "an endpoint without a link"
        self._bandwidths = bandwidths
        self._under_way: dict[int, _Transfer] = {}
        self._now = 0.0
        self.bytes_moved = 0.0

    def start(self, at: float, number: int, source: Hashable, destination: Hashable, num_bytes: float) -> None:
        """Begin a transfer at ``at``, which is not before the last moment that was asked about."""
        self._pass(at)
        self._under_way[number] = _Transfer(number, (source, destination), num_bytes, float(num_bytes))
        self.bytes_moved += num_bytes
        self._share()

    def next_end(self) -> float:
        """When the next transfer ends if no other begins before; never where none is under way."""
        return min((self._end(each) for each in self._under_way.values()), default=math.inf)

    def take_ended(self, until: float) -> list[EndedTransfer]:
        """Return the transfers that ended up to ``until``, in order."""
        found = []
        while (end := self.next_end()) <= until:
            self._pass(end)
            for number in [each.number for each in self._under_way.values() if self._has_ended(each)]:
                del self._under_way[number]
                found.append(EndedTransfer(end, number))
            self._share()
        return found

    def _end(self, transfer: _Transfer) -> float:
        if self._has_ended(transfer):
            return self._now
        return self._now + transfer.bytes_left / transfer.bytes_per_second

    def _has_ended(self, transfer: _Transfer) -> bool:
        if math.isinf(transfer.bytes_per_second):
            return True
        # What is left takes less time than the clock can tell from now.
        seconds = transfer.bytes_left / transfer.bytes_per_second
        return transfer.bytes_left <= _ROUNDED * transfer.num_bytes or self._now + seconds == self._now

    def _pass(self, until: float) -> None:
        """Move what is under way up to ``until``, before which none ends."""
        seconds = max(until - self._now, 0.0)
        if seconds:
            for each in self._under_way.values():
                each.bytes_left = max(each.bytes_left - seconds * each.bytes_per_second, 0.0)
        self._now = max(self._now, until)

    def _share(self) -> None:
        """Give each transfer its max-min fair share."""
        open_at: dict[Hashable, set[int]] = {}
        for number, each in self._under_way.items():
            for end in each.ends:
                open_at.setdefault(end, set()).add(number)
        left = {end: self._bandwidths[end] for end in open_at}
        while open_at:
            tightest = min(open_at, key=lambda end: left[end] / len(open_at[end]))
            share = left[tightest] / len(open_at[tightest])
            for number in sorted(open_at[tightest]):
                transfer = self._under_way[number]
                transfer.bytes_per_second = share
                for end in set(transfer.ends):
                    open_at[end].discard(number)
                    left[end] -= 0.0 if math.isinf(share) else share
            open_at = {end: numbers for end, numbers in open_at.items() if numbers}
