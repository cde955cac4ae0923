"""The recording as a picture: memory by kind, blocks, sequences, tokens of each step, its time, and where that goes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kvplan.profiling.shares import TimeShare, operation_shares, phase_shares
from kvplan.profiling.steps import StepRecording
from kvplan.reports.looks import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY_BLUE, VERMILION, YELLOW
from kvplan.reports.plots.canvas import (
    FAINT,
    INK,
    NARROW_INCHES,
    balanced,
    drawing,
    from_zero,
    is_narrow,
    new_figure,
    outer_legend,
    png_bytes,
    printable,
)
from kvplan.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE_INCHES: Final = (10.0, 12.5)
_NARROW_SIZE_INCHES: Final = (NARROW_INCHES, 13.0)
_BLOCKS: Final[Mapping[str, tuple[str, str]]] = {
    "used": ("used", "#007A5A"),
    "cached": ("cached, free", "#8FD3BF"),
    "free": ("empty", "#E3F3EE"),
}
_STEP_KINDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "prefill": ("prompts only", VERMILION, "s"),
    "mixed": ("prompts and decoding", ORANGE, "^"),
    "decode": ("decoding only", BLUE, "o"),
}
_BAR_COLOURS: Final = (BLUE, ORANGE, GREEN, PURPLE, SKY_BLUE, VERMILION, YELLOW, "#7B5EA7", "#5A5A5A", "#B5B5B5")
# Of the labels' type, in a hundredth of a bar.
_LETTERS_PER_PERCENT: Final = 1.3
_NARROW_LETTERS_PER_PERCENT: Final = 0.45
_MOST_LABEL_LINES: Final = 3
_LOG_RATIO: Final = 20


def draw_timeline(recording: StepRecording, model_id: str, circumstances: str, *, narrow: bool = False) -> bytes:
    """The picture as a PNG. circumstances: device, setting and load, in one line. narrow: as wide as a phone."""
    with drawing():
        figure = new_figure(*(_NARROW_SIZE_INCHES if narrow else _SIZE_INCHES))
        rows = figure.subplots(6, 1, height_ratios=[3, 2.2, 1.6, 2, 2.2, 1.8])
        _over_time(rows[:5], recording)
        _shares(rows[5], recording)
        _frame(figure, recording, model_id, circumstances)
        return png_bytes(figure)


def _frame(figure: Figure, recording: StepRecording, model_id: str, circumstances: str) -> None:
    narrow = is_narrow(figure)
    model = model_id.rpartition("/")[2] if narrow else model_id
    title = balanced(printable(finding(recording, model)), 33 if narrow else 100)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11 if narrow else 12, fontweight="bold")
    foot = textwrap.fill(printable(circumstances), 52 if narrow else 150)
    figure.supxlabel(foot, x=0.01, ha="left", fontsize=8, color=FAINT)


def finding(recording: StepRecording, model_id: str) -> str:
    """The title: the largest part of the time, and how full the pool was."""
    largest = max(phase_shares(recording), key=lambda share: share.seconds)
    peak = max(recording.steps["used_blocks"], default=0) / recording.memory["num_blocks"]
    return (
        f"{model_id}: {100 * largest.share:.0f} % of the steps' time is {largest.title}; "
        f"KV pool {100 * peak:.0f} % used at the peak"
    )


def _over_time(rows: Sequence[Axes], recording: StepRecording) -> None:
    clock = _Clock(recording)
    memory, blocks, sequences, tokens, times = rows
    for axes in rows:
        axes.set_xlim(0, clock.end)
        axes.tick_params(labelbottom=axes is times)
    _memory(memory, recording, clock)
    _blocks(blocks, recording, clock)
    _sequences(sequences, recording, clock)
    _tokens(tokens, recording, clock)
    _times(times, recording)
    times.set_xlabel("seconds")


class _Clock:
    """The steps' places on the horizontal axis."""

    def __init__(self, recording: StepRecording) -> None:
        steps = recording.steps
        self.began = steps["began_seconds"]
        self.ended = [began + length for began, length in zip(self.began, steps["step_seconds"], strict=True)]
        self.end = max(recording.json["duration_seconds"], self.ended[-1] if self.ended else 0.0)

    def lasting(self, values: Sequence[float]) -> tuple[list[float], list[float]]:
        """(values, edges) of a state: each from the end of the step before (or 0) to its own."""
        return list(values), [0.0, *self.ended[:-1], self.end]

    def passing(self, values: Sequence[float]) -> tuple[list[float], list[float]]:
        """(values, edges) of what happens within steps: 0 in between."""
        heights: list[float] = []
        edges: list[float] = []
        for began, ended, value in zip(self.began, self.ended, values, strict=True):
            began = max(began, edges[-1]) if edges else began
            if edges:
                heights.append(0.0)
            edges += [began, max(ended, began)]
            heights.append(value)
        return heights, edges


def _stack(axes: Axes, layers: Sequence[tuple[str, str, Sequence[float]]], edges: Sequence[float]) -> list[Any]:
    """Filled layers on top of each other; (label, colour, values)."""
    floor = [0.0] * len(layers[0][2])
    drawn = []
    for label, colour, values in layers:
        top = [low + value for low, value in zip(floor, values, strict=True)]
        drawn.append(axes.stairs(top, edges, baseline=floor, fill=True, color=colour, label=label, linewidth=0))
        floor = top
    return drawn


def _legend(axes: Axes, reverse: bool = False) -> None:
    """Beside the axes, on a phone below them in two columns. reverse: the last one first, as layers are stacked."""
    handles, labels = axes.get_legend_handles_labels()
    handles, labels = (handles[::-1], labels[::-1]) if reverse else (handles, labels)
    if not is_narrow(axes):
        outer_legend(axes, handles, labels)
        return
    gap = -0.05 if not axes.xaxis.get_tick_params()["labelbottom"] else -0.45
    axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(-0.1, gap), ncols=2, fontsize=8,
                handlelength=1.6, borderaxespad=0.2, labelcolor=INK)  # fmt: skip


def _memory(axes: Axes, recording: StepRecording, clock: _Clock) -> None:
    parts, steps = recording.memory, recording.steps
    unit, name = (GIB, "GiB") if parts["budget_bytes"] >= 2 * GIB else (MIB, "MiB")
    count = recording.num_steps
    fixed = [
        ("weights", BLUE, parts["weight_bytes"]),
        ("workspace", ORANGE, parts["workspace_bytes"]),
        ("overhead", PURPLE, parts["overhead_bytes"]),
        ("graphs", GREY, parts["graph_bytes"]),
    ]
    layers = [(label, colour, [size / unit] * count) for label, colour, size in fixed if size]
    block = parts["block_bytes"] / unit
    layers += [(f"KV {label}", colour, [block * value for value in steps[f"{kind}_blocks"]])  # type: ignore[literal-required]
               for kind, (label, colour) in _BLOCKS.items()]  # fmt: skip
    _stack(axes, layers, clock.lasting([0.0] * count)[1])
    readings = [(at, value / unit) for at, value in zip(clock.ended, steps["process_bytes"], strict=True) if value]
    if readings:
        what = "given out by torch" if recording.json["device_is_asynchronous"] else "resident, measured"
        axes.plot(*zip(*readings, strict=True), color=INK, linewidth=1.2, linestyle="--", label=what)
    axes.axhline(parts["budget_bytes"] / unit, color=INK, linewidth=1, label="budget")
    from_zero(axes, parts["budget_bytes"] / unit)
    axes.set_title(f"Device memory ({name}); total {format_bytes(parts['device_total_bytes'])}")
    _legend(axes, reverse=True)


def _blocks(axes: Axes, recording: StepRecording, clock: _Clock) -> None:
    steps, parts = recording.steps, recording.memory
    layers = [(label, colour, steps[f"{kind}_blocks"])  # type: ignore[literal-required]
              for kind, (label, colour) in _BLOCKS.items()]  # fmt: skip
    edges = clock.lasting([0.0] * recording.num_steps)[1]
    _stack(axes, layers, edges)
    tokens = [value / parts["block_size"] for value in steps["used_tokens"]]
    axes.stairs(tokens, edges, color=INK, linewidth=1.2, linestyle=":", label="slots with a token")
    from_zero(axes, parts["num_blocks"])
    axes.set_ylim(0, parts["num_blocks"])
    axes.set_title(f"KV blocks ({parts['num_blocks']:,} of {parts['block_size']} tokens)")
    _legend(axes, reverse=True)


def _sequences(axes: Axes, recording: StepRecording, clock: _Clock) -> None:
    steps = recording.steps
    edges = clock.lasting([0.0] * recording.num_steps)[1]
    axes.stairs(steps["num_running"], edges, color=BLUE, linewidth=1.8, label="running")
    axes.stairs(steps["num_waiting"], edges, color=VERMILION, linewidth=1.8, linestyle="--", label="waiting")
    _mark_preemptions(axes, recording, clock)
    from_zero(axes, max([1, *steps["num_running"], *steps["num_waiting"]]))
    axes.set_title("Sequences")
    _legend(axes)


def _mark_preemptions(axes: Axes, recording: StepRecording, clock: _Clock) -> None:
    counts = [0, *recording.steps["num_preemptions"]]
    first = counts[1] if len(counts) > 1 else 0
    places = [clock.ended[index] for index in range(1, recording.num_steps) if counts[index + 1] > counts[index]]
    if places or first:
        at = [*([clock.ended[0]] if first else []), *places]
        axes.plot(at, [0] * len(at), "x", color=INK, markersize=6, clip_on=False, label="preemption")


def _tokens(axes: Axes, recording: StepRecording, clock: _Clock) -> None:
    steps = recording.steps
    prefill, edges = clock.passing(steps["prefill_tokens"])
    decode, _ = clock.passing(steps["decode_tokens"])
    axes.stairs(prefill, edges, fill=True, color=VERMILION, alpha=0.55, label="prefill")
    axes.stairs(decode, edges, fill=True, color=BLUE, alpha=0.75, label="decode")
    highest = max([1, *prefill, *decode])
    if highest > _LOG_RATIO:
        axes.set_yscale("log", base=2)
        axes.set_ylim(0.8, highest * 1.5)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    else:
        from_zero(axes, highest)
    axes.set_title("Tokens computed in a step" + (" (log scale)" if highest > _LOG_RATIO else ""))
    _legend(axes)


def _times(axes: Axes, recording: StepRecording) -> None:
    steps, kinds = recording.steps, recording.kinds()
    rows = list(zip(steps["began_seconds"], steps["step_seconds"], kinds, strict=True))
    for kind, (label, colour, marker) in _STEP_KINDS.items():
        chosen = [(began + length / 2, 1000 * length) for began, length, found in rows if found == kind]
        if chosen:
            axes.plot(*zip(*chosen, strict=True), marker, color=colour, markersize=4, label=label)
    times = [1000 * length for _, length, kind in rows if kind != "idle"] or [1.0]
    if max(times) > _LOG_RATIO * min(times):
        from matplotlib.ticker import LogLocator

        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(lambda value, _: "")
    else:
        from_zero(axes, max(times))
    axes.set_title("Time of a step (ms)" + (" (log scale)" if axes.get_yscale() == "log" else ""))
    _legend(axes)


def _shares(axes: Axes, recording: StepRecording) -> None:
    bars = [("step", phase_shares(recording))]
    if operations := operation_shares(recording):
        bars.append(("forward", operations))
    for place, (_, shares) in enumerate(bars):
        _bar(axes, place, shares)
    axes.set_yticks(range(len(bars)), [name for name, _ in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.grid(False)
    axes.spines["left"].set_visible(False)
    axes.set_title("Where the steps' time goes (%)")


def _bar(axes: Axes, place: int, shares: Sequence[TimeShare]) -> None:
    """One bar; parts too small for their name are left to the table."""
    left = 0.0
    for share, colour in zip(sorted(shares, key=lambda each: -each.seconds), _cycled(len(shares)), strict=True):
        width = 100 * share.share
        axes.barh(place, width, left=left, color=colour, height=0.72, edgecolor="white", linewidth=0.8)
        room = max(1, int(width * (_NARROW_LETTERS_PER_PERCENT if is_narrow(axes) else _LETTERS_PER_PERCENT)))
        lines = textwrap.wrap(f"{share.title} {width:.0f}", room, break_long_words=False)
        if len(lines) <= _MOST_LABEL_LINES and max(map(len, lines)) <= room:
            ink = "white" if colour in (BLUE, GREEN, "#7B5EA7", "#5A5A5A", VERMILION) else INK
            axes.text(left + width / 2, place, "\n".join(lines), ha="center", va="center", fontsize=7.5, color=ink)
        left += width


def _cycled(count: int) -> list[str]:
    return [_BAR_COLOURS[index % len(_BAR_COLOURS)] for index in range(count)]
