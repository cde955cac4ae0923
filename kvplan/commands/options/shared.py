"""Arguments and options that ``estimate`` and ``plan`` have in common, and the names of help panels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from kvplan.settings import SPECULATION_PANEL

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
