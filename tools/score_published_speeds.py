"""Scores predicted speeds against published measurements. Run: python tools/score_published_speeds.py

    --csv FILE          rows (default tools/published_speeds/speeds.csv, described beside it)
    --held-out FILE     further rows with the same columns, scored and printed apart
    --calibration NAME  as in `kvplan plan`: a measured profile, or none for the data sheets alone
    --grades AB         grades that are scored (default A and B)
    --leave-out WHAT    gpu: each row without the tables of its own GPU (those of the most alike one are scaled, else
                        its data sheet); model: intervals learned without rows of its model, instead of its source
    --write-intervals   keep the intervals of these rows as those that `kvplan plan` shows
    --rows              one line per row, the worst TPOT first
    --reasons           why rows are not scored

For each group: rows, median and 90th percentile of |predicted / measured - 1|, its median with sign, how many
measurements lie in the interval (of CSV's rows in one that was learned without their source, of further rows in the one
that ships), and how many are 0.7 to 1.3 times what is predicted. TPOT is the mean over requests, where it was
published, else the median; TTFT the median, else the mean. The last tables are of the groups with a row that
its own source contradicts (published_speeds/hindered.py), without such rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from kvplan.catalog.devices.measured import MeasuredProfiles, load_measured  # noqa: E402
from kvplan.catalog.published_errors import FILE  # noqa: E402
from kvplan.errors import KvplanError  # noqa: E402
from kvplan.paths import profiles_dir  # noqa: E402
from published_speeds.copies import copied_rows  # noqa: E402
from published_speeds.hindered import hindered_rows  # noqa: E402
from published_speeds.intervals import held_out, source_of, write_intervals  # noqa: E402
from published_speeds.models import gpu_named  # noqa: E402
from published_speeds.rows import PUBLISHED, PublishedRow, read_rows  # noqa: E402
from published_speeds.scores import FIGURES, RowScore, bar_group, grouped, score_row, summarize  # noqa: E402

_GROUPINGS: tuple[tuple[str, Callable[[RowScore], str]], ...] = (
    ("all", lambda score: "all rows"),
    ("as bars are set", bar_group),
    ("model kind and GPU", lambda score: f"{score.kind}, {score.generation}"),
    ("origin", lambda score: score.origin),
    ("engine", lambda score: score.engine),
    ("GPU", lambda score: score.gpu),
    ("source", lambda score: score.row.source),
)


def main() -> None:
    arguments = _parser().parse_args()
    measured = load_measured(arguments.calibration)
    left_out = arguments.leave_out
    for path in (arguments.csv, *arguments.held_out):
        rows = read_rows(path)
        copies = copied_rows(row for row in (*read_rows(PUBLISHED), *rows) if isinstance(row, PublishedRow))
        asked = [row for row in rows if isinstance(row, str) or row.grade in arguments.grades]
        results = [_scored(row, copies, _known(row, measured, left_out)) for row in asked]
        scores = [result for result in results if isinstance(result, RowScore)]
        if path == arguments.csv:
            if arguments.write_intervals:
                write_intervals(scores, profiles_dir() / FILE)
            scores = held_out(scores, (lambda each: each.row.text["model"]) if left_out == "model" else source_of)
        reasons = [result for result in results if isinstance(result, str)]
        print(f"{path.name}: {len(rows)} rows, {len(scores)} scored (grades {', '.join(arguments.grades)})")
        if arguments.reasons:
            print("\n".join(reasons))
        if arguments.rows:
            print_rows(scores)
        for name, key in _GROUPINGS:
            print_groups(name, grouped(scores, key))
        print_without_hindered(scores)


def _scored(row: PublishedRow | str, copies: Mapping[str, str], known: MeasuredProfiles) -> RowScore | str:
    """A row's score, or why it has none."""
    if isinstance(row, str):
        return row
    if row.id in copies:
        return f"{row.id}: its figures are those of {copies[row.id]} to the digit, which is of a slower GPU"
    return score_row(row, known)


def _known(row: PublishedRow | str, measured: MeasuredProfiles, left_out: str | None) -> MeasuredProfiles:
    """The profiles, without those of the row's GPU where these are left out."""
    if left_out != "gpu" or isinstance(row, str):
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
    parser.add_argument("--calibration")
    parser.add_argument("--grades", default="AB")
    parser.add_argument("--leave-out", choices=("gpu", "model"))
    parser.add_argument("--write-intervals", action="store_true")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--reasons", action="store_true")
    return parser


def print_groups(name: str, groups: dict[str, list[RowScore]]) -> None:
    """A table: one line per group, three figures of six columns."""
    columns = "".join(f" | {figure:>10}: n  med%  p90%  bias%  held%   30%" for figure in FIGURES)
    print(f"\n{name:34}{columns}")
    for group, scores in groups.items():
        print(f"{group:34}" + "".join(f" | {_cell(scores, figure)}" for figure in FIGURES))


def print_without_hindered(scores: Sequence[RowScore]) -> None:
    found = hindered_rows(score.row for score in scores)
    if not found:
        return
    pairs = ", ".join(f"{row} by {other}" for row, other in sorted(found.items()))
    print(f"\ncontradicted by their own source: {pairs}")
    for name, key in _GROUPINGS[:3]:
        touched = {key(score) for score in scores if score.row.id in found}
        left = [score for score in scores if key(score) in touched and score.row.id not in found]
        print_groups(f"{name}, without", grouped(left, key))


def _cell(scores: Sequence[RowScore], figure: str) -> str:
    found = summarize(scores, figure)
    if found is None:
        return f"{'-':>43}"
    shares = (found.median, found.p90, found.bias, found.coverage, found.near)
    return f"{found.num_rows:>13}" + "".join(f"{100 * share:6.0f}" for share in shares)


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
