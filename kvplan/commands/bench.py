"""``kvplan bench``: benchmark paging, batching, caching, sharing and swapping against what each replaces."""

from __future__ import annotations

import sys
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.commands.options.sweeps import ModelArgument, one_model
from kvplan.commands.printing.render import OutputFormat, chosen_format
from kvplan.terminal import width_of
from kvplan.workload.requests import LARGEST_SEED

if TYPE_CHECKING:
    from kvplan.bench.figures import BenchFigure, Experiment
    from kvplan.bench.session import BenchOutcome, BenchPlan

_WIDTH = 110


def bench(
    named_model: ModelArgument = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Short name, Hugging Face id, directory or config.json of a supported model. Default: smollm2-135m."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small workloads and one round, for rough figures.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only this experiment (repeatable): reservation, scheduling, prefix, tiers, chunking, sharing, "
            "swap or transformers."
        ),
    ] = None,
    num_rounds: Annotated[
        int | None, typer.Option(min=1, help="How often each side runs, alternately. Default: 2, with --quick 1.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    device_memory: Annotated[str | None, typer.Option(help="Total memory of the device, such as 4GiB.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of requests and random weights.")] = 0,
    output_format: Annotated[OutputFormat, typer.Option("--format", help="Output format.")] = OutputFormat.table,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
) -> None:
    """Benchmark paging, batching, caching, chunked prefill and swapping against what each replaces."""
    chosen = chosen_format(output_format, as_json=as_json)
    from kvplan.bench.session import make_plan, run_bench
    from kvplan.commands.printing.render import print_csv, print_json
    from kvplan.units import parse_bytes

    plan = make_plan(
        one_model(named_model, model) or "smollm2-135m",
        device=device,
        device_memory=None if device_memory is None else parse_bytes(device_memory),
        dtype=dtype,
        only=only or (),
        num_rounds=num_rounds,
        is_quick=quick,
        seed=seed,
    )
    _announce(plan)
    progress = _Progress(plan.order.experiments, chosen)
    outcome = run_bench(plan, progress.on_start, progress.on_result, progress.on_notice)
    if chosen is OutputFormat.json:
        print_json(outcome.as_json())
    elif chosen is OutputFormat.csv:
        print_csv([row for experiment in outcome.experiments for row in _rows(experiment)])
    else:
        _print_conditions(outcome)


def _announce(plan: BenchPlan) -> None:
    if plan.device.notice:
        print(plan.device.notice, file=sys.stderr)
    print(f"{plan.order.model_name} with random weights (speed does not depend on their values)", file=sys.stderr)


class _Progress:
    """Reports on stderr which experiment runs and how long it took, and prints each table when it is ready."""

    def __init__(self, names: tuple[str, ...], output_format: OutputFormat) -> None:
        self._names = names
        self._format = output_format

    def on_start(self, name: str) -> None:
        from kvplan.bench.options import EXPERIMENTS

        number = self._names.index(name) + 1
        print(f"[{number}/{len(self._names)}] {name}: {EXPERIMENTS[name]}", file=sys.stderr, flush=True)

    def on_notice(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def on_result(self, experiment: Experiment) -> None:
        print(f"    {experiment.seconds:.0f} s", file=sys.stderr, flush=True)
        if self._format in (OutputFormat.table, OutputFormat.md):
            _print_experiment(experiment, as_markdown=self._format is OutputFormat.md)


def _print_experiment(experiment: Experiment, *, as_markdown: bool) -> None:
    from kvplan.commands.printing.render import print_markdown, print_table

    head = ["", experiment.baseline, experiment.measured, "gain"]
    rows = [_cells(figure) for figure in experiment.figures]
    if as_markdown:
        print(f"### {experiment.title}\n")
        print_markdown(head, rows)
        print()
    else:
        print_table(experiment.title, head, rows)
    width = min(width_of(sys.stdout) or _WIDTH, _WIDTH)
    for text in (experiment.workload, *experiment.notes):
        print(f"* {text}" if as_markdown else fill(text, width, initial_indent="  ", subsequent_indent="    "))
    print(flush=True)


def _rows(experiment: Experiment) -> list[dict[str, Any]]:
    return [
        {
            "experiment": experiment.name,
            "figure": figure.name,
            "unit": figure.unit,
            "baseline": experiment.baseline,
            "baseline_value": figure.baseline,
            "measured": experiment.measured,
            "measured_value": figure.measured,
            "gain": figure.ratio,
            "cut_pct": figure.cut_pct,
        }
        for figure in experiment.figures
    ]


def _print_conditions(outcome: BenchOutcome) -> None:
    from kvplan.bench.session import NOISY_PCT

    order, device = outcome.plan.order, outcome.plan.device
    rounds = f"medians of up to {order.num_rounds} alternating rounds" if order.num_rounds > 1 else "one round"
    computing = f"{outcome.num_threads} threads" + (f", kernels {outcome.kernels}" if outcome.kernels else "")
    print(f"{order.model_name} on {device.name}, {computing}, {rounds}, {outcome.seconds:.0f} s")
    others = outcome.other_cpu_pct
    if others is not None:
        warning = ": too much for reliable times" if others > NOISY_PCT else ""
        print(f"other processes used {others:.0f} % of the CPU{warning}")


def _cells(figure: BenchFigure) -> list[str]:
    unit = f", {figure.unit}" if figure.unit else ""
    return [figure.name + unit, _number(figure.baseline), _number(figure.measured), _gain(figure)]


def _gain(figure: BenchFigure) -> str:
    if figure.ratio is None:
        return "-" if figure.baseline == figure.measured else "all"
    text = f"{figure.ratio:.2f} x"
    return text if figure.cut_pct is None else f"{text} ({-figure.cut_pct:+.1f} %)"


def _number(value: float) -> str:
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"
