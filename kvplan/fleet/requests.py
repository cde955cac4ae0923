"""Requests of a fleet, and what their prompts have in common.

A prompt is a row of *runs*, stretches of tokens with a key each. Two prompts agree in all tokens up to a place if the
runs that hold it have the same key: a key stands for all tokens from the first one on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from kvplan.errors import KvplanError
from kvplan.workload.files import FileRequest, read_requests, survey_file
from kvplan.workload.part import WHOLE_FILE, FilePart


class TokenRun(NamedTuple):
    """The tokens of a prompt from the end of the run before to ``end``."""

    key: int
    end: int


@dataclass(frozen=True, slots=True)
class FleetRequest:
    """A request. sent: seconds from the trace's first request on, as the file says.

    runs: of its prompt; what is behind the last of them no other prompt has. answer_key: of the answer's tokens, where
    later prompts may have these too (a chat); None where nobody else has them. after: number of the request whose
    answer it waits for, and think_seconds the pause behind that; ``sent`` is not used then.
    """

    number: int
    sent: float
    num_prompt_tokens: int
    num_output_tokens: int
    runs: tuple[TokenRun, ...] = ()
    after: int | None = None
    think_seconds: float = 0.0
    answer_key: int | None = None


def requests_of_file(path: Path, part: FilePart = WHOLE_FILE, longest: int | None = None) -> tuple[FleetRequest, ...]:
    """Read the requests of a file, in order of arrival. longest: prompt and answer together; longer ones are left out.

    KvplanError as for ``survey_file``, and where every request is longer.
    """
    survey_file(path, part)
    read = _by_arrival(read_requests(path, part), longest)
    if not read:
        raise KvplanError(
            f"Every request of the workload file {path} is longer than {longest:,} tokens.",
            hint="allow longer sequences (plan --ctx-max, cache --max-model-len), or take a model that has them",
        )
    keys = _PrefixKeys()
    numbers = {place: number for number, (place, _, _) in enumerate(read)}
    return tuple(
        FleetRequest(
            number,
            each.arrival_seconds or 0.0,
            each.num_prompt_tokens,
            each.num_output_tokens,
            keys.runs(each),
            after=None if after is None else numbers[after],
            think_seconds=each.pause_seconds or 0.0,
            answer_key=keys.of_chat(each.chat),
        )
        for number, (_, after, each) in enumerate(read)
    )


class _Placed(NamedTuple):
    """A request of a file, its place there, and the place of the turn before it, whose answer it waits for."""

    place: int
    after: int | None
    request: FileRequest


def _by_arrival(read: Iterator[FileRequest], longest: int | None) -> list[_Placed]:
    kept: list[_Placed] = []
    last: dict[int, int] = {}
    for place, each in enumerate(read):
        if longest is not None and each.num_prompt_tokens + each.num_output_tokens > longest:
            continue
        after = None
        if each.chat is not None:
            after = None if each.pause_seconds is None else last.get(each.chat)
            last[each.chat] = place
        kept.append(_Placed(place, after, each))
    return sorted(kept, key=lambda placed: placed.request.arrival_seconds or 0.0)


class _PrefixKeys:
    """Numbers the prefixes of a file. An id stands for its own tokens only, so a key is of an id and all before it."""

    def __init__(self) -> None:
        self._prefixes: dict[tuple[int, int], int] = {}
        self._chats: dict[int, int] = {}
        self._next = 0

    def runs(self, request: FileRequest) -> tuple[TokenRun, ...]:
        prompt = request.num_prompt_tokens
        if request.chat is not None:
            key = self.of_chat(request.chat)
            assert key is not None
            return (TokenRun(key, prompt),)
        runs, parent, end = [], -1, 0
        for block in request.block_ids:
            if end >= prompt:
                break
            found = self._prefixes.get((parent, block))
            if found is None:
                found = self._prefixes[parent, block] = self._new()
            parent = found
            end = min(end + request.block_tokens, prompt)
            runs.append(TokenRun(parent, end))
        return tuple(runs)

    def of_chat(self, chat: int | None) -> int | None:
        if chat is None:
            return None
        if chat not in self._chats:
            self._chats[chat] = self._new()
        return self._chats[chat]

    def _new(self) -> int:
        self._next += 1
        return self._next


def merged_runs(requests: Iterable[FleetRequest]) -> list[FleetRequest]:
    """Return ``requests`` with fewer runs that say the same: neighbours are one run where every prompt that has the
    first of them goes on with the second, and what no other prompt has is none at all.

    Blocks of 512 tokens are two or three runs then, and a play moves so many things instead of some hundred blocks.
    """
    found = list(requests)
    counts: Counter[int] = Counter()
    for request in found:
        counts.update([run.key for run in request.runs])
        if request.answer_key is not None:
            counts[request.answer_key] += 1
    return [_merged(request, counts) for request in found]


def _merged(request: FleetRequest, counts: Counter[int]) -> FleetRequest:
    if request.answer_key is not None or not request.runs:
        return request
    numbers = [counts[run.key] for run in request.runs]
    kept = tuple(
        run
        for run, number, after in zip(request.runs, numbers, [*numbers[1:], 0], strict=True)
        if number > 1 and number != after
    )
    return request if len(kept) == len(request.runs) else replace(request, runs=kept)


def renumbered(requests: tuple[FleetRequest, ...]) -> tuple[FleetRequest, ...]:
    """Number ``requests`` from 0 on, in order of sending, and let those that wait for others name these anew."""
    ordered = sorted(requests, key=lambda each: each.sent)
    numbers = {each.number: number for number, each in enumerate(ordered)}
    return tuple(
        replace(each, number=number, after=None if each.after is None else numbers.get(each.after))
        for number, each in enumerate(ordered)
    )
