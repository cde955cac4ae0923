"""A small checkpoint, its headers, index and bytes changed: the planner's reader, and all that the engine reads."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from fuzz.commands import SECONDS_PER_CASE, read_by_the_planner
from fuzz.engine_loading import load_by_the_engine
from fuzz.harness import Target
from fuzz.mutations import deep_json, mutate_bytes, mutate_json

_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
}
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PARTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
_Files = dict[str, bytes]


@contextmanager
def open_target() -> Iterator[Target[_Files]]:
    """Give the target; a case is the files of a folder, by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def try_case(case: _Files) -> str:
            for file in folder.iterdir():
                file.unlink()
            for file_name, content in case.items():
                (folder / file_name).write_bytes(content)
            planned = read_by_the_planner(folder, whole=sum(map(len, case.values())) % 5 == 0)
            return f"planner {planned}, engine {load_by_the_engine(folder, 'safetensors')}"

        yield Target(_make_case, try_case, seconds_per_case=SECONDS_PER_CASE)


def _make_case(rng: random.Random) -> _Files:
    config = dict(_CONFIG) | ({"torch_dtype": "bfloat16"} if rng.random() < 0.5 else {})
    shapes = list(_shapes().items())
    files: _Files = {"config.json": json.dumps(config).encode()}
    if rng.random() < 0.5:
        files[_SINGLE] = _damaged(shapes, rng)
        return files
    half = len(shapes) // 2
    for name, part in zip(_PARTS, (shapes[:half], shapes[half:]), strict=True):
        files[name] = _damaged(part, rng) if rng.random() < 0.5 else _written(_header(part), part)
    index = {"weight_map": {tensor: _PARTS[place >= half] for place, (tensor, _) in enumerate(shapes)}}
    if rng.random() < 0.5:
        files[_INDEX] = _damaged_index(index, rng)
    return files


def _shapes() -> dict[str, tuple[int, ...]]:
    hidden, inner = _CONFIG["hidden_size"], _CONFIG["intermediate_size"]
    layer = "model.layers.0"
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (40, hidden), "lm_head": (40, hidden)}
    shapes |= {"model.norm": (hidden,), f"{layer}.input_layernorm": (hidden,)}
    shapes |= {f"{layer}.post_attention_layernorm": (hidden,), f"{layer}.mlp.down_proj": (hidden, inner)}
    shapes |= {f"{layer}.self_attn.{name}_proj": (hidden, hidden) for name in "qo"}
    shapes |= {f"{layer}.self_attn.{name}_proj": (hidden // 2, hidden) for name in "kv"}
    shapes |= {f"{layer}.mlp.{name}_proj": (inner, hidden) for name in ("gate", "up")}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def _header(shapes: list[tuple[str, tuple[int, ...]]]) -> dict[str, Any]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes:
        size = 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    return header


def _written(header: Any, shapes: list[tuple[str, tuple[int, ...]]]) -> bytes:
    content = json.dumps(header).encode()
    return len(content).to_bytes(8, "little") + content + bytes(sum(2 * prod(shape) for _, shape in shapes))


def _damaged(shapes: list[tuple[str, tuple[int, ...]]], rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.05:
        header = deep_json(rng)
        return len(header).to_bytes(8, "little") + header
    if kind < 0.3:
        return mutate_bytes(_written(_header(shapes), shapes), rng)
    if kind < 0.35:
        return _written(_header(shapes), shapes).replace(b"[0,", b"[" + b"9" * 5000 + b",", 1)
    header = _header(shapes)
    if kind < 0.6:
        _change_one(header, rng)
        return _written(header, shapes)
    return _written(mutate_json(header, rng, most_changes=rng.choice((1, 2, 4))), shapes)


def _change_one(header: dict[str, Any], rng: random.Random) -> None:
    """Another type, shape or place for one tensor, of the kind that a header can have."""
    entry = header[rng.choice([name for name in header if name != "__metadata__"])]
    kind = rng.random()
    if kind < 0.3:
        entry["dtype"] = rng.choice(("F32", "F16", "F64", "I8", "F8_E4M3", "BOOL", "F4", "X", "", None))
    elif kind < 0.6:
        entry["shape"] = rng.choice(
            ([], [0], entry["shape"] * 2, [2**62, 2**62], [2**62, 4], [-1, -1], entry["shape"][::-1])
        )
    else:
        begin, end = entry["data_offsets"]
        entry["data_offsets"] = rng.choice(
            ([end, begin], [0, 2**63], [-begin, end], [begin + 2, end + 2], [begin, begin])
        )


def _damaged_index(index: dict[str, Any], rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.05:
        return deep_json(rng)
    if kind < 0.2:
        return mutate_bytes(json.dumps(index).encode(), rng)
    if kind < 0.5:
        odd = rng.choice(
            ("../../model.safetensors", "/etc/passwd", ".", "..", "", "\x00", "config.json", 7, None, [], _PARTS)
        )
        index["weight_map"][rng.choice(list(index["weight_map"]))] = odd
        return json.dumps(index).encode()
    return json.dumps(index if kind < 0.7 else mutate_json(index, rng)).encode()
