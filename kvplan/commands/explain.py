"""``kvplan explain``: read a start-up log, print the account. The reading and comparing is in kvplan.explaining."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import provenance_note
from kvplan.commands.options.settings import takes_settings
from kvplan.commands.printing.explanations import print_explanation
from kvplan.commands.printing.render import OutputFormat, chosen_format, print_csv, print_json, print_notes
from kvplan.explaining.document import explanation_document
from kvplan.explaining.explanation import EXPLAIN_SETTINGS, explain_log, of_engine
from kvplan.explaining.reading import named_model, read_log
from kvplan.settings import ServingSettings


@takes_settings(*EXPLAIN_SETTINGS)
def explain(
    log: Annotated[Path, typer.Argument(help="Start-up log of vLLM or SGLang; - reads standard input.", metavar="LOG")],
    model: Annotated[str | None, typer.Option(help="The model, if the log only has a private path.")] = None,
    gpu: Annotated[str | None, typer.Option(help="The GPU. Default: the one that fits what the log says.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="vllm@VERSION or sglang@VERSION, if the log does not print it.")
    ] = None,
    settings: ServingSettings = ServingSettings(),
    output_format: Annotated[OutputFormat, typer.Option("--format", help="Output format.")] = OutputFormat.table,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json, schema kvplan.explain/1.")] = False,
) -> None:
    """Read an engine's start-up log: where each GiB went, and what to change.

    Settings are read off the log and off commands pasted beside it; an option counts before both.
    """
    chosen = chosen_format(output_format, as_json=as_json)
    found, note = read_log(log)
    found = of_engine(found, engine)
    profile = find_gpu(gpu) if gpu is not None else None
    spec = named_model(model, found.model)
    print_notes(note, None if spec is None else provenance_note(spec))
    answer = explain_log(found, spec, profile, settings)
    if chosen is OutputFormat.json:
        print_json(explanation_document(answer))
    elif chosen is OutputFormat.csv:
        print_csv(explanation_document(answer)["memory"])
    else:
        print_explanation(answer, as_markdown=chosen is OutputFormat.md)
        print_notes(*answer.notes)
