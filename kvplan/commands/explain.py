"""``kvplan explain``: read a start-up log, print the account. The reading and comparing is in kvplan.planner."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import provenance_note, resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.commands.printing.render import print_json, print_notes, print_sentence, print_table
from kvplan.errors import KvplanError
from kvplan.explaining.document import explanation_document
from kvplan.explaining.explanation import Explanation, difference_gib, explain_log
from kvplan.explaining.startup_log import parse_startup_log
from kvplan.files import read_bytes, read_standard_input
from kvplan.units import MIB, format_gib

_LARGEST_LOG_BYTES = 200 * MIB
_ENDS_BYTES = MIB
"""Of a longer log: the start, and how it ended. Between them stand requests that were served."""
_HINT = "pass a log file, or the part of one that holds the start"


def explain(
    log: Annotated[Path, typer.Argument(help="Start-up log of vLLM or SGLang; - reads standard input.", metavar="LOG")],
    model: Annotated[str | None, typer.Option(help="The model, if the log only has a private path.")] = None,
    gpu: Annotated[str | None, typer.Option(help="The GPU. Default: the one whose memory size is in the log.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, schema kvplan.explain/1.")] = False,
) -> None:
    """Read an engine's start-up log: where each GiB went, and what to change."""
    found = parse_startup_log(_read(log))
    if not found.has_figures:
        raise KvplanError(
            f"{log} says nothing about memory or KV cache in the words of vLLM or SGLang.",
            hint="pass the log of such a server's start",
        )
    profile = find_gpu(gpu) if gpu is not None else None
    spec = _model(model, found.model)
    print_notes(None if spec is None else provenance_note(spec))
    answer = explain_log(found, spec, profile)
    if as_json:
        print_json(explanation_document(answer))
    else:
        _print(answer)


def _read(log: Path) -> str:
    """The log's text, whatever its bytes are. A pipe that the shell passes on is read to its end."""
    if str(log) == "-":
        content = read_standard_input(_LARGEST_LOG_BYTES, hint=_HINT)
    else:
        content = read_bytes(log, _LARGEST_LOG_BYTES, hint=_HINT, may_be_piped=True)
    if len(content) > 2 * _ENDS_BYTES:
        print_notes(f"Of {log} the first and the last {_ENDS_BYTES // MIB} MiB were read.")
        content = content[:_ENDS_BYTES] + b"\n" + content[-_ENDS_BYTES:]
    return content.decode("utf-8", errors="replace")


def _model(given: str | None, logged: str | None) -> ModelSpec | None:
    """The model that was named; one that only the log names may be unknown."""
    if given is not None:
        return resolve_model(given)
    for name in _names(logged):
        try:
            return resolve_model(name)
        except KvplanError:
            continue
    return None


_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)")
"""A model's folder in the Hugging Face cache."""


def _names(logged: str | None) -> list[str]:
    """The model as logged; of a path that is not here, its last part may be a known name."""
    if logged is None:
        return []
    cached = _CACHED.search(logged)
    if cached:
        return ["/".join(cached.groups())]
    last = logged.rstrip("/").rsplit("/", 1)[-1]
    return [last] if logged.startswith(("/", "~", ".")) and not os.path.exists(logged) else [logged]


def _print(answer: Explanation) -> None:
    log, predicted = answer.log, answer.predicted
    where = "a CPU" if log.device == "cpu" else answer.gpu.id if answer.gpu else "an unknown GPU"
    started = f"{log.engine} {log.version or '(version not printed)'}: {log.model or 'a model'} on {where}"
    print_sentence(started, indent="", further="  ")
    if log.stopped:
        print_sentence(f"stopped: {log.stopped}", further="    ")
    rows = [
        (part.name, _gib(part.logged_bytes), _gib(part.predicted_bytes), _signed(difference_gib(part)))
        for part in answer.parts
        if (part.logged_bytes, part.predicted_bytes) != (None, None)
    ]
    if rows:
        print()
        scope = "GiB of the host" if log.device == "cpu" else "GiB of one GPU"
        print_table(None, (scope, "log", "kvplan", "difference"), rows)
    counts = [
        ("KV cache tokens", _count(log.kv_cache_tokens), _count(predicted.kv_cache_tokens)),
        ("blocks", _count(log.num_blocks), _count(predicted.num_blocks)),
        ("concurrency", _times(log.max_concurrency), _times(predicted.max_concurrency)),
    ]
    known = [each for each in counts if each[1:] != ("-", "-")]
    print("\n" if known else "", end="")
    for name, logged, mine in known:
        print(f"  {name:16s} log {logged}, kvplan {mine}")
    if answer.changes:
        print("\nwhat to change:")
    for each in answer.changes:
        gain = f"  (+{each.gained_tokens:,} tokens)" if each.gained_tokens is not None else ""
        print_sentence(each.sentence + gain, further="    ")
    print_notes(*answer.notes)


def _gib(number: int | None) -> str:
    return "-" if number is None else format_gib(number)


def _signed(number: float | None) -> str:
    return "-" if number is None else f"{number:+.2f}"


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _times(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}x"
