"""A directory that holds a LoRA adapter instead of a model: what it belongs to, and what to ask for instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from kvplan.catalog.vllm_refusals import LORA_RANKS
from kvplan.errors import UsageError
from kvplan.files import LARGEST_CONFIG_BYTES, parse_json, read_text

ADAPTER_FILE: Final = "adapter_config.json"
"""What PEFT's ``save_pretrained`` writes beside the adapter's weights."""


def adapter_error(folder: Path) -> UsageError:
    """The base model with room for the adapter is what can be sized. UsageError for a file that cannot be read too."""
    text = read_text(folder / ADAPTER_FILE, LARGEST_CONFIG_BYTES, hint="pass the base model of the adapter")
    try:
        found = parse_json(text)
    except ValueError:
        found = None
    config: dict[str, Any] = found if isinstance(found, dict) else {}
    base, rank = config.get("base_model_name_or_path"), config.get("r")
    if not isinstance(base, str) or not base or type(rank) is not int or rank < 1:
        hint = "pass its base model, with --max-lora-rank"
        return UsageError(f"{folder} holds a LoRA adapter, not a model.", hint=hint)
    slot = next((each for each in LORA_RANKS if each >= rank), rank)
    return UsageError(
        f"{folder} holds a LoRA adapter of rank {rank}, not a model.",
        hint=f"size its base model with a slot for it: {base} --max-lora-rank {slot}",
    )
