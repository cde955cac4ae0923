"""Scores predicted speeds against published measurements. Run: python tools/score_published_speeds.py

    --csv FILE          rows (default tools/published_speeds/speeds.csv, described beside it)
    --held-out FILE     further rows, scored and printed apart with the intervals that ship
    --seen abc          rows of CSV that are scored, by when they became known (default: all)
    --learn-from a      intervals learned from those rows alone, for all others of CSV, instead of held out by source
    --calibration NAME  as in `kvplan plan`: a measured profile, or none for the data sheets alone
    --grades AB         grades that are scored (default A and B)
    --leave-out WHAT    gpu: each row without the tables of its own GPU (those of the most alike one are scaled, else
                        its data sheet); model: intervals learned without rows of its model, instead of its source
    --write-intervals   keep the intervals of these rows as those that `kvplan plan` shows
    --markdown          the two tables of docs/accuracy.md instead
    --rows              one line per row, the worst TPOT first
    --reasons           why rows are not scored

Both files may have the columns that rows are collected with and no others (published_speeds/stated.py).

For each group: rows, median and 90th percentile of |predicted / measured - 1|, its median with sign, how many
measurements lie in the interval (of CSV's rows in one that was learned without their source, of further rows in the one
that ships), the median of its high / low end, and its interval score: width and misses of logarithms in one number
(published_speeds/scores.py), the smaller the better. "one factor for all" has the same rows with the baseline: one pair
of factors, held out alike. TPOT is the mean over requests, where it was published, else the median; TTFT the median,
else the mean. The 99th percentiles, which a service level asks for, follow in a table of their own.

Then come kinds of servers whose median exceeds 25 %, with the cause (published_speeds/causes.csv) or "not known"; and
the groups with a row that its own source says was held back (published_speeds/hindered.py), without such rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from kvplan.catalog.devices.measured import MeasuredProfiles, load_measured  # noqa: E402
from kvplan.catalog.published_errors import FILE  # noqa: E402
from kvplan.errors import KvplanError  # noqa: E402
from kvplan.paths import profiles_dir  # noqa: E402
from published_speeds.causes import known_causes, year_of_release  # noqa: E402
from published_speeds.copies import copied_rows  # noqa: E402
from published_speeds.hindered import hindered_rows  # noqa: E402
from published_speeds.intervals import (  # noqa: E402
    fit_constant,
    fit_intervals,
    held_out,
    source_of,
    with_intervals,
    write_intervals,
)
from published_speeds.models import gpu_named  # noqa: E402
from published_speeds.rows import PUBLISHED, PublishedRow, read_rows  # noqa: E402
from published_speeds.scores import (  # noqa: E402
    FIGURES,
    TAIL_FIGURES,
    RowScore,
    Summary,
    bar_group,
    grouped,
    score_row,
    summarize,
    what_decides,
)

_GROUPINGS: tuple[tuple[str, Callable[[RowScore], str]], ...] = (
    ("all", lambda score: "all rows"),
    ("as bars are set", bar_group),
    ("what decides", what_decides),
    ("kind of model", lambda score: score.kind),
    ("model kind and GPU", lambda score: f"{score.kind}, {score.generation}"),
    ("engine and kind", lambda score: f"{score.engine}, {score.kind}"),
    ("origin", lambda score: score.origin),
    ("engine", lambda score: score.engine),
    ("year of the release", year_of_release),
    ("known since", lambda score: score.row.text["seen"] or "not stated"),
    ("GPU", lambda score: score.gpu),
    ("source", lambda score: score.row.source),
)
_TAIL_GROUPINGS = tuple(each for each in _GROUPINGS if each[0] in ("all", "kind of model", "engine", "known since"))


def main() -> None:
    arguments = _parser().parse_args()
    measured = load_measured(arguments.calibration)
    for path in (arguments.csv, *arguments.held_out):
        rows = read_rows(path)
        copies = copied_rows(row for row in (*read_rows(PUBLISHED), *rows) if isinstance(row, PublishedRow))
        asked = [row for row in rows if isinstance(row, str) or _is_asked(row, arguments)]
        results = [_scored(row, copies, _known(row, measured, arguments)) for row in asked]
        scores = [result for result in results if isinstance(result, RowScore)]
        baseline: list[RowScore] = []
        if path == arguments.csv:
            if arguments.write_intervals:
                write_intervals(scores, profiles_dir() / FILE)
            scores, baseline = _as_learned(scores, arguments)
        reasons = [result for result in results if isinstance(result, str)]
        print(f"{path.name}: {len(rows)} rows, {len(scores)} scored (grades {', '.join(arguments.grades)})")
        if arguments.reasons:
            print("\n".join(reasons))
        if arguments.rows:
            print_rows(scores)
        if arguments.markdown:
            print_markdown(scores, baseline)
        else:
            _print_tables(scores, baseline)


def _scored(row: PublishedRow | str, copies: Mapping[str, str], known: MeasuredProfiles) -> RowScore | str:
    """A row's score, or why it has none."""
    if isinstance(row, str):
        return row
    if row.id in copies:
        return f"{row.id}: its figures are those of {copies[row.id]} to the digit, which is of a slower GPU"
    return score_row(row, known)


def _is_asked(row: PublishedRow, arguments: argparse.Namespace) -> bool:
    seen = row.text["seen"]
    return row.grade in arguments.grades and (not arguments.seen or not seen or seen in arguments.seen)


def _as_learned(scores: list[RowScore], arguments: argparse.Namespace) -> tuple[list[RowScore], list[RowScore]]:
    """The scores with intervals that they had no part in, and with those of one factor for all."""
    if arguments.learn_from:
        known = [each for each in scores if each.row.text["seen"] in arguments.learn_from]
        others = [each for each in scores if each not in known]
        intervals, constant = fit_intervals(known), fit_constant(known)
        return [with_intervals(each, intervals) for each in others], [with_intervals(each, constant) for each in others]
    key = source_of
    if arguments.leave_out == "model":
        key = lambda each: each.row.text["model"]  # noqa: E731
    return held_out(scores, key), held_out(scores, key, fit_constant)


def _print_tables(scores: Sequence[RowScore], baseline: Sequence[RowScore]) -> None:
    for name, key in _GROUPINGS:
        print_groups(name, grouped(scores, key))
        if name == "all" and baseline:
            print_groups("baseline", {"one factor for all": list(baseline)})
    for name, key in _TAIL_GROUPINGS:
        print_groups(name, grouped(scores, key), TAIL_FIGURES)
    print_far_off(scores)
    print_without_hindered(scores)


def _known(row: PublishedRow | str, measured: MeasuredProfiles, arguments: argparse.Namespace) -> MeasuredProfiles:
    """The profiles, without those of the row's GPU where these are left out."""
    if arguments.leave_out != "gpu" or isinstance(row, str):
        return measured
    try:
        own = gpu_named(row.text["gpu"]).id
    except KvplanError:
        return measured
    return MeasuredProfiles(tuple(each for each in measured.profiles if each.device_name != own))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, default=PUBLISHED)
    parser.add_argument("--held-out", type=Path, nargs="*", default=[])
    parser.add_argument("--seen")
    parser.add_argument("--learn-from")
    parser.add_argument("--calibration")
    parser.add_argument("--grades", default="AB")
    parser.add_argument("--leave-out", choices=("gpu", "model"))
    parser.add_argument("--write-intervals", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--reasons", action="store_true")
    return parser


def print_groups(name: str, groups: dict[str, list[RowScore]], figures: Sequence[str] = FIGURES) -> None:
    """A table: one line per group, each of ``figures`` of seven columns."""
    columns = "".join(f" | {figure:>10}: n  med%  p90%  bias%  held%  width score" for figure in figures)
    print(f"\n{name:34}{columns}")
    for group, scores in groups.items():
        print(f"{group:34}" + "".join(f" | {_cell(scores, figure)}" for figure in figures))


def print_without_hindered(scores: Sequence[RowScore]) -> None:
    found = hindered_rows(score.row for score in scores)
    if not found:
        return
    print("\nheld back, by their own source: " + "; ".join(f"{row}: {why}" for row, why in sorted(found.items())))
    for name, key in _GROUPINGS[:3]:
        touched = {key(score) for score in scores if score.row.id in found}
        left = [score for score in scores if key(score) in touched and score.row.id not in found]
        print_groups(f"{name}, without", grouped(left, key))


def _cell(scores: Sequence[RowScore], figure: str) -> str:
    found = summarize(scores, figure)
    if found is None:
        return f"{'-':>50}"
    shares = (found.median, found.p90, found.bias, found.coverage)
    text = f"{found.num_rows:>13}" + "".join(f"{100 * share:6.0f}" for share in shares)
    return f"{text}{found.width:7.2f}{found.interval_score:6.2f}"


_FAR_OFF, _FEW = 0.25, 5


def far_off(scores: Sequence[RowScore]) -> Iterator[tuple[str, str, Summary, str]]:
    """Kinds of servers whose median error exceeds 25 %, of at least five rows: name, figure, errors and cause."""
    causes = known_causes()
    for server, group in grouped(scores, lambda score: score.server.name).items():
        for figure in FIGURES:
            found = summarize(group, figure)
            if found is not None and found.num_rows >= _FEW and found.median > _FAR_OFF:
                yield server, figure, found, causes.get((server, figure), "not known")


def print_far_off(scores: Sequence[RowScore]) -> None:
    print(f"\nmedian above {100 * _FAR_OFF:.0f} %")
    for server, figure, found, cause in far_off(scores):
        print(f"{server:34} {figure:10} {100 * found.median:3.0f} % of {found.num_rows:3}: {cause}")


_OF_PAGE = ("what decides", "model kind and GPU", "engine", "year of the release", "known since")
_FEW_OF_PAGE = 15


def print_markdown(scores: Sequence[RowScore], baseline: Sequence[RowScore]) -> None:
    """Errors of groups of at least 15 rows, with the share that intervals hold and their width, and far off kinds."""
    print("| | TPOT | held, width | throughput | held, width | TTFT | held, width |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    groups: dict[str, Sequence[RowScore]] = {"all rows": scores}
    if baseline:
        groups["all rows, one factor"] = baseline
    for name, key in _GROUPINGS:
        if name in _OF_PAGE:
            found = {group: each for group, each in grouped(scores, key).items() if len(each) >= _FEW_OF_PAGE}
            groups |= {
                f"known since {group}" if name == "known since" else group: each for group, each in found.items()
            }
    for group, each in groups.items():
        print(f"| {group} | " + " | ".join(_markdown_cell(each, figure) for figure in FIGURES) + " |")
    print("\n| kind of server | figure | median error | cause |\n| --- | --- | --- | --- |")
    for server, figure, found_errors, cause in far_off(scores):
        print(f"| {server} | {figure} | {100 * found_errors.median:.0f} % of {found_errors.num_rows} | {cause} |")


def _markdown_cell(scores: Sequence[RowScore], figure: str) -> str:
    found = summarize(scores, figure)
    if found is None:
        return "| "
    errors = f"{100 * found.median:.0f} / {100 * found.p90:.0f} % of {found.num_rows}"
    return f"{errors} | {100 * found.coverage:.0f} %, {found.width:.1f}"


def print_rows(scores: Sequence[RowScore]) -> None:
    def worst_first(score: RowScore) -> float:
        return -max((abs(each.deviation) for each in score.figures.values()), default=0.0)

    for score in sorted(scores, key=worst_first):
        print(f"{score.row.id:18}{_setting(score.row)}  {_figures(score)}")


def _setting(row: PublishedRow) -> str:
    text = row.text
    load = text["max_concurrency"] or text["request_rate"]
    lengths = f"{text['input_len']}/{text['output_len']}"
    return (
        f"{text['engine'][:8]:9}{text['model'].rsplit('/')[-1][:26]:27}{text['quantization'][:8]:9}"
        f"{text['gpu_count']} x {text['gpu'][:14]:15}{lengths:14}{load[:12]:13}"
    )


def _figures(score: RowScore) -> str:
    return "  ".join(
        f"{name} {each.measured:,.1f} [{each.predicted.low:,.1f} {each.predicted.middle:,.1f} "
        f"{each.predicted.high:,.1f}] {100 * each.deviation:+.0f} %"
        for name, each in score.figures.items()
    )


if __name__ == "__main__":
    main()
