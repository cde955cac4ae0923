"""Errors of the predicted KV tokens by kind of deployment: where kvplan is exact, and where it is not.

``python tools/score_vllm_startups.py --kinds`` prints them. A start-up is of one kind in each group (its set, its
format, its GPU's family ...), so a kind with few start-ups, or none, shows.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvplan.catalog.devices.device_support import compute_capability
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.speed.queueing.figures import quantile
from kvplan.settings import ServingSettings
from startup_rows import Row, is_campaign, is_newest, row_version


@dataclass(frozen=True, slots=True)
class Placed:
    """A row with what was read from it."""

    row: Row
    spec: ModelSpec
    gpu: GpuProfile
    settings: ServingSettings


def row_set(row: Row) -> str:
    """The set that a row is reported in."""
    if is_campaign(row):
        return "campaign"
    return "newest" if is_newest(row) else "others"


_FAMILIES: Final = (
    ((10, 0), "Blackwell"),
    ((9, 0), "Hopper"),
    ((8, 9), "Ada"),
    ((8, 0), "Ampere"),
    ((7, 5), "Turing"),
    ((7, 0), "Volta"),
)
"""The first compute capability of each family of GPUs, newest first."""


def _family(placed: Placed) -> str:
    capability = compute_capability(placed.gpu)
    return next((name for first, name in _FAMILIES if capability >= first), "other")


def _format(placed: Placed) -> str:
    asked = placed.settings.quantization
    if placed.spec.quantization is not None:
        return placed.spec.quantization.method
    return "16 bit" if asked in ("auto", "none") else asked


def _layers(placed: Placed) -> str:
    if placed.spec.is_compressed:
        return "compressed"
    if placed.spec.has_state:
        return "hybrid"
    mixers = [mixer for layer in placed.spec.layers for mixer in layer.mixers]
    if any(getattr(mixer, "window_kind", "full") != "full" for mixer in mixers):
        return "windows"
    return "latent" if placed.spec.is_latent else "plain"


def _drafter(placed: Placed) -> str:
    drafted = placed.settings.num_speculative_tokens > 0 or placed.spec.drafter is not None
    return "drafter" if drafted else "none"


def _towers(placed: Placed) -> str:
    has_tower = any(extra.kind in ("vision", "audio") for extra in placed.spec.extras)
    if not has_tower:
        return "text"
    return "text alone of several" if placed.settings.language_model_only else "vision or audio"


def _memory(placed: Placed) -> str:
    return "unified" if placed.gpu.unified_memory else "of its own"


def _ranks(placed: Placed) -> str:
    ranks = placed.settings.tensor_parallel_size * placed.settings.pipeline_parallel_size
    return "1 GPU" if ranks == 1 else "several GPUs"


_AGES: Final = (((0, 27), "0.27 and newer"), ((0, 21), "0.21 to 0.26"), ((0, 8), "0.8 to 0.20"))


def _age(placed: Placed) -> str:
    version = vllm_release(row_version(placed.row)).version
    return next((name for first, name in _AGES if version >= first), "before 0.8")


GROUPS: Final[Mapping[str, Callable[[Placed], str]]] = {
    "set": lambda placed: row_set(placed.row),
    "format": _format,
    "layers": _layers,
    "experts": lambda placed: "mixture" if placed.spec.is_mixture else "dense",
    "drafter": _drafter,
    "modalities": _towers,
    "memory": _memory,
    "GPUs": _ranks,
    "GPU family": _family,
    "release": _age,
}
"""How a deployment can be of a kind, and the function that tells of which."""


@dataclass(frozen=True, slots=True)
class KindError:
    """Median and 90th percentile of |error| over one kind's start-ups; ``furthest`` keeps its sign and has its row."""

    group: str
    kind: str
    count: int
    median: float
    p90: float
    furthest: float
    furthest_id: str


def kind_errors(found: Sequence[tuple[Placed, float]]) -> Iterator[KindError]:
    """Each kind that has a start-up, with its errors. ``found``: start-ups and their signed errors."""
    for group, kind_of in GROUPS.items():
        kinds = [(kind_of(placed), placed.row["id"], error) for placed, error in found]
        for kind in sorted({name for name, _, _ in kinds}):
            members = [(error, identity) for name, identity, error in kinds if name == kind]
            sizes = sorted(abs(error) for error, _ in members)
            furthest, identity = max(members, key=lambda member: abs(member[0]))
            median, p90 = statistics.median(sizes), quantile(sizes, 0.9)
            yield KindError(group, kind, len(members), median, p90, furthest, identity)


def print_kinds(title: str, found: Sequence[tuple[Placed, float]]) -> None:
    """Print one line for each kind."""
    print(f"\n{title:34s} {'rows':>4} {'median':>9} {'p90':>9} {'furthest':>10}")
    group = ""
    for each in kind_errors(found):
        label = f"{each.group if each.group != group else '':11s} {each.kind}"
        group = each.group
        figures = f"{each.median * 100:7.2f} % {each.p90 * 100:7.2f} % {each.furthest * 100:+8.2f} %"
        print(f"{label:34s} {each.count:4d} {figures} {each.furthest_id}")
