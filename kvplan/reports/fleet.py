"""Devices side by side: what each did at its fastest setting, and what that costs.

Rows of two kinds of devices are never put into one median, boundary or recommendation: a directory that holds several
is taken apart first. Each device is asked for its own best setting, because what suits one is too much for another; at
the settings that they share they stand in the table of ``side_by_side``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.errors import UsageError
from kvplan.reports.comparison import MATCHED_SETTINGS
from kvplan.reports.wording import plural, short_number
from kvplan.runs.storage.reader import FinishedTrial, Run, trial_frame
from kvplan.units import GIB

_FIGURES = ("output_throughput", "median_tpot_ms", "p99_ttft_ms", "max_running")
_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """One kind of device. label: what its run is called. num_devices: that its fastest setting is sharded over.

    output_throughput (tokens/s), median_tpot_ms, p99_ttft_ms, max_running (sequences at once): medians of the runs of
    that setting; None where nothing was served or computed. usd_per_hour: of all ``num_devices``. price_source: where
    that comes from, with its date; '' for a price of one's own.
    """

    label: str
    name: str
    memory_bytes: float | None
    num_settings: int
    num_served: int
    num_devices: int
    output_throughput: float | None
    median_tpot_ms: float | None
    p99_ttft_ms: float | None
    max_running: float | None
    usd_per_hour: float | None
    price_source: str = ""

    @property
    def tokens_per_usd(self) -> float | None:
        """Output tokens for a dollar: throughput x 3,600 s / price of an hour."""
        if self.output_throughput is None or not self.usd_per_hour:
            return None
        return self.output_throughput * _SECONDS_PER_HOUR / self.usd_per_hour

    @property
    def tokens_per_second_per_usd(self) -> float | None:
        """Tokens/s for a dollar an hour."""
        return None if self.tokens_per_usd is None else self.tokens_per_usd / _SECONDS_PER_HOUR

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "tokens_per_second_per_usd_per_hour": self.tokens_per_second_per_usd,
            "usd_per_million_output_tokens": None if self.tokens_per_usd is None else 1e6 / self.tokens_per_usd,
        }


def by_device(run: Run) -> list[Run]:
    """The run itself if all rows are of one device, else a run for each, without what was made of all of them."""
    groups: dict[str, list[FinishedTrial]] = {}
    for trial in run.trials:
        groups.setdefault(device_of(trial), []).append(trial)
    if len(groups) < 2:
        return [run]
    return [replace(run, trials=tuple(kept), frame=trial_frame(kept), summary={}) for kept in groups.values()]


def device_of(trial: FinishedTrial) -> str:
    """The device of a row as its driver names it; '' for a load of a server."""
    return trial.text("device_name") or trial.text("device")


def is_fleet(runs: Sequence[Run]) -> bool:
    """Whether the runs, each of one device, are of several kinds."""
    return len(set(filter(None, (device_of(run.trials[0]) for run in runs)))) > 1


def fleet_of(runs: Sequence[Run], labels: Sequence[str], prices: Mapping[str, float]) -> tuple[DeviceFigures, ...]:
    """The figures of each run's device. prices: US dollars per hour by name, before those of the GPU profiles.

    UsageError for a price of a device that is not there.
    """
    names = [device_of(run.trials[0]) for run in runs]
    for given in prices:
        if not any(_is_same(given, name) for name in names):
            raise UsageError(
                f"--price names '{given}', but no row was measured on it.", hint=f"one of {', '.join(names)}"
            )
    return tuple(_figures(run, label, prices) for run, label in zip(runs, labels, strict=True))


def _figures(run: Run, label: str, prices: Mapping[str, float]) -> DeviceFigures:
    name = device_of(run.trials[0])
    keys = [key for key in MATCHED_SETTINGS if key in run.frame]
    best = _fastest(run, keys)
    # ranks of an engine on processors share the one machine; on GPUs each has its own
    on_processors = run.first("device") == "cpu"
    ranks, stages = (int(best.get(f"{kind}_parallel_size") or 1) for kind in ("tensor", "pipeline"))
    num_devices = 1 if on_processors else ranks * stages
    usd, source = _price(name, prices)
    memory = run.frame["device_memory_bytes"].dropna()
    return DeviceFigures(
        label=label,
        name=name,
        memory_bytes=None if memory.empty else float(memory.max()),
        num_settings=run.frame.groupby(keys, dropna=False).ngroups,
        num_served=run.served.groupby(keys, dropna=False).ngroups,
        num_devices=num_devices,
        usd_per_hour=None if usd is None else usd * num_devices,
        price_source=source,
        **{figure: best.get(figure) for figure in _FIGURES},
    )


def _fastest(run: Run, keys: Sequence[str]) -> dict[str, Any]:
    """The setting with the highest throughput and its figures; of a run without speeds that with the most at once."""
    measured = run.measured
    served, target = (run.served, "max_running") if measured.empty else (measured, "output_throughput")
    if served.empty:
        return {}
    medians = served.groupby(list(keys), dropna=False, sort=False)[list(_FIGURES)].median().reset_index()
    if medians[target].isna().all():
        return {}
    row = medians.loc[medians[target].idxmax()].to_dict()
    return {name: None if pd.isna(value) else value for name, value in row.items()}


def _price(name: str, prices: Mapping[str, float]) -> tuple[float | None, str]:
    """US dollars per hour of one device, and where that comes from where the user did not give it."""
    own = next((usd for given, usd in prices.items() if _is_same(given, name)), None)
    if own is not None:
        return own, ""
    try:
        price = find_gpu(name).price
    except UsageError:
        return None, ""
    return (None, "") if price is None else (price.usd_per_hour, f"{price.source}, {price.date}")


def _is_same(given: str, name: str) -> bool:
    """Whether a name as a user writes it is the device that a driver calls ``name``."""
    if given.casefold() == name.casefold():
        return True
    try:
        return find_gpu(given).id == find_gpu(name).id
    except UsageError:
        return False


def fleet_sentences(devices: Sequence[DeviceFigures]) -> list[str]:
    """The fastest device, and the one with the most tokens for a dollar."""
    lines = []
    timed = [device for device in devices if device.output_throughput is not None]
    if timed:
        fastest = max(timed, key=lambda device: device.output_throughput or 0.0)
        lines.append(
            f"{fastest.label} is the fastest: {short_number(fastest.output_throughput)} tokens/s at its best setting."
        )
    priced = [device for device in timed if device.tokens_per_usd is not None]
    if priced:
        cheapest = max(priced, key=lambda device: device.tokens_per_usd or 0.0)
        gives = f"{short_number(cheapest.tokens_per_second_per_usd)} tokens/s for a dollar an hour"
        lines.append(f"{cheapest.label} gives the most for its price: {gives}.")
    by_source: dict[str, list[str]] = {}
    for device in priced:
        if device.price_source:
            by_source.setdefault(device.price_source, []).append(device.name)
    lines += [f"Price of {' and '.join(names)}: {source}." for source, names in by_source.items()]
    unpriced = [device.label for device in timed if device.usd_per_hour is None]
    if unpriced:
        lines.append(f"{', '.join(unpriced)}: no price is known; --price NAME=USD gives one.")
    if not timed:
        lines.append(f"None of {plural(len(devices), 'device')} has a speed: nothing was computed or served.")
    return lines


FLEET_HEADS = (
    ("device", ""),
    ("memory", "GiB"),
    ("settings served", ""),
    ("tokens/s", ""),
    ("TPOT", "ms"),
    ("TTFT p99", "ms"),
    ("sequences at once", ""),
    ("price", "USD/h"),
    ("tokens/s per USD/h", ""),
    ("per million tokens", "USD"),
)


def fleet_values(device: DeviceFigures) -> list[str | float | None]:
    """The values under FLEET_HEADS, as they sort; None for what is not known."""
    per_million = None if device.tokens_per_usd is None else 1e6 / device.tokens_per_usd
    memory = None if device.memory_bytes is None else device.memory_bytes / GIB
    return [
        device.label + (f" x {device.num_devices}" if device.num_devices > 1 else ""),
        memory,
        device.num_served,
        device.output_throughput,
        device.median_tpot_ms,
        device.p99_ttft_ms,
        device.max_running,
        device.usd_per_hour,
        device.tokens_per_second_per_usd,
        per_million,
    ]


def fleet_cells(device: DeviceFigures) -> list[str]:
    """The same as text; '' for what is not known."""
    label, *figures = fleet_values(device)
    texts = ["" if figure is None else short_number(float(figure)) for figure in figures]
    texts[1] = f"{device.num_served} of {device.num_settings}"
    return [str(label), *texts]
