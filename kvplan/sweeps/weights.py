"""Where a sweep's weights come from: files that the model's name points at, or random ones made from its config."""

from __future__ import annotations

from pathlib import Path

from kvplan.errors import KvplanError
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
