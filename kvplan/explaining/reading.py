"""A start-up log as it lies in a file or comes through a pipe."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from kvplan.catalog.models import find_profile, profiles, read_profile, resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.variants import find_variant
from kvplan.errors import KvplanError, UsageError
from kvplan.explaining.startup_log import StartupLog, parse_startup_log
from kvplan.files import read_bytes, read_standard_input
from kvplan.pasted.shell import is_serve_line, shell_words
from kvplan.units import MIB

_LARGEST_BYTES: Final = 200 * MIB
_ENDS_BYTES: Final = MIB
"""Of a longer log: the start, and how it ended. Between them stand requests that were served."""
_HINT: Final = "pass a log file, or the part of one that holds the start"


class ReadLog(NamedTuple):
    """What a log says, and a note where only its ends were read."""

    log: StartupLog
    note: str | None


def read_log(path: Path) -> ReadLog:
    """Read a log; ``-`` is standard input, and a pipe that the shell passes on is read to its end.

    KvplanError where it cannot be read, or is no start-up log.
    """
    text = str(path)
    if " " in text and not os.path.exists(text) and is_serve_line(shell_words(text)):
        raise UsageError("That is a command, not the log of a start.", hint=f'kvplan estimate "{text}" sizes it')
    if text == "-":
        return parse_log(read_standard_input(_LARGEST_BYTES, hint=_HINT), "Standard input")
    return parse_log(read_bytes(path, _LARGEST_BYTES, hint=_HINT, may_be_piped=True), text)


def parse_log(content: bytes, name: str) -> ReadLog:
    """Parse a log, whatever its bytes are. ``name``: what messages call it. KvplanError where it is no start-up log."""
    note = None
    if len(content) > 2 * _ENDS_BYTES:
        note = f"Of {name} the first and the last {_ENDS_BYTES // MIB} MiB were read."
        content = content[:_ENDS_BYTES] + b"\n" + content[-_ENDS_BYTES:]
    log = parse_startup_log(content.decode("utf-8", errors="replace"))
    if not log.has_figures:
        raise KvplanError(
            f"{name} does not look like a start-up log of vLLM or SGLang: it says nothing about memory or KV cache.",
            hint="pass the log of such a server's start; kvplan estimate reads a command alone",
        )
    return ReadLog(log, note)


def named_model(given: str | None, logged: str | None) -> ModelSpec | None:
    """The model that was named; one that only the log names may be unknown."""
    if given is not None:
        return resolve_model(given)
    for name in _names(logged):
        try:
            return resolve_model(name)
        except KvplanError:
            continue
    return None


def is_another_model(spec: ModelSpec, logged: str | None) -> bool:
    """Whether a log's name for its model is known, without asking the hub, and has another shape than ``spec``."""
    for name in _names(logged):
        profile: Mapping[str, Any] | None = find_profile(name)
        if profile is None:
            variant = find_variant(name, profiles())
            profile = None if variant is None else variant.profile
        if profile is not None:
            shape = read_profile(profile)
            return (shape.num_parameters, shape.num_layers) != (spec.num_parameters, spec.num_layers)
    return False


_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)")
"""A model's folder in the Hugging Face cache."""


def shown_name(logged: str | None) -> str | None:
    """The model as people call it: the repository's id where the log has its folder in the Hugging Face cache."""
    cached = _CACHED.search(logged or "")
    return "/".join(cached.groups()) if cached else logged


def _names(logged: str | None) -> list[str]:
    """The model as logged; of a path that is not here, its last part may be a known name."""
    if logged is None:
        return []
    if _CACHED.search(logged):
        return [shown_name(logged) or logged]
    last = logged.rstrip("/").rsplit("/", 1)[-1]
    return [last] if logged.startswith(("/", "~", ".")) and not os.path.exists(logged) else [logged]
