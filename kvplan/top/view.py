"""A snapshot as lines for a terminal: a block for each server, or one line each where blocks would not fit."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Final

from rich.text import Text

from kvplan.foreign_text import blanked
from kvplan.metrics.histograms import Histogram
from kvplan.metrics.reading import ServerReading
from kvplan.metrics.window import WindowFigures
from kvplan.top.gpus import GpuState
from kvplan.top.room import Room, seats_of
from kvplan.top.snapshot import ServerRow, Snapshot
from kvplan.top.watch import ServerState
from kvplan.units import GIB, format_tokens

# The thresholds of vLLM's own dashboards (examples/observability/dashboards/grafana).
_KV_ORANGE: Final = 0.9
_KV_RED: Final = 0.98
_WARNING: Final = "dark_orange"
_ALARM: Final = "red"
_DIM: Final = "dim"
_BLOCK_LINES: Final = 8
_BAR_CELLS: Final = 24
_SMALL_BAR_CELLS: Final = 8
_PERCENTILES: Final = (50, 95, 99)
_GAP: Final = "   "


def screen(snapshot: Snapshot, *, width: int, height: int | None, title: str) -> Text:
    """The whole screen, at most ``width`` characters wide. height: None for as many lines as it takes."""
    gpus = [_gpu_line(gpu) for gpu in snapshot.gpus]
    room = None if height is None else height - len(gpus) - 2
    is_small = room is not None and sum(map(_num_lines, snapshot.rows)) > room
    lines: list[Text] = [Text(title, style=_DIM)]
    if is_small:
        lines += [_small_head(width), *(_small_row(row, width) for row in snapshot.rows)]
    else:
        for row in snapshot.rows:
            lines += [Text(), *_block(row, width)]
    if gpus:
        lines += [Text(), *gpus]
    for line in lines:
        line.plain = blanked(line.plain)  # of the same length, so that styles stay where they are
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines)


# ---- one server as a block


def _num_lines(row: ServerRow) -> int:
    """Return the lines of its block, at most."""
    return _BLOCK_LINES + (len(row.state.reading.engines) if row.state.reading else 0)


def _block(row: ServerRow, width: int) -> Iterator[Text]:
    state = row.state
    yield _heading(row)
    if state.error is not None:
        yield Text.assemble("  ", (_absence(state), _ALARM))
    reading = state.reading
    if reading is None:
        return
    style = "" if state.is_up else _DIM
    yield from _kv_lines(reading, row.rooms, width)
    told = (_rate_lines, _draft_lines, _latency_lines)
    for line in (_queue_line(row, reading), *(line for lines in told for line in lines(reading, state.window))):
        line.stylize(style)
        yield line
    for name, engine in reading.engines.items():
        yield _engine_line(name, engine)


def _heading(row: ServerRow) -> Text:
    state, reading = row.state, row.state.reading
    heading = Text(state.url, style="bold")
    if reading is None:
        return heading
    version = f" {state.limits.version}" if state.limits.version else ""
    engines = f" x {reading.num_engines} data-parallel" if reading.num_engines > 1 else ""
    heading.append(f"  {reading.engine}{version}{engines}", style="not bold")
    names = reading.model_names or state.models
    return heading.append(f"  {', '.join(names)}", style="not bold")


def _kv_lines(reading: ServerReading, rooms: tuple[Room, ...], width: int) -> Iterator[Text]:
    """The pool and the room in it, on one line where it is wide enough."""
    line = _kv_line(reading)
    room = Text(_GAP).join(map(_room_text, rooms))
    if rooms and line.cell_len + len(_GAP) + room.cell_len <= width:
        yield line.append(_GAP).append_text(room)
        return
    yield line
    if rooms:
        yield Text.assemble("  room  ", room)


def _kv_line(reading: ServerReading) -> Text:
    line = Text("  KV  ")
    if reading.kv_cache_usage is None:
        return line.append_text(_held_text(reading))
    line.append_text(_bar(reading.kv_cache_usage, _BAR_CELLS))
    line.append(f" {100 * reading.kv_cache_usage:5.1f} %")
    fullest = reading.kv_cache_usage_highest
    if reading.num_engines > 1 and fullest is not None:
        line.append(f" (fullest {100 * fullest:.0f} %)")
    tokens = reading.cache.kv_cache_size_tokens
    if tokens:
        line.append(f" of {tokens:,} tokens")
    return line


def _held_text(reading: ServerReading) -> Text:
    """What is known where the size of the pool is not: tokens, and the slots of llama.cpp that hold them."""
    if reading.kv_cache_used_tokens is None:
        return Text("not told by this server", style=_DIM)
    text = Text(f"{reading.kv_cache_used_tokens:,.0f} tokens", style="not bold")
    if reading.num_slots is not None and reading.slot_tokens is not None:
        text.append(f" in {_count(reading.num_running)} of {reading.num_slots:,} slots of {reading.slot_tokens:,}")
    return text


def _room_text(room: Room) -> Text:
    """``+5 of 33 x 8k``: five more of 8k tokens fit now, 33 in the whole pool; ``~`` where only tokens are known."""
    about = "~" if room.blocks_per_sequence is None else ""
    text = Text(f"{about}+{room.sequences:,}", style="bold" if room.sequences else _ALARM)
    text.append(f" of {room.capacity:,} x {format_tokens(room.context_tokens)}", style="not bold default")
    return text.append(" (seats)", style=_DIM) if room.is_limited_by_seats else text


def _queue_line(row: ServerRow, reading: ServerReading) -> Text:
    window = row.state.window
    seats = seats_of(reading, row.state.limits)
    of_seats = f"/{seats:,}" if seats else ""
    line = Text(f"  running {_count(reading.num_running)}{of_seats}{_GAP}waiting {_count(reading.num_waiting)}")
    reasons = [f"{count:,.0f} {reason}" for reason, count in reading.waiting_by_reason.items() if count]
    if reasons:
        line.append(f" ({', '.join(reasons)})")
    if reading.num_preemptions is not None:
        line.append(f"{_GAP}preemptions {reading.num_preemptions:,.0f}")
        if window is not None and window.num_preemptions:
            line.append(f" +{window.num_preemptions:,.0f}", style=_WARNING)
    found = None if window is None else window.prefix_hit_rate
    rate = reading.prefix_cache_hit_rate if found is None else found
    return line if rate is None else line.append(f"{_GAP}prefix hits {100 * rate:.0f} %")


def _engine_line(name: str, reading: ServerReading) -> Text:
    """One of several data-parallel engines, as it is now."""
    line = Text(f"  engine {name}  ")
    if reading.kv_cache_usage is not None:
        line.append_text(_bar(reading.kv_cache_usage, _SMALL_BAR_CELLS)).append(
            f" {100 * reading.kv_cache_usage:5.1f} %"
        )
    line.append(f"{_GAP}running {_count(reading.num_running)}{_GAP}waiting {_count(reading.num_waiting)}")
    if reading.num_preemptions is not None:
        line.append(f"{_GAP}preemptions {reading.num_preemptions:,.0f}")
    return line


def _rate_lines(reading: ServerReading, window: WindowFigures | None) -> Iterator[Text]:
    """Rates that the server tells; none for one that tells none."""
    output = reading.output_throughput if window is None else window.output_throughput
    prompt = None if window is None else window.prompt_throughput
    requests = None if window is None else window.request_throughput
    rates = ((output, "out {} tok/s"), (prompt, "in {} tok/s"), (requests, "{} requests/s"))
    parts = [text.format(_number(rate)) for rate, text in rates if rate is not None]
    if window is not None and window.num_rejected:
        parts.append(f"rejected {window.num_rejected:,.0f}")
    if parts:
        yield Text("  " + _GAP.join(parts))


def _draft_lines(reading: ServerReading, window: WindowFigures | None) -> Iterator[Text]:
    """What became of the draft tokens of speculative decoding; nothing where nothing was drafted."""
    length = reading.mean_acceptance_length if window is None else window.mean_acceptance_length
    length = length or reading.mean_acceptance_length  # SGLang has the gauge alone
    rate = None if window is None else window.acceptance_rate
    if length:
        accepted = "" if rate is None else f"{_GAP}{100 * rate:.0f} % of the draft tokens accepted"
        yield Text(f"  drafts  {length:.2f} tokens a verification{accepted}")


def _latency_lines(_: ServerReading, window: WindowFigures | None) -> Iterator[Text]:
    """Percentiles of the window; a line is left out where nothing was observed."""
    if window is None:
        return
    per_token = window.tpot if window.tpot is not None and window.tpot.count else window.itl
    name = "TPOT" if per_token is window.tpot else "ITL"
    parts = [_percentiles("TTFT", window.ttft), _percentiles(name, per_token)]
    told = [part for part in parts if part]
    if told:
        yield Text("  " + _GAP.join(told))


def _percentiles(name: str, histogram: Histogram | None) -> str:
    if histogram is None or histogram.count <= 0:
        return ""
    values = " ".join(f"p{percent} {_milliseconds(histogram, percent)}" for percent in _PERCENTILES)
    return f"{name} {values} ms"


def _milliseconds(histogram: Histogram, percent: int) -> str:
    """Interpolated within its bucket, so only two digits are said; ``<10`` where that is the first one, ``>80,000``
    above the last: more is not known.
    """
    edges = histogram.percentile_range(percent)
    value = histogram.percentile(percent)
    assert edges is not None, "asked only of histograms with observations"
    if math.isinf(edges[1]) or value is None:
        return f">{1000 * edges[0]:,.0f}"
    return f"<{1000 * edges[1]:,.0f}" if edges[0] == 0 else _two_digits(1000 * value)


# ---- one server in a line


def _small_head(width: int) -> Text:
    return Text(_small_cells(width, "server", "KV", "run", "wait", "tok/s", "TTFT95", "TPOT95", "room"), style="bold")


def _small_row(row: ServerRow, width: int) -> Text:
    state, reading, window = row.state, row.state.reading, row.state.window
    name = state.url.partition("://")[2]
    if reading is None or not state.is_up:
        what = _absence(state) if state.error else "asking"
        return Text.assemble(f"{_shortened(name, _name_cells(width))} ", (what, _ALARM if state.error else _DIM))
    usage = reading.kv_cache_usage
    per_token = None if window is None else (window.tpot or window.itl)
    cells = _small_cells(
        width,
        _shortened(name, _name_cells(width)),
        "-" if usage is None else f"{100 * usage:.0f} %",
        _count(reading.num_running),
        _count(reading.num_waiting),
        _number(reading.output_throughput if window is None else window.output_throughput),
        _p95(None if window is None else window.ttft),
        _p95(per_token),
        f"+{row.rooms[0].sequences:,}" if row.rooms else "-",
    )
    line = Text(cells)
    if usage is not None:
        start = _name_cells(width) + 1
        line = Text.assemble(line[:start], _bar(usage, _SMALL_BAR_CELLS), line[start + _SMALL_BAR_CELLS :])
    return line


def _name_cells(width: int) -> int:
    return max(14, min(34, width - 59))


def _small_cells(width: int, name: str, kv: str, *cells: str) -> str:
    """The bar's place stays empty between name and share."""
    run, wait, rate, ttft, tpot, room = cells
    bar = " " * _SMALL_BAR_CELLS
    front = f"{name:<{_name_cells(width)}} {bar}{kv:>6}"
    return f"{front} {run:>5} {wait:>5} {rate:>8} {ttft:>7} {tpot:>7} {room:>6}"


def _p95(histogram: Histogram | None) -> str:
    return "-" if histogram is None or histogram.count <= 0 else _milliseconds(histogram, 95)


def _shortened(name: str, cells: int) -> str:
    return f"{name if len(name) <= cells else name[: cells - 1] + '…':<{cells}}"


# ---- parts


def _bar(share: float, cells: int) -> Text:
    """Filled to ``share``, in eighths of a cell; orange and red as on vLLM's dashboards."""
    share = min(1.0, max(0.0, share))
    colour = _ALARM if share >= _KV_RED else _WARNING if share >= _KV_ORANGE else "green"
    if not _draws_blocks():
        filled = "#" * round(share * cells)
        return Text.assemble((filled, colour), ("." * (cells - len(filled)), _DIM))
    eighths = round(share * cells * 8)
    whole, rest = divmod(eighths, 8)
    filled = "█" * whole + (" ▏▎▍▌▋▊▉"[rest] if rest else "")
    return Text.assemble((filled, colour), ("░" * (cells - len(filled)), _DIM))


def _draws_blocks() -> bool:
    """Whether the output's encoding has the characters of a bar: LC_ALL=C has not."""
    try:
        "█░".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _gpu_line(gpu: GpuState) -> Text:
    parts = [f"{gpu.used_bytes / GIB:,.1f} of {gpu.total_bytes / GIB:,.1f} GiB"]
    if gpu.clock_mhz is not None:
        share = f" ({100 * gpu.clock_mhz / gpu.max_clock_mhz:.0f} %)" if gpu.max_clock_mhz else ""
        parts.append(f"{gpu.clock_mhz:,} MHz{share}")
    if gpu.busy_pct is not None:
        parts.append(f"busy {gpu.busy_pct} %")
    if gpu.power_watts is not None:
        parts.append(f"{gpu.power_watts:,.0f} W")
    return Text(f"GPU {gpu.index} {gpu.name}{_GAP}{_GAP.join(parts)}")


def _absence(state: ServerState) -> str:
    what = "no reading" if state.reading is None else "gone"
    since = f" for {_duration(state.gone_seconds)}" if state.gone_seconds >= 1 else ""
    return f"{what}{since}: {state.error}"


def _two_digits(number: float) -> str:
    """12,345 -> '12,000', 0.1234 -> '0.12'."""
    places = 1 - math.floor(math.log10(number)) if number > 0 else 0
    return f"{round(number, places):,.{max(0, places)}f}"


def _count(number: float | None) -> str:
    return "-" if number is None else f"{number:,.0f}"


def _number(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,.0f}" if number >= 100 else f"{number:,.1f}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
