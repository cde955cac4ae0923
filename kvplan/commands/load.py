"""``kvplan load``: load an OpenAI-compatible server, and say what bound it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvplan.commands.options.groups import given_options, shown_under, takes_groups
from kvplan.commands.options.shared import FILE_HELP, TraceOptions
from kvplan.errors import KvplanError

if TYPE_CHECKING:
    from kvplan.load.session import LoadOutcome
    from kvplan.load.tolerance import Tolerance

INTERRUPTED: Final = 130
FAILED: Final = 1

SERVER_PANEL: Final = "Server"
ARRIVALS_PANEL: Final = "Arrivals"
REQUESTS_PANEL: Final = "Requests"
GOAL_PANEL: Final = "Goal"
OUTPUT_PANEL: Final = "Output"

LIST_OPTIONS: dict[str, Callable[[str], object]] = {"--slo": lambda text: ":" in text and "//" not in text}
"""Options whose further values may follow after spaces (kvplan.list_words)."""


@shown_under(SERVER_PANEL)
@dataclass(frozen=True)
class LoadServerOptions:
    """Which server, and how it is asked."""

    model: Annotated[str | None, typer.Option(help="Model to ask for. Default: the server's first.")] = None
    endpoint: Annotated[str | None, typer.Option(help="completions or chat. Default: completions.")] = None
    api_key: Annotated[str | None, typer.Option(help="Sent as a bearer token.", envvar="OPENAI_API_KEY")] = None
    request_timeout: Annotated[
        float | None, typer.Option(help="Seconds after which a request has failed. Default: 600.")
    ] = None


@shown_under(ARRIVALS_PANEL)
@dataclass(frozen=True)
class ArrivalOptions:
    """How many requests, and when they come. Without any: all at once."""

    num_prompts: Annotated[
        int | None, typer.Option(help="Requests that are measured. Default: 100, or all of --workload.")
    ] = None
    duration: Annotated[
        float | None, typer.Option(help="Send for so many seconds instead of a number of requests.")
    ] = None
    request_rate: Annotated[
        str | None,
        typer.Option(
            help="Arrivals per second, or 1..8 for a rate that grows; traces are rescaled to this rate.", metavar="RATE"
        ),
    ] = None
    burstiness: Annotated[
        float | None,
        typer.Option(help="1 is a Poisson process, less is burstier, inf sends at equal gaps. Default: 1."),
    ] = None
    max_concurrency: Annotated[int | None, typer.Option(help="Maximum number of requests in flight.")] = None
    users: Annotated[int | None, typer.Option(help="A closed loop: so many users, one request at a time each.")] = None
    think_time: Annotated[
        float | None, typer.Option(help="A user's mean pause between answer and next request, in seconds. Default: 0.")
    ] = None
    num_warmups: Annotated[
        int | None, typer.Option(help="Requests of the same load before the measured ones. Default: 0.")
    ] = None


@shown_under(REQUESTS_PANEL)
@dataclass(frozen=True)
class RequestOptions:
    """What the requests ask."""

    input_len: Annotated[
        str | None,
        typer.Option(help="Prompt tokens: 128, 96..288, or lognormal:MEDIAN:SIGMA[:FIRST..LAST]. Default: 128."),
    ] = None
    output_len: Annotated[str | None, typer.Option(help="Generated tokens, in the same notation. Default: 64.")] = None
    num_prefixes: Annotated[
        int | None, typer.Option(help="Number of shared prefixes that prompts start with. Default: 1.")
    ] = None
    prefix_len: Annotated[str | None, typer.Option(help="Tokens per shared prefix, in addition to --input-len.")] = None
    same_prompt: Annotated[
        bool | None, typer.Option("--same-prompt", help="Send the same prompt in every request.")
    ] = None
    workload: Annotated[str | None, typer.Option(metavar="FILE", help=FILE_HELP)] = None
    ignore_eos: Annotated[
        bool | None,
        typer.Option(
            "--ignore-eos/--no-ignore-eos",
            help="Generate exactly as many tokens as asked for, or stop at end of sequence. Default: exactly.",
        ),
    ] = None
    seed: Annotated[int | None, typer.Option(help="Seed of lengths and arrivals. Default: 0.")] = None


@shown_under(GOAL_PANEL)
@dataclass(frozen=True)
class LoadGoals:
    """What to look for, and how carefully."""

    slo: Annotated[
        list[str] | None, typer.Option(help="Bounds of p99 in ms, such as 'ttft:500 tpot:50', or mlperf:llama3.1-8b.")
    ] = None
    search: Annotated[
        str | None,
        typer.Option(
            help="Find the most users, or the largest max_concurrency or request_rate, within --slo; with values to "
            "choose from: users=1..64."
        ),
    ] = None
    num_runs: Annotated[int | None, typer.Option(help="Repetitions of every load. Default: 1.")] = None
    self_test: Annotated[
        bool | None,
        typer.Option(
            "--self-test",
            help="First measure how many tokens per second this client can read; without URL, do nothing else.",
        ),
    ] = None
    max_failed: Annotated[
        str | None,
        typer.Option(
            help="Requests that may fail, as a number or a share such as 1%; more are exit code 1. Default: 0.",
            metavar="NUMBER",
        ),
    ] = None
    num_clients: Annotated[
        int | None, typer.Option(help="Client processes; use more if one cannot keep up with the server. Default: 1.")
    ] = None
    save_detailed: Annotated[
        bool | None,
        typer.Option(
            "--save-detailed",
            help="Keep every gap between tokens in requests.jsonl, and write bench.json as `vllm bench serve` does.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None


@takes_groups
def load(
    server: LoadServerOptions,
    arrivals: ArrivalOptions,
    requests: RequestOptions,
    trace: TraceOptions,
    goals: LoadGoals,
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="Address of the server, such as http://localhost:8000.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory to write. Default: kvplan-load-MODEL-TIME.", rich_help_panel=OUTPUT_PANEL),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.", rich_help_panel=OUTPUT_PANEL)
    ] = False,
) -> int:
    """Load an OpenAI-compatible server: throughput and latency beside its own KV cache, queue and preemptions."""
    from kvplan.commands.printing import loads as load_output
    from kvplan.load.options import LoadOptions
    from kvplan.load.self_test import measure_ceiling
    from kvplan.load.session import default_directory, find_target, run_session
    from kvplan.load.tolerance import Tolerance

    given = _given(server, arrivals, requests, trace, goals)
    tolerance = Tolerance.parse(given.pop("max_failed", "0"))
    options = LoadOptions(url=url, **given)
    ceiling = measure_ceiling(options) if options.self_test else None
    if ceiling is not None:
        load_output.print_ceiling(ceiling, as_json=as_json and url is None)
    if url is None:
        return 0
    target = find_target(options)
    directory = out if out is not None else default_directory(target)
    load_output.announce(options, target, directory)
    command = shlex.join(["kvplan", *_without_key(sys.argv[1:])])
    listener = load_output.make_listener()
    outcome = run_session(options, target, directory, listener, command=command, ceiling=ceiling)
    load_output.print_outcome(outcome, ceiling, as_json=as_json)
    return _exit_code(outcome, tolerance)


def _exit_code(outcome: LoadOutcome, tolerance: Tolerance) -> int:
    """KvplanError where more failed than may."""
    from kvplan.commands.printing.sweeps import print_undrawn, print_written
    from kvplan.load.tolerance import failures_of
    from kvplan.reports import write_reports

    if outcome.interrupted:  # whoever stops a run does not wait for its pictures
        print_undrawn(outcome.directory)
        return INTERRUPTED
    print_written(outcome.directory, write_reports(outcome.directory))
    failures = failures_of(outcome.runs)
    if not tolerance.allows(failures.num_failed, failures.num_requests):
        hint = "the rows are written; --max-failed says how many may fail"
        raise KvplanError(failures.sentence() + ".", hint=hint)
    return 0 if any(row["completed"] for row in outcome.rows) else FAILED


def _given(*groups: Any) -> dict[str, Any]:
    """The options that were written, as LoadOptions has them: bounds in seconds by name."""
    given = {name: value for group in groups for name, value in given_options(group).items()}
    if "slo" in given:
        from kvplan.planner.question.slo import measured_bounds

        given["slo_seconds"] = measured_bounds(given.pop("slo"))
    return given


def _without_key(words: list[str]) -> list[str]:
    """The command line as the manifest keeps it: an API key is nobody's business."""
    hidden = list(words)
    for place, word in enumerate(words):
        if word.startswith("--api-key="):
            hidden[place] = "--api-key=..."
        elif word == "--api-key" and place + 1 < len(words):
            hidden[place + 1] = "..."
    return hidden
