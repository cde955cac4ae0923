"""What a router remembers of the prompts that it sent to a replica: the runs of tokens that were used last."""

from __future__ import annotations

from collections import OrderedDict

from kvplan.fleet.requests import FleetRequest


class PrefixMemory:
    """The prefixes that one replica was sent, as far as ``most_tokens`` hold them (None: all of them).

    The run that was used longest ago goes first, and of one prompt the last run before the others: no other needs it.
    longest: tokens of a prompt that are looked at; None for all of them.
    """

    def __init__(self, most_tokens: int | None = None, longest: int | None = None) -> None:
        self._most_tokens = most_tokens
        self._longest = longest
        self._ends: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """By a run's key, the oldest first: where it begins, and how far it is known."""
        self.num_tokens = 0

    def match(self, request: FleetRequest) -> int:
        """Tokens that the prompt of ``request`` begins with and that are remembered."""
        found, known = 0, self._ends
        for run in request.runs:
            begin_and_end = known.get(run.key)
            if begin_and_end is None:
                break
            found = min(run.end, begin_and_end[1])
            if found < run.end:
                break
        return found if self._longest is None else min(found, self._longest)

    def remember(self, request: FleetRequest) -> None:
        """The prompt of ``request`` was sent now."""
        begin, used = 0, []
        for run in request.runs:
            if self._longest is not None and begin >= self._longest:
                break
            used.append((run.key, begin, run.end))
            begin = run.end
        for key, begin, end in reversed(used):
            self._use(key, begin, end)
        if self._most_tokens is not None:
            self.shrink(self._most_tokens)

    def shrink(self, most_tokens: int) -> None:
        """Forget what was used longest ago, as far as there are more than ``most_tokens``."""
        while self.num_tokens > most_tokens:
            _, (begin, end) = self._ends.popitem(last=False)
            self.num_tokens -= end - begin

    def _use(self, key: int, begin: int, end: int) -> None:
        before = self._ends.pop(key, None)
        if before is not None:
            self.num_tokens -= before[1] - before[0]
            end = max(end, before[1])
        self._ends[key] = (begin, end)
        self.num_tokens += end - begin
