"""``kvplan gpus``: the devices known by name, with the memory their drivers report."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvplan.catalog.devices.gpus import GpuProfile, load_gpus
from kvplan.commands.printing.render import (
    OutputFormat,
    chosen_format,
    print_csv,
    print_json,
    print_markdown,
    print_notes,
    print_table,
)
from kvplan.units import format_gib


def gpus(
    search: Annotated[str | None, typer.Argument(help="Only devices whose name contains this.")] = None,
    output_format: Annotated[OutputFormat, typer.Option("--format", help="Output format.")] = OutputFormat.table,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
) -> None:
    """List the GPUs known by name."""
    chosen = chosen_format(output_format, as_json=as_json)
    found = [profile for profile in load_gpus() if _matches(profile, search)]
    print_notes(None if found else f"no device's name contains '{search}'.")
    if chosen is OutputFormat.json:
        print_json({"schema": "kvplan.gpus/1", "gpus": [_document(profile) for profile in found]})
    elif chosen is OutputFormat.csv:
        print_csv([_flat(profile) for profile in found])
    else:
        head = ["id", "name", "memory GiB", "GB/s", "bf16 TFLOPS", "fp8 TFLOPS", "$/hour"]
        cells = [_cells(profile) for profile in found]
        if chosen is OutputFormat.md:
            print_markdown(head, cells)
        else:
            print_table(None, head, cells, text_columns=(0, 1))


def _matches(profile: GpuProfile, search: str | None) -> bool:
    names = (profile.id, profile.name, *profile.aliases)
    return search is None or any(search.casefold() in name.casefold() for name in names)


def _flat(profile: GpuProfile) -> dict[str, Any]:
    return {
        "id": profile.id,
        "name": profile.name,
        "vendor": profile.vendor,
        "memory_bytes": profile.memory_bytes,
        "memory_bandwidth_bytes_per_second": profile.memory_bandwidth_bytes_per_second,
        "compute_capability": profile.compute_capability,
        "pcie_bytes_per_second": profile.pcie_bytes_per_second,
        "nvlink_bytes_per_second": profile.nvlink_bytes_per_second,
        "bridged_gpus": profile.bridged_gpus,
        "usd_per_hour": profile.price.usd_per_hour if profile.price else None,
        "price_date": profile.price.date if profile.price else None,
    }


def _document(profile: GpuProfile) -> dict[str, Any]:
    return {
        **_flat(profile),
        "aliases": list(profile.aliases),
        "dense_flops": dict(profile.dense_flops),
        "note": profile.note,
        "sources": dict(profile.sources),
    }


def _cells(profile: GpuProfile) -> list[str]:
    def teraflops(dtype: str) -> str:
        return f"{profile.dense_flops[dtype] / 1e12:,.0f}" if dtype in profile.dense_flops else ""

    return [
        profile.id,
        profile.name,
        format_gib(profile.memory_bytes),
        f"{profile.memory_bandwidth_bytes_per_second / 1e9:,.0f}",
        teraflops("bfloat16"),
        teraflops("fp8"),
        f"{profile.price.usd_per_hour:.2f}" if profile.price else "",
    ]
