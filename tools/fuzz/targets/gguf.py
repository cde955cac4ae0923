"""A small GGUF file with its header and its bytes changed: the planner's reader, and all that the engine reads."""

from __future__ import annotations

import random
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fuzz.commands import SECONDS_PER_CASE, read_by_the_planner
from fuzz.engine_loading import load_by_the_engine
from fuzz.harness import Target
from fuzz.mutations import mutate_bytes

_HIDDEN, _HEADS, _FFN, _VOCAB, _LAYERS = 64, 4, 96, 40, 2
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_UINT32, _FLOAT32, _STRING, _ARRAY = 4, 6, 8, 9
_ODD_COUNTS = (0, 1, 2, 3, 31, 33, 48, 64, 2**16, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)


class _Entry(NamedTuple):
    """A key, and its value as stored; kind: the format's number of the type."""

    key: str
    kind: int
    value: bytes


class _Tensor(NamedTuple):
    """A tensor of the header; kind: ggml's number of the quantisation."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


class _File(NamedTuple):
    """A GGUF file before it is written."""

    entries: list[_Entry]
    tensors: list[_Tensor]
    num_data_bytes: int


@contextmanager
def open_target() -> Iterator[Target[bytes]]:
    """Give the target; its cases are written to one file, one after the other."""
    whole = _small_llama()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"

        def try_case(case: bytes) -> str:
            path.write_bytes(case)
            planned = read_by_the_planner(path, whole=random.Random(len(case)).random() < 0.2)
            return f"planner {planned}, engine {load_by_the_engine(path, 'gguf')}"

        yield Target(lambda rng: _make_case(whole, rng), try_case, seconds_per_case=SECONDS_PER_CASE)


def _small_llama() -> _File:
    numbers = {"block_count": _LAYERS, "embedding_length": _HIDDEN, "feed_forward_length": _FFN}
    numbers |= {"attention.head_count": _HEADS, "attention.head_count_kv": 2, "context_length": 256}
    entries = [_Entry("general.architecture", _STRING, _text("llama"))]
    entries += [_Entry(f"llama.{key}", _UINT32, struct.pack("<I", value)) for key, value in numbers.items()]
    entries.append(_Entry("llama.attention.layer_norm_rms_epsilon", _FLOAT32, struct.pack("<f", 1e-5)))
    entries.append(_Entry("llama.rope.freq_base", _FLOAT32, struct.pack("<f", 1e4)))
    entries.append(_Entry("general.alignment", _UINT32, struct.pack("<I", 32)))
    entries.append(_Entry("tokenizer.ggml.model", _STRING, _text("gpt2")))
    tokens = b"".join(_text(f"token {index}") for index in range(_VOCAB))
    entries.append(_Entry("tokenizer.ggml.tokens", _ARRAY, struct.pack("<IQ", _STRING, _VOCAB) + tokens))
    types = struct.pack(f"<IQ{_VOCAB}i", 5, _VOCAB, *[1] * _VOCAB)
    entries.append(_Entry("tokenizer.ggml.token_type", _ARRAY, types))
    tensors, offset = [], 0
    for name, shape in _shapes().items():
        kind, size = (8, 34 * shape[0] // 32) if len(shape) > 1 else (0, 4 * shape[0])
        tensors.append(_Tensor(f"{name}.weight", shape, kind, offset))
        offset += -(-size * (shape[1] if len(shape) > 1 else 1) // 32) * 32
    return _File(entries, tensors, offset)


def _shapes() -> dict[str, tuple[int, ...]]:
    """By ggml's name; the extent of the inputs first."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (_HIDDEN, _VOCAB), "output": (_HIDDEN, _VOCAB)}
    shapes["output_norm"] = (_HIDDEN,)
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        shapes |= {f"{block}.attn_q": (_HIDDEN, _HIDDEN), f"{block}.attn_output": (_HIDDEN, _HIDDEN)}
        shapes |= {f"{block}.attn_k": (_HIDDEN, _HIDDEN // 2), f"{block}.attn_v": (_HIDDEN, _HIDDEN // 2)}
        shapes |= {f"{block}.ffn_gate": (_HIDDEN, _FFN), f"{block}.ffn_up": (_HIDDEN, _FFN)}
        shapes |= {f"{block}.ffn_down": (_FFN, _HIDDEN)}
        shapes |= {f"{block}.attn_norm": (_HIDDEN,), f"{block}.ffn_norm": (_HIDDEN,)}
    return shapes


def _make_case(whole: _File, rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.35:
        content = _written(whole)
        header = content[: len(content) - whole.num_data_bytes]
        return mutate_bytes(header, rng) + content[len(header) :]
    if kind < 0.4:
        return mutate_bytes(_written(whole), rng)
    entries, tensors = list(whole.entries), list(whole.tensors)
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.6:
            _change(entries, _odd_entry, rng)
        else:
            _change(tensors, _odd_tensor, rng)
    return _written(_File(entries, tensors, whole.num_data_bytes))


def _change(items: list[Any], odd: Callable[[Any, random.Random], Any], rng: random.Random) -> None:
    """Make one of ``items`` odd, drop it or let it stand twice."""
    if not items:
        return
    index, kind = rng.randrange(len(items)), rng.random()
    if kind < 0.1:
        del items[index]
    elif kind < 0.2:
        items.insert(rng.randint(0, len(items)), items[index])
    else:
        items[index] = odd(items[index], rng)


def _odd_entry(entry: _Entry, rng: random.Random) -> _Entry:
    kind = rng.random()
    if kind < 0.1:
        return entry._replace(kind=rng.choice((*range(14), 99, 2**31)))
    if kind < 0.2:
        return entry._replace(
            key=rng.choice(("", "general.alignment", "llama.expert_count", "llama.rope.scaling.type"))
        )
    if kind < 0.35:
        return entry._replace(kind=_STRING, value=_text(rng.choice(("", "none", "yarn", "qwen2", "\x00", "9" * 5000))))
    if kind < 0.55:
        return entry._replace(kind=_ARRAY, value=_odd_array(rng))
    return _odd_number(entry, rng)


def _odd_number(entry: _Entry, rng: random.Random) -> _Entry:
    kind = rng.choice(tuple(_NUMBERS))
    layout = _NUMBERS[kind]
    if layout in ("<f", "<d"):
        value: float = rng.choice((0.0, -1.0, 0.5, 1e30, float("nan"), float("inf"), 64.0))
        return entry._replace(kind=kind, value=struct.pack(layout, value))
    size = struct.calcsize(layout)
    bits = rng.choice(_ODD_COUNTS) % 256**size
    return entry._replace(kind=kind, value=bits.to_bytes(size, "little"))


def _odd_array(rng: random.Random) -> bytes:
    kind, count = rng.choice((*range(13), 99)), rng.choice(_ODD_COUNTS)
    if kind == _ARRAY and rng.random() < 0.5:
        return struct.pack("<IQ", _ARRAY, 1) * rng.choice((2, 5_000)) + struct.pack("<IQ", _UINT32, 0)
    return struct.pack("<IQ", kind, count) + rng.randbytes(min(count, 256) * 8)


def _odd_tensor(tensor: _Tensor, rng: random.Random) -> _Tensor:
    kind = rng.random()
    if kind < 0.2:
        return tensor._replace(offset=rng.choice((*_ODD_COUNTS, tensor.offset + 1, tensor.offset + 32)))
    if kind < 0.35:
        return tensor._replace(kind=rng.choice((*range(42), 99, 2**31)))
    if kind < 0.45:
        return tensor._replace(name=rng.choice(("", "rope_freqs.weight", "output.weight", tensor.name + "x")))
    if kind < 0.6 or not tensor.shape:
        return tensor._replace(shape=rng.choice(((), tensor.shape[:1], (*tensor.shape, 1), (*tensor.shape, 1, 1, 1))))
    shape = list(tensor.shape)
    shape[rng.randrange(len(shape))] = rng.choice(_ODD_COUNTS)
    return tensor._replace(shape=tuple(shape))


def _written(file: _File) -> bytes:
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(file.tensors), len(file.entries))]
    parts += [_text(entry.key) + struct.pack("<I", entry.kind) + entry.value for entry in file.entries]
    for name, shape, kind, offset in file.tensors:
        parts.append(_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
    header = b"".join(parts)
    return header + bytes(-len(header) % 32 + file.num_data_bytes)


def _text(words: str) -> bytes:
    content = words.encode()
    return struct.pack("<Q", len(content)) + content
