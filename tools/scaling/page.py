"""docs/scaling.md: three tables with what they mean."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.estimate.speed.queueing.front_end import VLLM_FRONT_END
from scaling.collectives import PUBLISHED, modelled
from scaling.paper import ANSWER_TOKENS, PROMPT_TOKENS, USERS_PER_GPU, PaperPoint, paper_points
from scaling.published import Series, median_error, published_series

PAPER = (("llama-3.1-70b", "h100-sxm"),)


def page(measured: MeasuredProfiles) -> str:
    """The whole text; ``python tools/score_scaling.py --write`` keeps it."""
    series = published_series(measured)
    return "\n".join([*_head(series), *_series_table(series), *_paper(measured), *_collectives(measured)]) + "\n"


def _head(series: list[Series]) -> list[str]:
    sources, error = len({each.source for each in series}), 100 * median_error(series)
    return [
        "# More GPUs: what is predicted, and what was measured",
        "",
        "Written by `python tools/score_scaling.py --write`; every figure is a prediction but those called measured.",
        "",
        "## Published results that differ in the number of GPUs alone",
        "",
        *_wrapped(
            f"{len(series)} series of {sources} sources (`tools/published_speeds/speeds.csv`, all grades). "
            "Growth: throughput with the most GPUs over that with the fewest; its error is "
            f"{error:.0f} % in the median. GPUs without direct access to each other's memory gain less by tensor "
            "parallelism than is predicted (two A100 of dennislee), or nothing (RTX 4090): their messages go through "
            "the host's memory."
        ),
        "",
    ]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 120)


def _series_table(series: Iterable[Series]) -> list[str]:
    lines = ["| | GPUs | output tokens/s measured | predicted | growth measured | predicted | error |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for each in series:
        first, last = each.points[0], each.points[-1]
        sizes = " / ".join(str(point.num_gpus) for point in each.points)
        seen, told = (
            " / ".join(f"{getattr(point, name):,.0f}" for point in each.points) for name in ("measured", "predicted")
        )
        grown = (last.measured / first.measured, last.predicted / first.predicted)
        lines.append(
            f"| {each.source}: {each.title} ({last.layout}) | {sizes} | {seen} | {told} "
            f"| {grown[0]:.2f} | {grown[1]:.2f} | {100 * each.error:+.0f} % |"
        )
    return lines


def _paper(measured: MeasuredProfiles) -> list[str]:
    of_a_server = VLLM_FRONT_END.seconds(ANSWER_TOKENS)
    lines = [
        "",
        "## On paper: 1 to 64 GPUs",
        "",
        *_wrapped(
            f"vLLM's latest release, {USERS_PER_GPU} users for each GPU, prompts of {PROMPT_TOKENS:,} tokens and "
            f"answers of {ANSWER_TOKENS}: output tokens/s of all GPUs, by the steady state's formula and by playing "
            "the load step by step. Tensor parallelism stays within a node of eight; stages (`pp`) and replicas "
            "(`dp`) lie across nodes. A replica has one API server, whose event loop takes "
            f"{1000 * of_a_server:.1f} ms for a request with its tokens and so streams "
            f"{ANSWER_TOKENS / of_a_server:,.0f} tokens/s at most; more of them (--api-server-count) would stream more."
        ),
        "",
        "| | GPUs | layout | steady state | played | played, per GPU |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for model, gpu in PAPER:
        lines += [_paper_line(f"{model}, {gpu}", point) for point in paper_points(model, gpu, measured)]
    return lines


def _paper_line(title: str, point: PaperPoint) -> str:
    layout = f"tp {point.tensor}, pp {point.pipeline}, dp {point.replicas}"
    if point.steady is None or point.played is None:
        return f"| {title} | {point.num_gpus} | {layout} | does not fit | | |"
    figures = f"{point.steady:,.0f} | {point.played:,.0f} | {point.played / point.num_gpus:,.0f}"
    return f"| {title} | {point.num_gpus} | {layout} | {figures} |"


def _collectives(measured: MeasuredProfiles) -> list[str]:
    lines = [
        "",
        "## All-reduces beside nccl-tests",
        "",
        *_wrapped(
            "Bus bandwidth of large messages, GB/s. Fits to measured kernels lie below what nccl-tests reach with "
            "messages of a gigabyte: a step of prompts sends some tens of megabytes at a time. vLLM's own all-reduces "
            "over eight GPUs, in the tables that the fits are of, reach 238, 341 and 469 GB/s with 4 MiB, 64 MiB and "
            "1 GiB on H100, 258, 363 and 470 on H200, 162, 198 and 228 on A100: as much as nccl-tests at the end. "
            "Shares of the link by the number of ranks (0.50, 0.62 and 0.75 of an H100's over 2, 4 and 8), as these "
            "alone would have them, were tried and left: published throughput on several Hopper GPUs, 13 % off in "
            "the median, is 15 % off with them. Ranges: GPUs without such a fit."
        ),
        "",
        "| | GPUs | published | model | source |",
        "| --- | --- | --- | --- | --- |",
    ]
    for case in PUBLISHED:
        seen, told = (_range(*each) for each in (case.gigabytes_per_second, modelled(case, measured)))
        nodes = f" in {case.nodes} nodes" if case.nodes > 1 else ""
        lines.append(f"| {case.gpu} | {case.num_gpus}{nodes} | {seen} | {told} | {case.source} |")
    return lines


def _range(low: float, high: float) -> str:
    return f"{low:,.0f}" if round(low) == round(high) else f"{low:,.0f} to {high:,.0f}"
