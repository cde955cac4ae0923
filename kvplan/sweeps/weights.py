"""Where a sweep's weights come from: files that the model's name points at, or random ones made from its config.

What formats and adapters are possible with them is decided here too, before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.adapters import engine_slot_bytes
from kvplan.estimate.weights import check_group_size
from kvplan.settings import ServingSettings
from kvplan.sweeps.axes import AxisValue
from kvplan.sweeps.options import SweepOptions


def weights_path(options: SweepOptions) -> Path | None:
    """The GGUF file or the directory with safetensors that the model's name points at, or None."""
    path = Path(options.model).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return path.resolve()
    if path.is_dir() and any(path.glob("*.safetensors")):
        return path.resolve()
    return None


def resolve_load_format(options: SweepOptions) -> str:
    """``auto`` becomes what the model's path holds, or dummy. KvplanError if the requested weights are not there."""
    path = weights_path(options)
    if options.is_counted:
        return options.load_format
    found = "dummy" if path is None else ("gguf" if path.suffix == ".gguf" else "safetensors")
    if options.load_format == "auto":
        return found
    if options.load_format not in ("dummy", found):
        raise KvplanError(
            f"There are no {options.load_format} weights at '{options.model}'.",
            hint="give --model a .gguf file or a directory with safetensors, or use --load-format dummy",
        )
    return options.load_format


def refuse_impossible_weights(
    axes: Mapping[str, Sequence[AxisValue]], spec: ModelSpec, load_format: str, implementation: str | None
) -> None:
    """UsageError or KvplanError for formats and adapters that ``axes`` ask for and no trial can have.

    load_format: resolved. implementation: what is expected to compute the model, None where nothing does.
    """
    formats = [str(name) for name in axes.get("quantization", ("auto",))]
    for size in axes.get("group_size", ()):
        check_group_size(formats, int(size))
    adapters = _asks_for_adapters(axes)
    asked = [name for name in formats if name != "auto"]
    if implementation == "transformers" and (asked or adapters):
        raise KvplanError(
            f"{spec.architecture} would run through transformers, which has neither other weights nor adapters here.",
            hint=f"leave {'--quantization' if asked else '--max-loras and --max-lora-rank'} out",
        )
    rounded = next((name for name in asked if name != "none"), None)
    if rounded is not None and spec.quantization is not None and load_format in ("safetensors", "gguf"):
        raise KvplanError(
            f"The weights are stored in {spec.quantization.method} already, so {rounded} cannot be made of them.",
            hint="leave --quantization out, or add --load-format dummy",
        )
    if adapters and not engine_slot_bytes(spec, ServingSettings(max_loras=1), "bfloat16"):
        raise KvplanError(
            f"{spec.served_id} has no layer that supports LoRA adapters.",
            hint="leave --max-loras and --max-lora-rank out",
        )


def _asks_for_adapters(axes: Mapping[str, Sequence[AxisValue]]) -> bool:
    numbers = axes.get("max_loras")
    has_rank = "max_lora_rank" in axes
    if numbers is None:
        return has_rank
    if has_rank and not any(numbers):
        raise UsageError("--max-lora-rank is for adapters, and --max-loras is 0.", hint="give a number of adapters")
    return any(numbers)
