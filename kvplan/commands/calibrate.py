"""``kvplan calibrate``: fit the speed predictions to measured rows, for later estimates, plans and sweeps."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from kvplan.commands.options.settings import takes_settings
from kvplan.commands.printing.render import print_json
from kvplan.errors import UsageError
from kvplan.settings import ServingSettings
from kvplan.terminal import fitted

RESULTS_PANEL = "What other benchmarks do not say"

Paths = Annotated[
    list[Path],
    typer.Argument(
        help="Directories of `kvplan sweep` or `vllm bench sweep serve`, or JSON that `vllm bench serve`, "
        "`vllm bench forward`, `kvplan load`, GuideLLM or AIPerf saved.",
        metavar="PATH",
    ),
]
Out = Annotated[Path | None, typer.Option(help="File to write instead of one in your profile folder; - writes none.")]
DespiteNoise = Annotated[
    bool,
    typer.Option(
        "--despite-noise",
        help="Fit rows that were measured while other processes used much of the CPU, too; the profile says so.",
    ),
]
Holdout = Annotated[
    float | None, typer.Option(help="Share of the settings of kvplan's own sweeps to hold out and score. Default: 0.5.")
]
Seed = Annotated[int, typer.Option(help="Seed that draws the held-out settings.")]
Score = Annotated[
    list[Path] | None,
    typer.Option(help="Another sweep on this device (of another model, say) to predict without fitting to it."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the profile as JSON and nothing else.")]
Model = Annotated[
    str | None,
    typer.Option(
        help="The model that was served, where the name in the file is an alias.", rich_help_panel=RESULTS_PANEL
    ),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        help="What it ran on: a GPU's name, or cpu for this machine's processor.", rich_help_panel=RESULTS_PANEL
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(help="What served it: vllm, vllm@VERSION, sglang, trtllm, llamacpp.", rich_help_panel=RESULTS_PANEL),
]
_SETTINGS = (
    "tensor_parallel_size",
    "dtype",
    "kv_cache_dtype",
    "gpu_memory_utilization",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
)


@takes_settings(*_SETTINGS)
def calibrate(
    paths: Paths,
    out: Out = None,
    holdout: Holdout = None,
    seed: Seed = 0,
    score: Score = None,
    model: Model = None,
    gpu: Gpu = None,
    engine: Engine = None,
    settings: ServingSettings = ServingSettings(),
    despite_noise: DespiteNoise = False,
    as_json: AsJson = False,
) -> None:
    """Fit the speed predictions to what was measured and save them as a measured profile of the device.

    Of kvplan's own sweeps or of other engines' results: of an engine on a GPU where it served, whoever measured it.
    """
    from kvplan.calibrate.calibration import write_profile
    from kvplan.calibrate.results.readers.kvplan_sweep import is_own_sweep

    if all(is_own_sweep(path) for path in paths):
        _refuse({"--model": model, "--gpu": gpu, "--engine": engine}, "of another engine's results")
        document, path = _own_sweeps(
            paths, 0.5 if holdout is None else holdout, seed, score or [], as_json, despite_noise=despite_noise
        )
    else:
        own = {"--holdout": holdout, "--score": score, "--despite-noise": despite_noise or None}
        _refuse(own, "of kvplan's own sweeps")
        document, path = _results(paths, model, gpu, engine, settings, as_json)
    if as_json:
        print_json(document)
    path = path if out is None else out
    if str(path) != "-":
        write_profile(document, path)
        print(fitted(f"wrote {path}; {_usage(path)}", sys.stderr, further="  "), file=sys.stderr)


def _usage(path: Path) -> str:
    """Which commands read the profile, and how."""
    from kvplan.catalog.devices.measured import own_folder

    folder = own_folder()
    if path.suffix == ".json" and path.parent.resolve() == folder.resolve():
        return "estimate, plan and sweep use it on this device"
    option = shlex.join(["--calibration", str(path)])
    return f"estimate and plan use it with {option}; without it they and sweep look in {folder}"


def _refuse(options: Mapping[str, object], whose: str) -> None:
    given = next((name for name, value in options.items() if value not in (None, [])), None)
    if given is not None:
        raise UsageError(f"{given} is an option {whose}.", hint="leave it out")


def _own_sweeps(
    paths: list[Path], holdout: float, seed: int, score: list[Path], as_json: bool, *, despite_noise: bool
) -> tuple[dict[str, object], Path]:
    from kvplan.calibrate.calibration import calibrate_directories, default_profile_path, profile_document
    from kvplan.commands.printing.calibrations import print_calibration

    if not 0 <= holdout <= 0.9:
        raise UsageError(f"--holdout is {holdout:g}, but must be from 0 to 0.9.", hint="--holdout 0.5")
    found = calibrate_directories(paths, held_out=holdout, seed=seed, score=score, despite_noise=despite_noise)
    if not as_json:
        print_calibration(found)
    return profile_document(found), default_profile_path(found)


def _results(
    paths: list[Path], model: str | None, gpu: str | None, engine: str | None, settings: ServingSettings, as_json: bool
) -> tuple[dict[str, object], Path]:
    from kvplan.calibrate.results.calibration import calibrate_results, learned_document, learned_path
    from kvplan.calibrate.results.served import ServedDeployment
    from kvplan.commands.printing.calibrations import print_learned

    name, _, version = (engine or "").partition("@")
    options = ServedDeployment(
        model=model,
        gpu=gpu,
        engine=name or None,
        engine_version=version or None,
        tensor_parallel_size=settings.tensor_parallel_size if settings.tensor_parallel_size > 1 else None,
        dtype=None if settings.dtype == "auto" else settings.dtype,
        kv_cache_dtype=None if settings.kv_cache_dtype == "auto" else settings.kv_cache_dtype,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
    )
    found = calibrate_results(paths, options)
    if not as_json:
        print_learned(found)
    return learned_document(found), learned_path(found.matched)
