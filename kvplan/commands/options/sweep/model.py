"""What runs, and where: the model, its weights, the device."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Final

import typer

from kvplan.commands.options.groups import shown_under
from kvplan.commands.options.shared import SPECULATIVE_CONFIG_HELP
from kvplan.commands.options.trace import FILE_HELP
from kvplan.errors import UsageError
from kvplan.sweeps.options import SweepOptions

MODEL_PANEL: Final = "Model and device"
SETTINGS_PANEL: Final = "Engine settings"
WORKLOAD_PANEL: Final = "Workload"
GOAL_PANEL: Final = "Goal"
SPREAD_PANEL: Final = "Several machines"
OUTPUT_PANEL: Final = "Output"

DEFAULTS: Final = {option.name: option.default for option in fields(SweepOptions)}


@dataclass(frozen=True)
class ModelOptions:
    """What runs."""

    model: Annotated[
        str | None,
        typer.Option(help="Short name, Hugging Face id, directory, config.json or .gguf file."),
    ] = None


ModelArgument = Annotated[str | None, typer.Argument(metavar="MODEL", help="The same as --model.", show_default=False)]


def one_model(argument: str | None, option: str | None) -> str | None:
    """Return the model that was named, as argument or as option. UsageError where both name one, each another."""
    if argument is not None and option is not None and argument != option:
        raise UsageError(f"Two models are given: {argument}, and --model {option}.", hint="leave one of them out")
    return argument if option is None else option


@shown_under(MODEL_PANEL)
@dataclass(frozen=True)
class MachineOptions:
    """Where it runs, and with which weights."""

    load_format: Annotated[
        str | None,
        typer.Option(
            help="auto, dummy (random weights), none (count blocks and bytes, compute nothing), safetensors or gguf. "
            f"Default: {DEFAULTS['load_format']}."
        ),
    ] = None
    gpu: Annotated[
        str | None,
        typer.Option(help="With --load-format none: the GPUs to count on, here or not, such as h100 or 8xh200."),
    ] = None
    dummy_layers: Annotated[
        str | None,
        typer.Option(
            help="With --load-format dummy: full, or shared, so that equal layers use one copy of their weights."
        ),
    ] = None
    model_impl: Annotated[
        str | None,
        typer.Option(
            help="What computes the model: native (the engine's decoder), transformers (its class there, over the same "
            "pool), or auto: native wherever it can."
        ),
    ] = None
    activation_quantization: Annotated[
        str | None,
        typer.Option(
            help="int8: round what weights in few bits are multiplied with to 8 bits, which is faster on a CPU and "
            "changes results. Default: none."
        ),
    ] = None
    speculative_config: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help=SPECULATIVE_CONFIG_HELP,
        ),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(help=f"auto, cpu or cuda. Default: {DEFAULTS['device']}."),
    ] = None
    device_memory: Annotated[
        str | None,
        typer.Option(help="Total memory of the device, such as 4GiB."),
    ] = None


@shown_under(WORKLOAD_PANEL)
@dataclass(frozen=True)
class WorkloadOptions:
    """The requests, and how they arrive."""

    num_prompts: Annotated[int | None, typer.Option(help="Requests per trial; of a file the first so many.")] = None
    input_len: Annotated[
        str | None, typer.Option(help="Prompt tokens: 128, 96..288, or lognormal:MEDIAN:SIGMA[:FIRST..LAST].")
    ] = None
    output_len: Annotated[str | None, typer.Option(help="Generated tokens, in the same notation.")] = None
    num_prefixes: Annotated[
        int | None, typer.Option(help="Number of shared prefixes that prompts start with. Default: 1.")
    ] = None
    prefix_len: Annotated[str | None, typer.Option(help="Tokens per shared prefix, in addition to --input-len.")] = None
    workload: Annotated[str | None, typer.Option(metavar="FILE", help=FILE_HELP)] = None
    request_rate: Annotated[
        float | None,
        typer.Option(
            help="Arrivals per second; traces are rescaled to this rate. Default: the file's times, or all at once."
        ),
    ] = None
    burstiness: Annotated[
        float | None,
        typer.Option(help=f"1 is a Poisson process, less is burstier. Default: {DEFAULTS['burstiness']:g}."),
    ] = None
    max_concurrency: Annotated[int | None, typer.Option(help="Maximum number of requests in flight.")] = None
    seed: Annotated[
        int | None, typer.Option(help=f"Seed of requests and random weights. Default: {DEFAULTS['seed']}.")
    ] = None
