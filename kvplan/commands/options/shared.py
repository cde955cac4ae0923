"""Arguments and options that ``estimate`` and ``plan`` have in common, and the names of help panels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from kvplan.commands.options.groups import shown_under
from kvplan.settings import SPECULATION_PANEL

FILE_PANEL: Final = "Workload file"
FILE_HELP: Final = (
    "File with requests: Mooncake, Bailian, Azure, BurstGPT, ServeGen, AIPerf, ShareGPT, OpenAI batch, prompts of vllm "
    "bench, or CSV with input_len,output_len[,arrival_s]."
)
WORKLOAD_PANEL: Final = "Workload"
ENGINE_PANEL: Final = "Engine"
SPEED_PANEL: Final = "Speed"
OUTPUT_PANEL: Final = "Output"
SPECULATIVE_CONFIG_HELP: Final = (
    "Who proposes tokens that the next step verifies, as vLLM takes it: "
    '{"method": "ngram", "num_speculative_tokens": 4}.'
)

MODEL_HELP: Final = "Short name, Hugging Face id, directory, config.json or .gguf file; also --model MODEL."
Model = Annotated[str, typer.Argument(help=MODEL_HELP, metavar="MODEL")]
Calibration = Annotated[
    str | None,
    typer.Option(
        help="Measured profile to take speeds from, or none. Default: the one measured on this device, if any.",
        rich_help_panel=SPEED_PANEL,
    ),
]
NoCalibration = Annotated[
    bool, typer.Option("--no-calibration", help="Same as --calibration none.", rich_help_panel=SPEED_PANEL)
]
MeasuredResults = Annotated[
    list[Path] | None,
    typer.Option(
        "--measured",
        metavar="FILE",
        help="A result of your server, as vllm bench serve --save-result writes it, that predictions are scaled by; "
        "repeatable.",
        rich_help_panel=SPEED_PANEL,
    ),
]
SpeculativeConfig = Annotated[
    str | None,
    typer.Option(
        metavar="JSON",
        help="The drafter as vLLM takes it: method, model, num_speculative_tokens.",
        rich_help_panel=SPECULATION_PANEL,
    ),
]


def calibration_name(calibration: str | None, no_calibration: bool) -> str | None:
    """What both options together ask for: a profile's name, "none", or None for the devices' own."""
    return "none" if no_calibration else calibration


@shown_under(FILE_PANEL)
@dataclass(frozen=True)
class TraceOptions:
    """Which part of the workload's file, and how fast."""

    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="Use its requests from here on, such as 10m, counted from the first."
        ),
    ] = None
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Use its requests up to here, such as 20m.")
    ] = None
    speed: Annotated[float | None, typer.Option(help="Make its times so many times as fast. Default: 1.")] = None
    sample: Annotated[int | None, typer.Option(help="Use so many of its requests, drawn at random.")] = None
    trace_unit: Annotated[
        str | None,
        typer.Option(
            metavar="UNIT", help="Unit of its times: s, ms, us or ns. Default: decided by the file, and said."
        ),
    ] = None
    spread_ticks: Annotated[
        bool,
        typer.Option(
            "--spread-ticks", help="Spread requests of one moment until the next one: for files of a coarse clock."
        ),
    ] = False
