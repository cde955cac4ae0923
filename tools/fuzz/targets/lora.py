"""LoRA adapters: mutated configs and tensors, names that lead elsewhere, pipes and links in the place of files."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuzz.harness import Fault, Target
from fuzz.mutations import ODD_VALUES, deep_json, mutate_bytes, mutate_json
from kvplan_engine.adapters.peft import read_adapter
from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import EngineError

_RANK = 4
_HIDDEN, _INNER = 16, 24
_MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": _HIDDEN, "intermediate_size": _INNER,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 32,
    "max_position_embeddings": 64,
}  # fmt: skip
_CONFIG: dict[str, Any] = {
    "peft_type": "LORA", "r": _RANK, "lora_alpha": 8, "bias": "none", "use_rslora": False, "use_dora": False,
    "modules_to_save": None, "alpha_pattern": {r"layers\.0.*q_proj": 4, "down_proj": 2.5}, "rank_pattern": {},
    "target_modules": ["q_proj", "down_proj"], "fan_in_fan_out": False,
}  # fmt: skip
_ODD_PATTERNS = ("(a+)+$", "(", "*", "[", "a{999999999}", "(?:.*)*x", "\\", "(?P<a>.)(?P<a>.)", ".*" * 40, "a?" * 30)
_ODD_DTYPES = ("F64", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "I64", "U8", "BOOL", "C64", "nothing", "")
_SHAPES = ([], [0], [4, 0], [0, 16], [16, 4], [2**62, 2**62], [-1, 4], [4, 16, 1], [2**31, 4])
_PLACES = ("adapter_config.json", "adapter_model.safetensors")


@dataclass(frozen=True)
class Case:
    """Contents of both files, and what lies in the place of one instead: "" for the file itself."""

    config: bytes
    tensors: bytes
    place: str
    instead: str


def _tensor_entries(rng: random.Random) -> dict[str, tuple[str, list[int], bytes]]:
    generator = torch.Generator().manual_seed(rng.randrange(100))
    entries = {}
    for module, inputs, outputs in (("self_attn.q_proj", _HIDDEN, _HIDDEN), ("mlp.down_proj", _INNER, _HIDDEN)):
        for side, shape in (("A", [_RANK, inputs]), ("B", [outputs, _RANK])):
            data = torch.randn(shape, generator=generator).numpy().tobytes()
            entries[f"base_model.model.model.layers.0.{module}.lora_{side}.weight"] = ("F32", shape, data)
    return entries


def _changed(entries: dict[str, tuple[str, list[int], bytes]], rng: random.Random) -> None:
    """Change one tensor's name, type, shape or values, drop it, or add one beside it."""
    name = rng.choice(list(entries))
    dtype, shape, data = entries.pop(name)
    kind = rng.randrange(6)
    if kind == 0:
        others = (
            f"../{name}",
            name.replace("layers.0", "layers.9"),
            "\x1b[2J" + name,
            name * 50,
            "",
            name + "_",
            "é" + name,
        )
        entries[rng.choice(others)] = (dtype, shape, data)
    elif kind == 1:
        entries[name] = (rng.choice(_ODD_DTYPES), shape, data)
    elif kind == 2:
        entries[name] = (dtype, list(rng.choice(_SHAPES)), data)
    elif kind == 3:
        values = rng.choice((float("nan"), float("inf"), 3e38, -3e38, 0.0))
        entries[name] = (dtype, shape, struct.pack("<f", values) + data[4:])
    elif kind == 4:
        rank = rng.choice((0, 1, 9, 64, 2000))
        inputs = _INNER if "lora_A" in name and "down_proj" in name else _HIDDEN
        whole = [rank, inputs] if "lora_A" in name else [inputs, rank]
        entries[name] = (dtype, whole, bytes(4 * rank * inputs))


def _safetensors(entries: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    header: dict[str, Any] = {}
    body = b""
    for name, (dtype, shape, data) in entries.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def _config(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.3:
        return json.dumps(_CONFIG).encode()
    if kind < 0.4:
        return deep_json(rng)
    if kind < 0.5:
        return mutate_bytes(json.dumps(_CONFIG).encode(), rng)
    if kind < 0.65:
        odd = {rng.choice(_ODD_PATTERNS): rng.choice((1, *ODD_VALUES))}
        return json.dumps(_CONFIG | {"alpha_pattern": odd}).encode()
    if kind < 0.8:
        return _dumped(_CONFIG | {"lora_alpha": rng.choice(ODD_VALUES)})
    return _dumped(mutate_json(_CONFIG, rng))


def _dumped(document: Any) -> bytes:
    try:
        return json.dumps(document).encode()
    except ValueError:  # an integer of more digits than Python writes
        return b'{"lora_alpha": ' + b"9" * 5000 + b"}"


def _make_case(rng: random.Random) -> Case:
    entries = _tensor_entries(rng)
    for _ in range(rng.choice((0, 1, 1, 2))):
        if entries:
            _changed(entries, rng)
    tensors = _safetensors(entries)
    if rng.random() < 0.3:
        tensors = mutate_bytes(tensors, rng)
    instead = rng.choice(("pipe", "loop", "folder", "nothing", "device", "huge")) if rng.random() < 0.1 else ""
    return Case(_config(rng), tensors, rng.choice(_PLACES), instead)


def _put(path: Path, case: Case) -> None:
    for name, content in zip(_PLACES, (case.config, case.tensors), strict=True):
        (path / name).write_bytes(content)
    place = path / case.place
    if not case.instead:
        return
    place.unlink()
    if case.instead == "pipe":
        os.mkfifo(place)
    elif case.instead == "loop":
        place.symlink_to(place.name)
    elif case.instead == "folder":
        place.mkdir()
    elif case.instead == "device":
        place.symlink_to("/dev/zero")
    elif case.instead == "huge":
        with place.open("wb") as file:
            file.truncate(1 << 40)


def _try_case(case: Case, folder: Path, model: ModelDescription) -> str:
    path = folder / "adapter"
    path.mkdir()
    try:
        _put(path, case)
        try:
            adapter = read_adapter(path, model, max_rank=64)
        except EngineError as refused:
            if "\n" in refused.message or "\x1b" in refused.message or len(refused.message) > 1000:
                raise Fault(f"not a sentence: {refused.message!r}") from None
            return "refused"
        for correction in adapter.corrections.values():
            if not (torch.isfinite(correction.down).all() and torch.isfinite(correction.up).all()):
                raise Fault("a correction that is not finite")
        return "read"
    finally:
        shutil.rmtree(path)


@contextmanager
def open_target() -> Iterator[Target[Case]]:
    """Adapters of a small model, in a temporary folder."""
    model = load_model_config(_MODEL)
    with tempfile.TemporaryDirectory() as folder:
        yield Target(_make_case, lambda case: _try_case(case, Path(folder), model))
