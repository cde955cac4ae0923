"""Which adapter a request wants, and what the scheduler needs to know of one. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """name: what users call the adapter. path: the directory that PEFT's ``save_pretrained`` wrote."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class AdapterKey:
    """One adapter's content. digest: of its files, so that an adapter of the same name is still another one."""

    name: str
    digest: bytes
