"""Requests read from the files people have: traces, conversations, prompts, batches, plain CSV.

A file is read as a stream, twice: once to see what is in it (``survey_file``: how many requests, the unit of its
times, the size of its blocks), and once for its requests (``read_requests``). Neither holds more than one record at a
time, but for the keys of sessions whose turns stand in rows of their own.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, groupby, islice, pairwise
from pathlib import Path
from typing import Final, NamedTuple

from kvplan.errors import KvplanError, UsageError
from kvplan.units import plural
from kvplan.workload.part import WHOLE_FILE, FilePart
from kvplan.workload.records import HINT, malformed, records_of
from kvplan.workload.rows import MissingColumn, RequestRow, RowMaker
from kvplan.workload.times import LONGEST_SECONDS, UNITS, DecidedUnit, TimesSeen, decide_unit

_MOONCAKE_BLOCK: Final = 512
_MOST_PER_SECOND: Final = 20_000.0
_FEWEST_TO_JUDGE: Final = 100


@dataclass(frozen=True, slots=True)
class FileRequest:
    """One request of a file. ``arrival_seconds``: from the first on; None if the file has no times.

    block_ids: of ``block_tokens`` tokens each, from the prompt's first token on; equal ids are equal tokens. chat: its
    number, where the prompt is the beginning of that chat's text. pause_seconds: after the chat's last answer, for
    turns that the file gives no time of their own; None otherwise.
    """

    num_prompt_tokens: int
    num_output_tokens: int
    arrival_seconds: float | None = None
    block_ids: tuple[int, ...] = ()
    block_tokens: int = 0
    chat: int | None = None
    pause_seconds: float | None = None


class Ticks(NamedTuple):
    """A coarse clock: seconds between two of its ticks, and requests that share one on average."""

    seconds: float
    num_requests: float

    @property
    def text(self) -> str:
        """``its clock ticks every 3 s, and 10 requests share a tick on average``"""
        many = f"{self.num_requests:.2g} requests share a tick on average"
        return f"its clock ticks every {span_text(self.seconds)}, and {many}"


@dataclass(frozen=True, slots=True)
class FileSurvey:
    """What is in a file, and in the part of it that is used.

    num_rows: requests of the whole file; num_in_window: between --from and --to; num_requests: those that are used.
    seconds: from the part's first request to its last, sped up as asked for; 0 where the file has no times, or only
    one moment. block_tokens: of a block id; 0 where there are none. bursts: the ticks of a coarse clock, of which the
    requests come at once; None where the clock is fine or they are spread. notes: what to tell, a sentence each.
    """

    num_rows: int
    num_in_window: int
    num_requests: int
    seconds: float
    block_tokens: int
    has_chats: bool
    notes: tuple[str, ...]
    bursts: Ticks | None = None

    @property
    def has_times(self) -> bool:
        """Whether the requests come at more than one moment."""
        return self.seconds > 0

    @property
    def shares_prompts(self) -> bool:
        """Whether the file says what prompts begin with in common."""
        return self.block_tokens > 0 or self.has_chats


def survey_file(path: Path, part: FilePart = WHOLE_FILE) -> FileSurvey:
    """Look at the whole file, and remember what was found as long as it does not change.

    KvplanError for what cannot be used, with the file and the place; UsageError for options that it has no use for.
    """
    return _looked_at(path, part, _version(path))[1]


def read_requests(path: Path, part: FilePart = WHOLE_FILE) -> Iterator[FileRequest]:
    """The requests of the part, in the file's order. Errors as ``survey_file``."""
    facts, found = _looked_at(path, part, _version(path))
    rows = _used(path, part, facts, found.num_in_window)
    return (facts.request(row, part) for row in (_spread(rows) if part.spreads_ticks else rows))


def _spread(rows: Iterator[RequestRow]) -> Iterator[RequestRow]:
    """Return rows of one moment evenly spread until the next one; those of the last moment as far as the one before.

    Turns of one chat stay together.
    """
    moments: Iterator[list[RequestRow] | None] = ([*same] for _, same in groupby(rows, lambda row: row.time))
    gap = 0.0
    for same, following in pairwise(chain(moments, [None])):
        assert same is not None, "nothing follows the end"
        begin = same[0].time or 0.0
        gap = gap if following is None else (following[0].time or 0.0) - begin
        places: dict[object, int] = {}
        for index, row in enumerate(same):
            places.setdefault(("own", index) if row.chat is None else row.chat, len(places))
        for index, row in enumerate(same):
            place = places[("own", index) if row.chat is None else row.chat]
            yield row._replace(time=begin + gap * place / len(places))


def _used(path: Path, part: FilePart, facts: _Facts, num_in_window: int) -> Iterator[RequestRow]:
    kept = _in_window(path, part, facts)
    if part.sample is not None and part.sample < num_in_window:
        chosen = set(random.Random(0).sample(range(num_in_window), part.sample))
        kept = (row for index, row in enumerate(kept) if index in chosen)
    return islice(kept, part.most)


def _version(path: Path) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:  # reading says why
        return 0, 0
    return found.st_size, found.st_mtime_ns


class _Facts(NamedTuple):
    """What turns rows into requests. zero: the time at which the part begins, in the file's unit. per_second: how many
    of that unit make a second. block_tokens: where a row does not say it."""

    is_timed: bool
    first: float
    zero: float
    per_second: int
    block_tokens: int

    def request(self, row: RequestRow, part: FilePart) -> FileRequest:
        time = None
        if self.is_timed and not part.ignores_times:
            time = (((row.time or 0.0) - self.zero) / self.per_second + row.delay) / part.speed
        size = (row.block_tokens or self.block_tokens) if row.block_ids else 0
        pause = None if row.pause is None or part.ignores_times else row.pause / part.speed
        return FileRequest(
            row.num_prompt_tokens, row.num_output_tokens, time, tuple(row.block_ids), size, row.chat, pause
        )


@dataclass(slots=True)
class _Seen:
    """What the first look finds. votes: for sizes of blocks; num_with_ids: rows that have any."""

    times: TimesSeen = field(default_factory=TimesSeen)
    num_rows: int = 0
    num_untimed: int = 0
    num_with_ids: int = 0
    votes: Counter[int] = field(default_factory=Counter)
    stated_block: int = 0
    longest_of_one: int = 0
    has_chats: bool = False

    def see(self, row: RequestRow) -> None:
        self.num_rows += 1
        if row.time is None:
            self.num_untimed += 1
        else:
            self.times.see(row.time)
        if row.chat is not None:
            self.has_chats = True
        if row.block_ids:
            self._see_blocks(row.num_prompt_tokens, len(row.block_ids), row.block_tokens)

    def _see_blocks(self, num_tokens: int, num_ids: int, stated: int | None) -> None:
        """A row of n tokens in k blocks says within a power of two how large they are; the last may be a part, or
        stand for itself."""
        self.num_with_ids += 1
        if stated is not None:
            self.stated_block = stated
        elif num_ids == 1:
            self.longest_of_one = max(self.longest_of_one, num_tokens)
        else:
            size = 1 << (-(-num_tokens // num_ids) - 1).bit_length()
            if -(-num_tokens // size) != num_ids:
                size = 1 << max((num_tokens // num_ids).bit_length() - 1, 0)
                if num_tokens // size != num_ids:
                    return
            self.votes[size] += 1

    @property
    def block_tokens(self) -> int:
        """The size that most rows agree with; Mooncake's where none says anything."""
        if not self.num_with_ids:
            return 0
        if self.stated_block:
            return self.stated_block
        if self.votes:
            return self.votes.most_common(1)[0][0]
        return max(_MOONCAKE_BLOCK, 1 << (self.longest_of_one - 1).bit_length())


class _Look(NamedTuple):
    """The first look at a whole file."""

    seen: _Seen
    maker: RowMaker
    unit: DecidedUnit

    @property
    def is_timed(self) -> bool:
        return not self.seen.num_untimed and self.seen.times.span > 0

    @property
    def ticks(self) -> Ticks | None:
        times = self.seen.times
        if times.tick is None or not self.is_timed:
            return None
        return Ticks(times.tick / self.unit.unit.value, times.count / times.num_moments)

    @property
    def span_seconds(self) -> float:
        return self.seen.times.span / self.unit.unit.value


@lru_cache(maxsize=16)
def _whole(path: Path, unit: str | None, output_tokens: int | None, version: tuple[int, int]) -> _Look:
    maker, seen = RowMaker(output_tokens), _Seen()
    for row in _rows(path, maker):
        seen.see(row)
    if not seen.num_rows:
        left_out = ", ".join(_left_out(maker))
        raise KvplanError(
            f"The workload file {path} contains no request{f' ({left_out})' if left_out else ''}.", hint=HINT
        )
    seen.times.are_dates = maker.have_dates
    stated = maker.unit if unit is None else UNITS[unit]
    look = _Look(seen, maker, decide_unit(seen.times, stated, is_like_mooncake=maker.is_like_mooncake))
    if look.is_timed:
        _refuse_times(path, look)
    if output_tokens is not None and not maker.num_assumed:
        raise UsageError("--output-len cannot be used with this --workload: it gives the lengths.", hint="leave it out")
    return look


@lru_cache(maxsize=64)
def _looked_at(path: Path, part: FilePart, version: tuple[int, int]) -> tuple[_Facts, FileSurvey]:
    look = _whole(path, part.unit, part.output_tokens, version)
    seen, per_second = look.seen, look.unit.unit.value
    if part.needs_times is not None and not look.is_timed:
        raise UsageError(
            f"{part.needs_times} needs a workload file with times, and {path.name} has none.", hint="leave it out"
        )
    if part.spreads_ticks and seen.times.num_earlier:
        raise UsageError(
            f"--spread-ticks needs requests in order of time, and {path.name} has "
            f"{plural(seen.times.num_earlier, 'request')} after a later one.",
            hint="sort the file by time first",
        )
    facts = _Facts(look.is_timed, seen.times.first, seen.times.first, per_second, seen.block_tokens)
    num_in_window = _count_in_window(path, part, facts, seen.num_rows)
    if not num_in_window:
        raise KvplanError(
            f"The workload file {path} has no request between --from and --to.",
            hint=f"it has {plural(seen.num_rows, 'request')} over {span_text(look.span_seconds)}",
        )
    num_requests, used = part.used_of(num_in_window), seen.times
    if look.is_timed and num_requests < seen.num_rows:
        used = _times_of(_used(path, part, facts, num_in_window))
    found = FileSurvey(
        num_rows=seen.num_rows,
        num_in_window=num_in_window,
        num_requests=num_requests,
        seconds=used.span / per_second / part.speed if look.is_timed and not part.ignores_times else 0.0,
        block_tokens=seen.block_tokens,
        has_chats=seen.has_chats,
        notes=tuple(_notes(path, look, part, num_requests)),
        bursts=None if part.spreads_ticks or part.ignores_times else look.ticks,
    )
    return facts._replace(zero=used.first if look.is_timed else 0.0), found


def _count_in_window(path: Path, part: FilePart, facts: _Facts, num_rows: int) -> int:
    return sum(1 for _ in _in_window(path, part, facts)) if facts.is_timed and part.has_window else num_rows


def _times_of(rows: Iterator[RequestRow]) -> TimesSeen:
    seen = TimesSeen()
    for row in rows:
        seen.see(row.time or 0.0)
    return seen


def _rows(path: Path, maker: RowMaker) -> Iterator[RequestRow]:
    for record in records_of(path):
        try:
            yield from maker.rows(record.fields)
        except MissingColumn as error:
            raise KvplanError(f"{record.place} of the workload file {path} {error}.", hint=HINT) from error
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
            raise malformed(path, record.place, str(error)) from error


def _in_window(path: Path, part: FilePart, facts: _Facts) -> Iterator[RequestRow]:
    rows = _rows(path, RowMaker(part.output_tokens))
    if not facts.is_timed or not part.has_window:
        return rows
    first = facts.first + part.start_seconds * facts.per_second
    end = facts.first + (LONGEST_SECONDS if part.end_seconds is None else part.end_seconds) * facts.per_second
    return (row for row in rows if first <= (row.time or 0.0) < end)


def _refuse_times(path: Path, look: _Look) -> None:
    """KvplanError for times that cannot be in their unit."""
    seconds, num_rows, unit = look.span_seconds, look.seen.num_rows, look.unit.unit.name
    if seconds > LONGEST_SECONDS:
        raise KvplanError(
            f"The requests of the workload file {path} come over more than {LONGEST_SECONDS:,.0f} seconds.",
            hint="--trace-unit says what its times are: s, ms, us or ns",
        )
    rate = num_rows / seconds
    if num_rows >= _FEWEST_TO_JUDGE and rate > _MOST_PER_SECOND:
        raise KvplanError(
            f"The {num_rows:,} requests of the workload file {path} would come within {seconds:.3g} s, "
            f"{rate:,.0f} a second: its times are not {unit}.",
            hint="--trace-unit says what they are: s, ms, us or ns",
        )


def _notes(path: Path, look: _Look, part: FilePart, num_requests: int) -> Iterator[str]:
    seen, maker, unit = look
    name, many = path.name, plural(seen.num_rows, "request")
    if seen.num_untimed:
        some = f", {seen.num_untimed:,} of them without a time: no times are used" if seen.times.count else ", no times"
        yield f"{name}: {many}{some}"
    elif not seen.times.span:
        yield f"{name}: {many}, all at the same time"
    else:
        over = f"{many} over {span_text(look.span_seconds)}"
        why = f" ({unit.reason})" if unit.reason else ""
        yield f"{name}: {'' if seen.times.are_dates else f'timestamps read as {unit.unit.name}{why}: '}{over}"
        if seen.times.num_earlier:
            yield f"{name}: {plural(seen.times.num_earlier, 'request')} after a later one, sorted by time"
        if seen.times.first < 0 and not seen.times.are_dates:
            yield f"{name}: times begin at {seen.times.first:g}, before 0, and count from there"
        yield from _of_ticks(name, look, part)
        if part.ignores_times:
            yield f"{name}: its times are not used, its order is: with --load-format none nothing takes time"
    yield from (f"{name}: {each} left out" for each in _left_out(maker))
    if num_requests < seen.num_rows:
        yield f"{name}: {num_requests:,} of its {many} are used"
    if maker.num_estimated:
        yield f"{name}: prompts' tokens are estimated from their text, four characters each"
    elif seen.block_tokens:
        yield f"{name}: block ids read as {seen.block_tokens:,} tokens each; equal ids are equal tokens"
    if maker.num_assumed:
        yield f"{name}: {plural(maker.num_assumed, 'answer')} without a length: --output-len {part.output_tokens:,}"
    if maker.num_media:
        yield f"{name}: {plural(maker.num_media, 'message')} with more than text, which is not counted"
    if maker.num_ids_unused:
        yield f"{name}: block ids within sessions are not used; what a session's own turns repeat is"


def _of_ticks(name: str, look: _Look, part: FilePart) -> Iterator[str]:
    """What a coarse clock does to the times of requests that came one after the other."""
    if look.ticks is None or part.ignores_times:
        return
    if part.spreads_ticks:
        yield f"{name}: {look.ticks.text}: they are spread until the next one"
    else:
        yield f"{name}: {look.ticks.text}: sent at once they wait for each other; --spread-ticks spreads them"


def _left_out(maker: RowMaker) -> Iterator[str]:
    if maker.num_failed:
        yield f"{plural(maker.num_failed, 'row')} without an answer"
    if maker.num_empty:
        yield f"{plural(maker.num_empty, 'row')} without a prompt"


def span_text(seconds: float) -> str:
    """``45 s``, ``59 min``, ``3.5 h``, ``12 days``."""
    for unit, size, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds < size * most:
            number = seconds / size
            return f"{number:.0f} {unit}" if number >= 20 else f"{number:.3g} {unit}"
    return f"{seconds / 86400:,.3g} days"
