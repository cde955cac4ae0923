"""TensorRT-LLM's releases: what trtllm-serve sets where nothing is said, and its kernels.

Sources and values: ``profiles/releases/trtllm.json``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from kvplan.catalog.releases.facts import Number, ReleaseTable, load_releases, release_number


@dataclass(frozen=True, slots=True, eq=False)  # one object for each release
class TrtllmRelease:
    """One release of TensorRT-LLM: a field for each fact of the table."""

    version: Number
    max_batch_size: int
    max_num_tokens: int
    counts_latents_twice: bool
    pytorch_by_default: bool
    trtllm_experts_by_default: bool


@cache
def _table() -> ReleaseTable[TrtllmRelease]:
    return load_releases("trtllm", TrtllmRelease)


def trtllm_release(version: str = "latest") -> TrtllmRelease:
    """Return the facts of a version as printed; the newest ones of ``latest`` and of what is no version."""
    return _table().at(release_number(version))
