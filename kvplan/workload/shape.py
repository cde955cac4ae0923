"""What a request file is like: its lengths, its rate when it is busiest, and how much of its prompts came before.

Compact enough to plan with: some pairs of lengths and some gaps stand for all of them.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from kvplan.errors import KvplanError
from kvplan.units import plural
from kvplan.workload.files import FileRequest, read_requests, span_text, survey_file
from kvplan.workload.part import WHOLE_FILE, FilePart

BUSY_SECONDS: Final = 300.0
"""The window whose rate is the busiest."""
_MOST_PAIRS: Final = 4096


@dataclass(frozen=True, slots=True)
class FileShape:
    """num_requests: of those that are no longer than a limit. input_tokens, output_tokens: on average; longest: prompt
    and answer together. pairs: (prompt, answer) of requests drawn at random. rate: requests per second over the whole
    part, and busiest_rate over its busiest five minutes; None without times. gaps: seconds between the requests of
    those minutes. reused_share: of prompt tokens, those that a cache finds that keeps everything; None where the file
    does not say. notes: what to tell about it.
    """

    num_requests: int
    input_tokens: float
    output_tokens: float
    longest: int
    pairs: tuple[tuple[int, int], ...]
    rate: float | None
    busiest_rate: float | None
    gaps: tuple[float, ...]
    reused_share: float | None
    notes: tuple[str, ...]


def shape_of_file(path: Path, part: FilePart = WHOLE_FILE, longest: int | None = None) -> FileShape:
    """Read the file. longest: prompt and answer together; longer requests are left out, and counted.

    KvplanError as ``survey_file``, and where every request is longer.
    """
    found, seen = survey_file(path, part), _Tally(longest)
    for request in read_requests(path, part):
        seen.add(request)
    if not seen.count:
        raise KvplanError(
            f"Every request of the workload file {path} is longer than {longest:,} tokens.",
            hint="use a larger --ctx-max",
        )
    times = sorted(seen.times) if found.has_times else []
    first, count = _busiest(times)
    busy = times[first : first + count]
    span = max(busy[-1] - busy[0], 1e-9) if len(busy) > 1 else 0.0
    window = min(BUSY_SECONDS, times[-1] - times[0]) if times else 0.0
    notes = list(found.notes)
    if seen.num_longer:
        notes.append(f"{path.name}: {plural(seen.num_longer, 'request')} longer than {longest:,} tokens left out")
    return FileShape(
        num_requests=seen.count,
        input_tokens=seen.prompts / seen.count,
        output_tokens=seen.answers / seen.count,
        longest=seen.longest,
        pairs=tuple(seen.pairs),
        rate=len(times) / (times[-1] - times[0]) if times else None,
        busiest_rate=len(busy) / window if window else None,
        gaps=tuple(later - earlier for earlier, later in pairwise(busy)) if span else (),
        reused_share=seen.reused / seen.prompts if found.shares_prompts else None,
        notes=tuple(notes),
    )


def _busiest(times: list[float]) -> tuple[int, int]:
    """(the first of the requests of the busiest five minutes, how many there are)."""
    best, begun = (0, 0), 0
    for place, time in enumerate(times):
        while time - times[begun] >= BUSY_SECONDS:
            begun += 1
        if place - begun + 1 > best[1]:
            best = (begun, place - begun + 1)
    return best


@dataclass(slots=True)
class _Tally:
    """Sums over requests no longer than ``limit``; a sample of their lengths that every one is in as likely."""

    limit: int | None
    count: int = 0
    num_longer: int = 0
    prompts: int = 0
    answers: int = 0
    longest: int = 0
    reused: int = 0
    times: array[float] = field(default_factory=lambda: array("d"))
    pairs: list[tuple[int, int]] = field(default_factory=list)
    _rng: random.Random = field(default_factory=lambda: random.Random(0))
    _blocks: set[int] = field(default_factory=set)
    _chats: dict[int, int] = field(default_factory=dict)

    def add(self, request: FileRequest) -> None:
        prompt, answer = request.num_prompt_tokens, request.num_output_tokens
        if self.limit is not None and prompt + answer > self.limit:
            self.num_longer += 1
            return
        self.count += 1
        self.prompts += prompt
        self.answers += answer
        self.longest = max(self.longest, prompt + answer)
        self.reused += min(self._seen_before(request), prompt - 1)
        if request.arrival_seconds is not None:
            self.times.append(request.arrival_seconds)
        if len(self.pairs) < _MOST_PAIRS:
            self.pairs.append((prompt, answer))
        elif (place := self._rng.randrange(self.count)) < _MOST_PAIRS:
            self.pairs[place] = (prompt, answer)

    def _seen_before(self, request: FileRequest) -> int:
        """Tokens that the prompt begins with and that were computed for an earlier one."""
        if request.chat is not None:
            known = self._chats.get(request.chat, 0)
            self._chats[request.chat] = max(request.num_prompt_tokens, known)
            return min(known, request.num_prompt_tokens)
        found = 0
        for block in request.block_ids:
            if block not in self._blocks:
                break
            found += request.block_tokens
        self._blocks.update(request.block_ids)
        return min(found, request.num_prompt_tokens)


def rates_as_text(shape: FileShape) -> str:
    """``the busiest 5 min, 4.1 requests/s; the mean is 3.4``."""
    assert shape.rate is not None and shape.busiest_rate is not None
    return f"the busiest {span_text(BUSY_SECONDS)}, {shape.busiest_rate:.3g} requests/s; the mean is {shape.rate:.3g}"
