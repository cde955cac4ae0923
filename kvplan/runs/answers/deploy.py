"""The commands that deploy a setting which a sweep measured: every knob of it, ready to paste.

An engine that would refuse the setting gets no command; the reason stands in its place.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvplan.catalog.vllm_refusals import vllm_refusal
from kvplan.runs.columns import Row
from kvplan.runs.directory import Manifest
from kvplan.runs.rows import is_counted, settings_of
from kvplan.runs.trials import SETTING_NAMES, TrialSettings
from kvplan.settings import KNOBS, MADE_WHILE_LOADING
from kvplan.units import GIB, MIB

_CONFIG: Final = "config.json"


@dataclass(frozen=True, slots=True)
class LaunchCommands:
    """commands: by engine. refusals: one sentence for each engine that cannot run the setting."""

    commands: dict[str, str]
    refusals: tuple[str, ...]


def model_to_deploy(manifest: Manifest) -> str:
    """What to load: the model's id or path as it was asked for. A config.json is named by its directory."""
    asked = str(manifest.get("options", {}).get("model", ""))
    if not asked.startswith(os.sep):
        return manifest["model"]["id"]
    return str(Path(asked).parent) if Path(asked).name == _CONFIG else asked


def deployment_of(row: Row, model: str, *, max_num_seqs: int | None = None) -> LaunchCommands:
    """The commands for the setting of a row. max_num_seqs: instead of the row's, where the load was smaller."""
    settings = settings_of(row)
    if not settings.is_known:  # of a server that runs already: nobody can say what would do the same
        return LaunchCommands({}, ())
    if max_num_seqs is not None:
        settings = settings.with_changes(max_num_seqs=min(max_num_seqs, settings.max_num_seqs))
    engine = row.get("engine") or "kvplan"
    # The device of a counted row need not be there, nor need kvplan's engine compute the model.
    num_engines = row.get("data_parallel_size") or 1
    own = not is_counted(row) and engine == "kvplan" and num_engines == 1
    drafting = json.loads(row.get("speculative_config") or "null")
    commands = {"kvplan": _python_command(row, model, settings, drafting)} if own else {}
    if engine not in ("kvplan", "vllm"):
        return LaunchCommands(commands, ())
    refusal = vllm_refusal(settings) if engine == "kvplan" else None
    if refusal is None:
        replicas = f" --data-parallel-size {num_engines}" if num_engines > 1 else ""
        commands["vllm"] = _vllm_command(model, settings, drafting) + replicas
    return LaunchCommands(commands, () if refusal is None else (refusal.reason,))


_OF_RANKS: Final = ("tensor_parallel_size", "pipeline_parallel_size", "enable_expert_parallel")


def _given(settings: TrialSettings, drafting: Mapping[str, Any] | None) -> dict[str, Any]:
    """Every axis of the setting by name, without what follows from the others. drafting: who proposes tokens."""
    values = {name: getattr(settings, name) for name in SETTING_NAMES} | {"speculative_config": drafting}
    del values["num_speculative_tokens"]
    if settings.kv_cache_dtype in ("auto", settings.dtype):
        del values["kv_cache_dtype"]
    if settings.kv_cache_memory_bytes is not None:
        del values["gpu_memory_utilization"]
    for name in _OF_RANKS:
        if values[name] == KNOBS[name].default:
            del values[name]
    slots = settings.lora_slots
    adapters: dict[str, int | None] = {"max_loras": None, "max_lora_rank": None}
    if slots is not None:
        adapters = {"enable_lora": True, "max_loras": slots.number, "max_lora_rank": slots.rank}
    return {name: value for name, value in (values | adapters).items() if value not in (None, "auto")}


def _python_command(row: Row, model: str, settings: TrialSettings, drafting: Mapping[str, Any] | None) -> str:
    arguments: dict[str, Any] = {"model": model} | _given(settings, drafting)
    # The share is one of this amount, which the engine would otherwise choose anew.
    if row["device"] == "cpu" and row["device_memory_bytes"]:
        arguments |= {"device": "cpu", "device_memory": _bytes_text(row["device_memory_bytes"])}
    return "LLM(" + ", ".join(f"{name}={_literal(value)}" for name, value in arguments.items()) + ")"


def _vllm_command(model: str, settings: TrialSettings, drafting: Mapping[str, Any] | None) -> str:
    given = _given(settings, None)
    weights, group_size = given.pop("quantization", "none"), given.pop("group_size", None)
    groups = f" with groups of {group_size}" if group_size is not None else ""
    words = ["vllm", "serve", model]
    if weights in MADE_WHILE_LOADING:
        words += ["--quantization", weights]
    elif weights != "none":
        words[-1] = f"<{weights} build{groups} of {model}>"
    for name, value in given.items():
        words += [KNOBS[name].option] if value is True else [KNOBS[name].option, str(value)]
    if drafting is not None:
        words += ["--speculative-config", json.dumps(drafting)]
    return shlex.join(words)


def _literal(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _bytes_text(number: int) -> str | int:
    """``4GiB`` or ``1536MiB`` where that is exact."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB")):
        if number % unit == 0:
            return f"{number // unit}{name}"
    return number
