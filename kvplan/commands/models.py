"""``kvplan models``: the models known by name, with their main figures."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvplan.catalog.models import profiles, read_profile
from kvplan.catalog.registry import known_architectures
from kvplan.commands.printing.render import (
    OutputFormat,
    chosen_format,
    print_csv,
    print_json,
    print_markdown,
    print_notes,
    print_sentence,
    print_table,
)
from kvplan.estimate.dtypes import serving_dtype
from kvplan.estimate.kv_cache import CacheSettings, size_sequence
from kvplan.units import format_tokens

_WINDOWS = (
    "KV B/token: of a token that all layers still hold. past windows: of one more where a sequence is longer than the "
    "model's windows, whose layers then drop another; empty where no layer has one."
)


def models(
    search: Annotated[str | None, typer.Argument(help="Only models whose name contains this.")] = None,
    architectures: Annotated[bool, typer.Option("--architectures", help="List known architectures instead.")] = False,
    output_format: Annotated[OutputFormat, typer.Option("--format", help="Output format.")] = OutputFormat.table,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
) -> None:
    """List the models known by name."""
    chosen = chosen_format(output_format, as_json=as_json)
    if architectures:
        _print_architectures(chosen, search)
        return
    rows = [_row(profile) for profile in profiles() if _matches(profile, search)]
    print_notes(None if rows else f"no model's name contains '{search}'.")
    if chosen is OutputFormat.json:
        print_json({"schema": "kvplan.models/1", "models": rows})
    elif chosen is OutputFormat.csv:
        print_csv([{**row, "aliases": " ".join(row["aliases"])} for row in rows])
    else:
        head = ["name", "id", "parameters", "active", "longest", "KV B/token", "past windows"]
        cells = [_cells(row) for row in rows]
        if chosen is OutputFormat.md:
            print_markdown(head, cells)
            return
        has_windows = any(row["kv_window_bytes_per_token"] for row in rows)
        shown = len(head) - (not has_windows)
        print_table(None, head[:shown], [row[:shown] for row in cells], text_columns=(0, 1), parts=("active",))
        if has_windows:
            print_sentence(_WINDOWS)


def _print_architectures(chosen: OutputFormat, search: str | None) -> None:
    found = [name for name in known_architectures() if search is None or search.casefold() in name.casefold()]
    print_notes(None if found else f"no architecture's name contains '{search}'.")
    if chosen is OutputFormat.json:
        print_json({"schema": "kvplan.architectures/1", "architectures": found})
    elif chosen is OutputFormat.csv:
        print_csv([{"architecture": name} for name in found])
    elif chosen is OutputFormat.md:
        print_markdown(["architecture"], [[name] for name in found])
    else:
        print("\n".join(found), end="\n" if found else "")


def _matches(profile: dict[str, Any], search: str | None) -> bool:
    names = (profile["name"], profile["id"], *profile["aliases"])
    return search is None or any(search.casefold() in name.casefold() for name in names)


def _row(profile: dict[str, Any]) -> dict[str, Any]:
    spec = read_profile(profile)
    dtype = serving_dtype(spec.dtype)
    cache = size_sequence(spec, 1, CacheSettings(model_dtype=dtype, kv_dtype=dtype, encoder_tokens=1))
    return {
        "name": profile["name"],
        "id": spec.served_id,
        "aliases": list(profile["aliases"]),
        "architecture": spec.architecture,
        "num_layers": spec.num_layers,
        "num_parameters": spec.num_parameters,
        "num_active_parameters": spec.num_active_parameters,
        "max_position_embeddings": spec.max_position_embeddings,
        "kv_bytes_per_token": cache.bytes_per_token,
        "kv_window_bytes_per_token": cache.window_bytes_per_token,
        "source": profile["source"],
        "date": profile["date"],
    }


def _cells(row: dict[str, Any]) -> list[str]:
    longest, past = row["max_position_embeddings"], row["kv_bytes_per_token"]
    in_windows = row["kv_window_bytes_per_token"]
    return [
        row["name"],
        row["id"],
        f"{row['num_parameters']:,}",
        f"{row['num_active_parameters']:,}",
        format_tokens(longest) if longest else "",
        f"{past + in_windows:,}",
        f"{past:,}" if in_windows else "",
    ]
