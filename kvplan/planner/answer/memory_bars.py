"""Where the memory of a deployment's GPUs goes, as the parts of a bar."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from kvplan.planner.answer.document import memory_document
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.units import GIB


class MemoryPart(NamedTuple):
    """A part of a bar: its colour in a PNG, and in a page."""

    label: str
    colour: str
    page_colour: str


MEMORY_PARTS: Final = (
    MemoryPart("weights", "#4878a8", "var(--a)"),
    MemoryPart("activations", "#e1974c", "var(--b)"),
    MemoryPart("overhead", "#9a9a9a", "var(--f)"),
    MemoryPart("KV, average case", "#55a868", "var(--c)"),
    MemoryPart("KV, added in the worst case", "#b7dfc1", "var(--e)"),
    MemoryPart("KV, free", "#eef6f0", "var(--grid)"),
    MemoryPart("not the engine's", "#ffffff", "var(--paper)"),
)


def memory_parts(deployment: PlannedDeployment) -> list[float]:
    """GiB of one GPU, in the order of the bar's parts; their sum is the GPU's memory."""
    memory = memory_document(deployment)
    pool = memory["kv_pool_bytes"]
    average, worst = memory["kv_used_average_bytes"], memory["kv_used_worst_case_bytes"]
    used = memory["weight_bytes"] + memory["activation_bytes"] + memory["overhead_bytes"] + pool
    parts = [
        memory["weight_bytes"],
        memory["activation_bytes"],
        memory["overhead_bytes"],
        average,
        max(worst - average, 0),
        pool - max(worst, average),
        max(memory["total_bytes"] - used, 0),
    ]
    return [part / GIB for part in parts]


def memory_bars(deployments: Sequence[PlannedDeployment], names: Sequence[str]) -> str:
    """A bar for each deployment as HTML, all to one scale, below a key of their parts."""
    columns = [memory_parts(each) for each in deployments]
    widest = max(map(sum, columns))
    key = "".join(f'<span><i style="background:{each.page_colour}"></i>{each.label}</span>' for each in MEMORY_PARTS)
    bars = (
        f"{escape(name)}: {sum(parts):.1f} GiB, of them weights {parts[0]:.1f} and KV {sum(parts[3:6]):.1f}"
        f'<div class="bar" style="width:{100 * sum(parts) / widest:.1f}%">{_segments(parts)}</div>'
        for name, parts in zip(names, columns, strict=True)
    )
    return f'<div class="key">{key}</div><div class="bars">{"".join(bars)}</div>'


def _segments(parts: Sequence[float]) -> str:
    total = sum(parts)
    return "".join(
        f'<span style="width:{100 * part / total:.2f}%;background:{each.page_colour}" '
        f'title="{each.label}: {part:.2f} GiB"></span>'
        for part, each in zip(parts, MEMORY_PARTS, strict=True)
    )
