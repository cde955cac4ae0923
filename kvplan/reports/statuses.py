"""How the ways in which a trial can end look: words, colours, hatching. One table for plots and pages.

Colours are Okabe and Ito's palette (Color Universal Design, 2008), told apart under the common colour-vision
deficiencies; a status is never told by colour alone: its name stands beside it and failures are hatched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvplan.runs.statuses import STATUSES, TrialStatus

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

    @property
    def ink(self) -> str:
        """Black or white, whichever is read on the colour."""
        red, green, blue = (int(self.colour[place : place + 2], 16) for place in (1, 3, 5))
        return "#fff" if 0.299 * red + 0.587 * green + 0.114 * blue < 115 else "#000"


# Of every status: what fits a cell of the map, colour, and hatching for those that were not served.
_COLOURS: Final = {
    "ok": ("ok", GREEN, ""),
    "queued": ("queued", SKY_BLUE, ""),
    "preempted": ("preempted", YELLOW, ""),
    "rejected_ctx": ("context\nrefused", ORANGE, "//"),
    "oom_kv_init": ("OOM\nKV pool", PURPLE, "\\\\"),
    "oom_weights": ("OOM\nweights", VERMILION, "xx"),
    "oom_runtime": ("OOM\nrunning", BLUE, "++"),
    "timeout": ("timeout", GREY, "--"),
    "crash": ("crash", "#5A5A5A", "xx"),
    "skipped_oom_dominated": ("skipped", "#D9D9D9", ".."),
}


def _look(status: TrialStatus) -> StatusLook:
    short, colour, hatch = _COLOURS[status.name]
    return StatusLook(status.name, short, status.brief, colour, hatch, status.kind == "measured")


_LOOKS: Final = tuple(_look(status) for status in STATUSES)
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
