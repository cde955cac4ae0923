"""What a GGUF file's header says of its model, asked for by name: keys below its architecture's, and tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.gguf.header import GgufHeader
from kvplan.errors import KvplanError

_BLOCK = re.compile(r"blk\.(\d+)\.")
_SUGGESTION = "convert the model again, or pass the config.json of the original model"


class _Keys(ConfigView):
    """The keys below the architecture's name, checked as those of a config are."""

    def _missing(self, key: str) -> KvplanError:
        return KvplanError(f"The file has no '{self.path}{key}', which is needed to size the model.", hint=_SUGGESTION)

    def _wrong(self, key: str, value: object, expected: str) -> KvplanError:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return KvplanError(f"The file's '{self.path}{key}' is {shown}; expected {expected}.", hint=_SUGGESTION)


@dataclass(frozen=True)
class GgufModel:
    """A header's keys and tensors. ``shapes``: of each tensor, the innermost dimension first, as ggml has them."""

    architecture: str
    keys: ConfigView
    shapes: Mapping[str, tuple[int, ...]]

    @cached_property
    def num_blocks(self) -> int:
        """Blocks of the file, those for multi-token prediction included."""
        return self.keys.layers("block_count")

    @cached_property
    def num_multi_token(self) -> int:
        """Blocks at the end that draft tokens. Some converters name their number and leave them out."""
        stated = min(self.keys.integer("nextn_predict_layers", default=0, minimum=0), self.num_blocks - 1)
        own = self._names_of_blocks
        count = 0
        while count < stated and _drafts(own.get(self.num_blocks - 1 - count)):
            count += 1
        return count

    @cached_property
    def num_layers(self) -> int:
        """Layers of the language model."""
        return self.num_blocks - self.num_multi_token

    @cached_property
    def _names_of_blocks(self) -> Mapping[int, set[str]]:
        found: dict[int, set[str]] = {}
        for name in self.shapes:
            match = _BLOCK.match(name)
            if match is not None:
                found.setdefault(int(match.group(1)), set()).add(name[match.end() :])
        return found

    def has(self, name: str) -> bool:
        """Return whether any block has a tensor of this name (``attn_q.bias``)."""
        return any(name in names for names in self._names_of_blocks.values())

    def layers_with(self, name: str) -> list[bool]:
        """Return of each layer whether it has a tensor of this name."""
        return [name in self._names_of_blocks.get(index, ()) for index in range(self.num_layers)]

    def width(self, name: str) -> int | None:
        """Return the rows of the first block's tensor of this name (its outputs); None where no block has one."""
        shapes = (self.shapes[f"blk.{index}.{name}"] for index in self._blocks_with(name))
        shape = next(shapes, None)
        return None if shape is None or len(shape) < 2 else shape[1]

    def _blocks_with(self, name: str) -> Iterator[int]:
        return (index for index, names in sorted(self._names_of_blocks.items()) if name in names)

    def counts(self, key: str) -> list[int] | None:
        """Return a number of each layer, from a list or from one number for all; None where the file has none."""
        if not self.keys.has(key):
            return None
        if not isinstance(self.keys.config[key], list):
            return [self.keys.integer(key, minimum=0)] * self.num_layers
        values = self.keys.integers(key) or []
        if len(values) < self.num_layers:
            raise self.keys.reject(key, f"one entry for each of {self.num_layers} layers")
        return values[: self.num_layers]

    def one(self, key: str) -> int | None:
        """Return the number that all layers share, or the largest one of those that have it."""
        values = self.counts(key)
        return max(values) or None if values else None

    def slides(self) -> list[bool] | None:
        """Return of each layer whether it keeps a window, where the file lists it; a number is a period."""
        key = "attention.sliding_window_pattern"
        if not self.keys.has(key):
            return None
        listed = self.keys.config[key]
        if not isinstance(listed, list):
            period = self.keys.integer(key)
            return [index % period < period - 1 for index in range(self.num_layers)]
        if len(listed) < self.num_layers or set(map(type, listed)) - {bool, int}:
            raise self.keys.reject(key, f"one flag for each of {self.num_layers} layers")
        return [bool(flag) for flag in listed[: self.num_layers]]


def _drafts(names: set[str] | None) -> bool:
    """Whether a block is one for multi-token prediction: by what it joins, or because its weights were left out."""
    return names is None or any(name.startswith("nextn.") for name in names)


def read_model(header: GgufHeader, architecture: str) -> GgufModel:
    """Return the header's keys and tensors of the architecture that it names."""
    prefix = f"{architecture}."
    own: dict[str, Any] = {
        key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)
    }
    return GgufModel(architecture, _Keys(own, path=prefix), {each.name: each.shape for each in header.tensors})
