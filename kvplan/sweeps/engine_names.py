"""The engines that a sweep can measure, and which options belong to which of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvplan.errors import UsageError

OWN_ENGINE: Final = "kvplan"
OTHER_ENGINES: Final = ("vllm", "sglang", "llamacpp", "trtllm", "openai")
"""Engines that are reached over HTTP; ``openai`` is any server that runs already."""


def check_engine(name: str, *, foreign: Mapping[str, bool], own: Mapping[str, bool], has_url: bool) -> None:
    """UsageError for an unknown engine, and for options that it does not have.

    foreign, own: options of other engines and of kvplan's, and whether they were given.
    """
    engines = (OWN_ENGINE, *OTHER_ENGINES)
    if name not in engines:
        raise UsageError(f"Unknown --engine '{name}'.", hint="one of " + ", ".join(engines))
    asked = next((option for option, is_given in (foreign if name == OWN_ENGINE else own).items() if is_given), None)
    if asked is not None and name == OWN_ENGINE:
        raise UsageError(f"{asked} is for an engine other than kvplan's.", hint="name it, such as --engine vllm")
    if asked is not None:
        raise UsageError(f"{asked} is of kvplan's own engine.", hint=f"leave it out, or leave --engine {name} out")
    if has_url != (name == "openai"):
        raise UsageError("--url and --engine openai belong together.", hint="give both, or neither")
