"""What device memory was used for: weights, activations, overhead, KV pool (used at the peak, never used), unused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan.reports.looks import BLUE, GREY, ORANGE, PURPLE, SKY_BLUE
from kvplan.reports.plots.canvas import INK, finish, is_narrow
from kvplan.reports.selection import best_trial, varied_columns
from kvplan.reports.wording import setting
from kvplan.runs.storage.reader import FinishedTrial, Run
from kvplan.units import GIB, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_BARS: Final = 6
# What decides where the memory goes; the first that was varied tells the bars apart.
_DECIDING: Final = ("gpu_memory_utilization", "quantization", "max_loras", "max_lora_rank", "group_size")


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a device's memory in bytes; ``dark`` where its number is written in white."""

    name: str
    size_bytes: float
    colour: str
    hatch: str = ""
    dark: bool = False


def segments(trial: FinishedTrial) -> list[Segment]:
    """The parts of the device's total, in the order in which the engine takes them; [] where the row has no pool."""
    pool, total = trial.number("kv_pool_bytes"), trial.number("device_memory_bytes")
    weights = trial.number("weights_bytes")
    if pool is None or weights is None:
        return []
    activations, overhead = trial.number("activation_bytes") or 0, trial.number("overhead_bytes") or 0
    overhead += trial.number("graph_bytes") or 0
    used = pool * (trial.number("kv_usage_max") or 0)
    taken = weights + activations + overhead + pool
    budget = min(trial.number("budget_bytes") or taken, total or taken)
    outside = (total or taken) - max(budget, taken)
    adapters = trial.number("adapter_bytes") or 0
    return [
        Segment("weights", weights - adapters, BLUE, dark=True),
        Segment("slots of adapters", adapters, SKY_BLUE),
        Segment("activations", activations, ORANGE),
        Segment("overhead", overhead, PURPLE),
        Segment("KV pool, used at the peak", used, "#007A5A", dark=True),
        Segment("KV pool, never used", pool - used, "#8FD3BF", hatch="//"),
        Segment("unused part of the budget", max(0.0, budget - taken), GREY),
        Segment("outside gpu_memory_utilization", max(0.0, outside), "#EDEDED", hatch=".."),
    ]


def compared_setting(run: Run) -> str:
    """What tells the bars apart: the utilization, or what else decides the memory where that is the same for all."""
    varied = varied_columns(run)
    return next((name for name in _DECIDING if name in varied), _DECIDING[0])


def shown_trials(run: Run) -> list[FinishedTrial]:
    """The best trial, and one at every other value of ``compared_setting`` that started, the least budget first.

    Of equal budgets the largest weights come first.
    """
    best = best_trial(run)
    candidates = [trial for trial in run.trials if segments(trial)]
    if best is not None and segments(best):
        candidates = [best, *(trial for trial in candidates if trial is not best)]
    chosen: dict[object, FinishedTrial] = {}
    for trial in candidates:
        chosen.setdefault(trial.value(compared_setting(run)), trial)
    return _thinned(sorted(chosen.values(), key=_budget_and_weights), best)


def _budget_and_weights(trial: FinishedTrial) -> tuple[float, float]:
    return trial.number("gpu_memory_utilization") or 0.0, -(trial.number("weights_bytes") or 0.0)


def _thinned(trials: list[FinishedTrial], best: FinishedTrial | None) -> list[FinishedTrial]:
    """At most six, evenly spaced from low to high, with the best one among them."""
    step = max(1.0, (len(trials) - 1) / (_MOST_BARS - 1))
    picked = {round(place * step) for place in range(min(len(trials), _MOST_BARS))}
    nearest = next((place for place, trial in enumerate(trials) if trial is best), None)
    if nearest is not None and nearest not in picked:
        picked.discard(min(picked, key=lambda place: abs(place - nearest)))
        picked.add(nearest)
    return [trials[place] for place in sorted(picked)]


def draw(run: Run, figure: Figure) -> str | None:
    """One bar per utilization, or format, in GiB; the finding says how much of the best trial's pool was used.

    None where no trial allocated a pool.
    """
    trials = shown_trials(run)
    if not trials:
        return None
    is_small = is_narrow(figure)
    figure.set_figheight(2.9 + 0.42 * len(trials) + 1.0 * is_small)
    axes = figure.subplots()
    largest = max(sum(segment.size_bytes for segment in segments(trial)) for trial in trials)
    unit = Scale("GiB", GIB) if largest >= GIB else Scale("MiB", 1024**2)
    for place, trial in enumerate(trials):
        _bar(axes, place, trial, unit)
    name = compared_setting(run)
    axes.set_yticks(range(len(trials)), [setting(trial.value(name)) for trial in trials])
    axes.set_ylabel(name.replace("memory_", "memory_\n"))
    axes.set_xlabel(f"device memory ({unit.name})")
    axes.grid(visible=False, axis="y")
    # Name -> handle of every segment drawn in any bar, in the bars' order.
    handles, labels = axes.get_legend_handles_labels()
    drawn = dict(zip(labels, handles, strict=True))
    unique = {part.name: drawn[part.name] for part in segments(trials[0]) if part.name in drawn}
    axes.legend(unique.values(), unique.keys(), loc="lower left", bbox_to_anchor=(0, 1.0), ncols=1 if is_small else 3,
                fontsize=8.5, handlelength=1.4, columnspacing=1.4, borderaxespad=0.2, borderpad=0,
                labelcolor=INK)  # fmt: skip
    return finish(figure, run, _finding(best_trial(run) or trials[-1]))


@dataclass(frozen=True, slots=True)
class Scale:
    """GiB for devices, MiB where the whole device is smaller than one."""

    name: str
    size_bytes: int


def _bar(axes: Axes, place: int, trial: FinishedTrial, unit: Scale) -> None:
    left = 0.0
    parts = segments(trial)
    total = sum(part.size_bytes for part in parts) / unit.size_bytes
    for part in parts:
        width = part.size_bytes / unit.size_bytes
        if width <= 0:
            continue
        look: dict[str, Any] = {"color": part.colour, "hatch": part.hatch, "edgecolor": "white", "linewidth": 0.8}
        axes.barh(place, width, left=left, height=0.72, label=part.name, **look)
        if width > (0.16 if is_narrow(axes) else 0.065) * total:
            backing = {"facecolor": part.colour, "edgecolor": "none", "pad": 1} if part.hatch else None
            text = f"{width:.2f}" if width < 10 else f"{width:,.0f}"
            axes.text(left + width / 2, place, text, ha="center", va="center", fontsize=8.5,
                      color="white" if part.dark else INK, bbox=backing)  # fmt: skip
        left += width


def _finding(trial: FinishedTrial) -> str:
    pool = format_bytes(trial.number("kv_pool_bytes") or 0)
    used = trial.number("kv_usage_max") or 0
    total = trial.number("device_memory_bytes")
    share = f" of {format_bytes(total)}" if total else ""
    utilization = setting(trial.number("gpu_memory_utilization"))
    return f"Utilization {utilization}: KV pool {pool}{share}, {100 * used:.0f} % used at the peak"
