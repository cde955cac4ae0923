"""Which adapter a request wants, and what the scheduler needs to know of one. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan_engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """name: what users call the adapter. path: the directory that PEFT's ``save_pretrained`` wrote."""

    name: str
    path: str

    def __post_init__(self) -> None:
        for what, value in (("name", self.name), ("path", self.path)):
            if not isinstance(value, str):
                raise EngineError(f"the {what} of an adapter must be a text, got {type(value).__name__}.")


@dataclass(frozen=True, slots=True)
class AdapterKey:
    """One adapter's content. digest: of its files, so that an adapter of the same name is still another one."""

    name: str
    digest: bytes
