"""``kvplan explain``: read a start-up log, print the account. The reading and comparing is in kvplan.explaining."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import provenance_note
from kvplan.commands.printing.explanations import print_explanation
from kvplan.commands.printing.render import print_json, print_notes
from kvplan.explaining.document import explanation_document
from kvplan.explaining.explanation import explain_log
from kvplan.explaining.named_model import named_model
from kvplan.explaining.reading import read_log


def explain(
    log: Annotated[Path, typer.Argument(help="Start-up log of vLLM or SGLang; - reads standard input.", metavar="LOG")],
    model: Annotated[str | None, typer.Option(help="The model, if the log only has a private path.")] = None,
    gpu: Annotated[str | None, typer.Option(help="The GPU. Default: the one whose memory size is in the log.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, schema kvplan.explain/1.")] = False,
) -> None:
    """Read an engine's start-up log: where each GiB went, and what to change."""
    found, note = read_log(log)
    profile = find_gpu(gpu) if gpu is not None else None
    spec = named_model(model, found.model)
    print_notes(note, None if spec is None else provenance_note(spec))
    answer = explain_log(found, spec, profile)
    if as_json:
        print_json(explanation_document(answer))
    else:
        print_explanation(answer)
        print_notes(*answer.notes)
