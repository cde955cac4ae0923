"""What ``kvplan models`` and ``kvplan gpus`` print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvplan.catalog.devices.gpus import GpuProfile, gpu_row, gpus_document
from kvplan.catalog.vllm_registry import RegisteredModel
from kvplan.commands.printing.render import OutputFormat, print_rows, print_sentence
from kvplan.estimate.known_models import SCHEMA, KnownModel
from kvplan.units import format_gib, format_tokens

_WINDOWS = (
    "KV B/token: of a token that all layers still hold. past windows: of one more where a sequence is longer than the "
    "model's windows, whose layers then drop another; empty where no layer has one."
)


def print_models(found: Sequence[KnownModel], chosen: OutputFormat) -> None:
    """Print the models in the format that was chosen."""
    rows = [model.as_json() for model in found]
    head = ["name", "id", "parameters", "active", "longest", "KV B/token", "past windows"]
    has_windows = any(row["kv_window_bytes_per_token"] for row in rows)
    shown = len(head) - (chosen is OutputFormat.table and not has_windows)
    cells = [_model_cells(row)[:shown] for row in rows]
    csv_rows = [{**row, "aliases": " ".join(row["aliases"])} for row in rows]
    print_rows(chosen, {"schema": SCHEMA, "models": rows}, csv_rows, head[:shown], cells, parts=("active",))
    if has_windows and chosen is OutputFormat.table:
        print_sentence(_WINDOWS)


def _model_cells(row: dict[str, Any]) -> list[str]:
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


def print_gpus(found: Sequence[GpuProfile], chosen: OutputFormat) -> None:
    """Print the devices in the format that was chosen."""
    head = ["id", "name", "memory GiB", "GB/s", "bf16 TFLOPS", "fp8 TFLOPS", "$/hour"]
    rows = [gpu_row(profile) for profile in found]
    print_rows(chosen, gpus_document(found), rows, head, [_gpu_cells(profile) for profile in found])


def _gpu_cells(profile: GpuProfile) -> list[str]:
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


def print_registered(found: Sequence[RegisteredModel], release: str, chosen: OutputFormat) -> None:
    """Print vLLM's architectures in the format that was chosen."""
    rows = [
        {"architecture": each.architecture, "kind": each.kind, "sized": each.is_sized, "why": each.why}
        for each in found
    ]
    document = {"schema": "kvplan.vllm_registry/1", "release": release, "architectures": rows}
    cells = [[each.architecture, each.kind, "yes" if each.is_sized else "no", each.why] for each in found]
    print_rows(chosen, document, rows, ["architecture", "kind", "sized", "why"], cells, text_columns=(0, 1, 2, 3))
    if chosen is OutputFormat.table:
        print_sentence(registry_counts(found, release))


def registry_counts(found: Sequence[RegisteredModel], release: str) -> str:
    """How many architectures of each kind are sized, in one sentence."""
    kinds = dict.fromkeys(each.kind for each in found)
    counts = (
        f"{kind} {sum(each.is_sized for each in found if each.kind == kind)} of "
        f"{sum(each.kind == kind for each in found)}"
        for kind in kinds
    )
    return f"Sized of vLLM {release}'s architectures: {', '.join(counts)}."
