"""How the statuses look on plots and pages: colour, hatching, short label. What they mean: ``kvplan.runs.statuses``.

Colours are Okabe and Ito's palette (Color Universal Design, 2008), which stays distinguishable under the common
colour-vision deficiencies. No status is told by colour alone: its name is always beside it, and failures are hatched.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """``label`` fits into a cell of the outcome map; ``hatch`` is matplotlib's pattern, '' for trials that served."""

    label: str
    colour: str
    hatch: str = ""

    @property
    def ink(self) -> str:
        """Black or white, whichever is readable on the colour."""
        red, green, blue = (int(self.colour[place : place + 2], 16) for place in (1, 3, 5))
        return "#fff" if 0.299 * red + 0.587 * green + 0.114 * blue < 115 else "#000"


LOOKS: Final[Mapping[str, StatusLook]] = {
    "ok": StatusLook("ok", GREEN),
    "queued": StatusLook("queued", SKY_BLUE),
    "preempted": StatusLook("preempted", YELLOW),
    "rejected_ctx": StatusLook("context\nrejected", ORANGE, "//"),
    "rejected_seqs": StatusLook("sequences\nrejected", "#F4B183", "//"),
    "rejected_block_size": StatusLook("block size\nrejected", "#D6C5E3", "--"),
    "oom_kv_init": StatusLook("OOM\nKV pool", PURPLE, "\\\\"),
    "oom_weights": StatusLook("OOM\nweights", VERMILION, "xx"),
    "oom_runtime": StatusLook("OOM\nserving", BLUE, "++"),
    "timeout": StatusLook("timeout", GREY, "--"),
    "crash": StatusLook("crash", "#5A5A5A", "xx"),
    "rank_died": StatusLook("rank\ndied", "#7A4B2A", "--"),
    "failed": StatusLook("requests\nfailed", "#B22222", "//"),
    "skipped_oom_dominated": StatusLook("skipped", "#D9D9D9", ".."),
}


def look_of(status: str) -> StatusLook:
    """The look of a status; one that a later version added is shown by its name, in grey."""
    return LOOKS.get(status) or StatusLook(status.replace("_", "\n", 1), "#BFBFBF", "..")
