"""How the ways in which a trial can end look: words, colours, hatching. One table for plots and pages.

Colours are Okabe and Ito's palette (Color Universal Design, 2008), told apart under the common colour-vision
deficiencies; a status is never told by colour alone: its name stands beside it and failures are hatched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BLACK: Final = "#000000"
ORANGE: Final = "#E69F00"
SKY_BLUE: Final = "#56B4E9"
GREEN: Final = "#009E73"
YELLOW: Final = "#F0E442"
BLUE: Final = "#0072B2"
VERMILION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
GREY: Final = "#9A9A9A"


@dataclass(frozen=True, slots=True)
class StatusLook:
    """``short`` fits a cell of the map; ``hatch`` is matplotlib's pattern, '' for trials that were served."""

    name: str
    short: str
    meaning: str
    colour: str
    hatch: str = ""
    measured: bool = False


_LOOKS: Final = (
    StatusLook("ok", "ok", "all served, none waited for blocks", GREEN, measured=True),
    StatusLook("queued", "queued", "all served, some waited for blocks", SKY_BLUE, measured=True),
    StatusLook("preempted", "preempted", "all served, some lost blocks, redone", YELLOW, measured=True),
    StatusLook("rejected_ctx", "context\nrefused", "pool holds no max_model_len sequence", ORANGE, "//"),
    StatusLook("oom_kv_init", "OOM\nKV pool", "no room left for a KV pool", PURPLE, "\\\\"),
    StatusLook("oom_weights", "OOM\nweights", "weights exceed the budget", VERMILION, "xx"),
    StatusLook("oom_runtime", "OOM\nrunning", "an allocation failed while serving", BLUE, "++"),
    StatusLook("timeout", "timeout", "ended long after its predicted time", GREY, "--"),
    StatusLook("crash", "crash", "the worker died", "#5A5A5A", "xx"),
    StatusLook("skipped_oom_dominated", "skipped", "not run, a lighter trial failed", "#D9D9D9", ".."),
)
STATUS_ORDER: Final = tuple(look.name for look in _LOOKS)
_BY_NAME: Final = {look.name: look for look in _LOOKS}


def look_of(status: str) -> StatusLook:
    """The look of a status; a name that a later version added is shown as itself, in grey."""
    return _BY_NAME.get(status) or StatusLook(status, status.replace("_", "\n", 1), "", "#BFBFBF", "..")


def is_measured(status: str) -> bool:
    """True for the statuses in which every request was served."""
    return look_of(status).measured


def in_order(statuses: set[str]) -> list[str]:
    """From best to worst, unknown ones last by name."""
    rank = {name: place for place, name in enumerate(STATUS_ORDER)}
    return sorted(statuses, key=lambda name: (rank.get(name, len(rank)), name))
