"""How the weights of a run are stored, and where each engine finds them. Imported by each engine's own Python."""

from __future__ import annotations

from typing import NamedTuple


class Quantised(NamedTuple):
    """gguf_file_type: llama.cpp's number of it (llama.h, llama_ftype). openvino: the export that stands beside it."""

    gguf_file_type: int
    openvino: str


DTYPES = ("float32", "bfloat16")
QUANTISED = {"q4_0": Quantised(2, "int4"), "q8_0": Quantised(7, "int8"), "q4_k_m": Quantised(15, "int4")}


def computed_type(stored: str) -> str:
    """The type that a run's activations have."""
    return "bfloat16" if stored in QUANTISED else stored


def gguf_path(directory: str) -> str:
    """What kvplan and llama.cpp load of quantised weights; directory: MODELS/NAME-STORED."""
    return f"{directory}.gguf"


def openvino_path(directory: str, stored: str) -> str:
    """OpenVINO's export of the same width."""
    name = directory.removesuffix(stored) + QUANTISED[stored].openvino if stored in QUANTISED else directory
    return f"{name}-openvino"
