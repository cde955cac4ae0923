"""``kvplan explain``: read a start-up log, print the account. The reading and comparing is in kvplan.explaining."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import provenance_note
from kvplan.commands.printing.explanations import print_explanation
from kvplan.commands.printing.render import print_json, print_notes
from kvplan.errors import KvplanError
from kvplan.explaining.document import explanation_document
from kvplan.explaining.explanation import explain_log
from kvplan.explaining.named_model import named_model
from kvplan.explaining.startup_log import parse_startup_log
from kvplan.files import read_bytes, read_standard_input
from kvplan.units import MIB

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
    spec = named_model(model, found.model)
    print_notes(None if spec is None else provenance_note(spec))
    answer = explain_log(found, spec, profile)
    if as_json:
        print_json(explanation_document(answer))
    else:
        print_explanation(answer)
        print_notes(*answer.notes)


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
