"""Prices of one's own, of a GPU or of a cloud's instance: ``--price h100-sxm=2.1``, or a file of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kvplan.catalog.devices.clouds import Instance, find_instance, rented
from kvplan.catalog.devices.gpu_profile import parse_price, read_usd
from kvplan.catalog.devices.gpus import GpuPrice, GpuProfile, find_gpu
from kvplan.errors import KvplanError, UsageError
from kvplan.files import parse_json, read_text
from kvplan.units import MIB

_SIDES: Final = {"in": "input", "input": "input", "prompt": "input", "out": "output", "output": "output"}
_API_HINT: Final = "US dollars per million tokens, for example --api-price in=0.6,out=2.4"
_OWN: Final = "given with --price"
_NAMES: Final = ("name", "gpu", "instance")
_AMOUNTS: Final = ("usd_per_hour", "usd", "price")
_HINT: Final = (
    "a price file is CSV with the columns name and usd_per_hour, or JSON such as "
    '{"h100-sxm": 2.1, "p5.48xlarge": 40}; names are those of GPUs or of instances'
)


def parse_prices(texts: Iterable[str]) -> dict[str, float]:
    """``["h100-sxm=2.1"]`` -> US dollars per hour of one GPU, by its id, or of one instance. UsageError for others."""
    return dict(_known(name, usd) for name, usd in map(parse_price, texts))


def read_prices(path: Path) -> dict[str, float]:
    """The same from a file, CSV or JSON. KvplanError, with its path, where it is no such file."""
    text = read_text(path, 4 * MIB, hint=_HINT)
    is_json = path.suffix.casefold() == ".json" or text.lstrip()[:1] in ("{", "[")
    try:
        rows = list(_json_rows(parse_json(text)) if is_json else _csv_rows(text))
        found = dict(_known(str(name), _amount(name, amount)) for name, amount in rows)
    except UsageError as error:
        raise KvplanError(f"{path}: {error}", hint=error.hint) from error
    except (ValueError, csv.Error) as error:
        raise KvplanError(f"{path} is no list of prices: {error}.", hint=_HINT) from error
    if not found:
        raise KvplanError(f"{path} has no prices.", hint=_HINT)
    return found


def with_prices(gpus: Iterable[GpuProfile], own: Mapping[str, float], source: str = _OWN) -> tuple[GpuProfile, ...]:
    """The profiles, each at its own price where one is given.

    The price of an instance is that of the GPUs which stand in it. A GPU that was named by itself, without a price of
    its own, is taken to stand in the cheapest instance that was given one.
    """
    return tuple(_priced(gpu, own, source) for gpu in gpus)


def _priced(gpu: GpuProfile, own: Mapping[str, float], source: str) -> GpuProfile:
    if gpu.id in own:
        return replace(gpu, price=GpuPrice(own[gpu.id], date="", source=source))
    instances = [each for each in map(find_instance, own) if each is not None and each.gpu == gpu.id]
    if gpu.rented_as is not None:
        instances = [each for each in instances if each.name == gpu.rented_as]
    if not instances:
        return gpu
    cheapest = min(instances, key=lambda each: own[each.name] / each.num_gpus)
    return rented(gpu, cheapest, own[cheapest.name], source)


def _known(name: str, usd: float) -> tuple[str, float]:
    """With the id of the GPU, or the instance's name as its cloud writes it."""
    instance: Instance | None = find_instance(name)
    return (find_gpu(name).id if instance is None else instance.name), usd


def _amount(name: str, written: Any) -> float:
    usd = read_usd(str(written))
    if usd is None:
        raise ValueError(f"the price of {name} is no number")
    return usd


def _json_rows(document: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(document, dict):
        document = document.get("prices", document)
    if isinstance(document, dict):
        yield from document.items()
        return
    if not isinstance(document, list):
        raise ValueError("neither an object nor a list")
    for row in document:
        if not isinstance(row, dict):
            raise ValueError("a row that is no object")
        yield _cell(row, _NAMES), _cell(row, _AMOUNTS)


def _csv_rows(text: str) -> Iterator[tuple[str, Any]]:
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    for row in csv.DictReader(io.StringIO("\n".join(lines)), skipinitialspace=True):
        cells = {str(name).strip().casefold(): value for name, value in row.items()}
        yield _cell(cells, _NAMES), _cell(cells, _AMOUNTS)


def _cell(row: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if row.get(name) not in (None, ""):
            return row[name]
    raise ValueError(f"a row without {' or '.join(names)}")


@dataclass(frozen=True, slots=True)
class ApiPrice:
    """Per million tokens, of prompts and of answers."""

    usd_per_million_input: float
    usd_per_million_output: float

    def usd_per_request(self, input_tokens: float, output_tokens: float) -> float:
        return (input_tokens * self.usd_per_million_input + output_tokens * self.usd_per_million_output) / 1e6


def parse_api_price(text: str) -> ApiPrice:
    """``in=0.6,out=2.4``, in any order; a number alone is the price of both. UsageError for anything else."""
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.replace(";", ",").split(","))):
        name, equals, amount = part.replace(":", "=").rpartition("=")
        sides = [_SIDES.get(name.strip().casefold())] if equals else ["input", "output"]
        usd = read_usd(amount)
        if usd is None or None in sides or any(side in found for side in sides):
            raise UsageError(f"--api-price '{text}' is not in=USD,out=USD.", hint=_API_HINT)
        found |= {side: usd for side in sides if side is not None}
    if set(found) != {"input", "output"}:
        raise UsageError(f"--api-price '{text}' needs the price of prompts and that of answers.", hint=_API_HINT)
    if not any(found.values()):
        raise UsageError("--api-price must be above 0.", hint=_API_HINT)
    return ApiPrice(found["input"], found["output"])
