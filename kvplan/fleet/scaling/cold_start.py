"""How long a replica takes until it serves: its weights read from disk, and the rest of the engine's start-up.

Both differ by a factor of ten from one cluster to the next, so ``--cold-start`` states them. Where nobody does:

    weights    at 1.2 GiB/s each GPU's own share: 21.82 GiB in 18 s (vllm-project/vllm issue 44881, a rented GPU); 20 s
               for 75.64 GiB where the page cache had them, and 340 s for 51.35 GiB from a network, were logged too
    the rest   240 s: 205 s (issue 19824: peers' check 60, bytecode 15, torch.compile 70, graphs 60) and 259 s (issue
               44881: container 16, torch.compile 43, profiling and graphs 200)

A node that must be rented first, and an image that must be pulled, come on top: no figure is assumed for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvplan.units import GIB

READ_BYTES_PER_SECOND: Final = 1.2 * GIB
START_SECONDS: Final = 240.0


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Seconds from the decision to the first request, and whether a user stated them."""

    seconds: float
    is_stated: bool

    @staticmethod
    def of(weight_bytes_per_gpu: int, stated_seconds: float | None = None) -> ColdStart:
        """What was stated, or the sum of the assumed parts."""
        if stated_seconds is not None:
            return ColdStart(stated_seconds, is_stated=True)
        return ColdStart(weight_bytes_per_gpu / READ_BYTES_PER_SECOND + START_SECONDS, is_stated=False)

    @property
    def note(self) -> str:
        """A sentence on where it is from."""
        if self.is_stated:
            return f"A new replica serves after {self.seconds:,.0f} s (--cold-start)."
        return (
            f"A new replica is assumed to serve after {self.seconds:,.0f} s: weights at 1.2 GiB/s, and 240 s more; "
            "--cold-start says what yours takes, with the node and the image where these have to come first."
        )
