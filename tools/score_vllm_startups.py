"""Scores the vLLM model against start-ups whose logs people published. Run: python tools/score_vllm_startups.py

    --csv FILE     rows (default tests/data/vllm_startups.csv; the columns are described in tests/data/README.md)
    --models FILE  configs of models that no profile ships
    --rows         one line per row, worst first
    --groups       the errors by source and by version, to see where a constant drifts
    --kinds        the errors by kind of deployment: set, format, layers, drafter, GPU family, release ...
    --write-ranges  profiles/errors/startups.json, from which the interval is made
    --ranges       how many start-ups lie in their 90 % interval, with spreads fitted to the other sources and to all

Grade A rows are predicted end to end (weights, available memory, tokens), grade B rows from the observed memory to
tokens, and every row that failed for lack of memory must be predicted not to fit. Settings that a row does not state
take the version's default. No constant of the model is chosen per row or per model.

A row whose version names a build that is neither a release nor a commit of vllm-project/vllm ran other code than is
modelled here. Such rows are counted with the others and without them, and each is printed with its error.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from kvplan.catalog.releases.vllm import is_modified_build, vllm_release  # noqa: E402
from kvplan.catalog.startup_errors import FILE  # noqa: E402
from kvplan.errors import KvplanError  # noqa: E402
from kvplan.estimate.speed.queueing.figures import quantile  # noqa: E402
from kvplan.estimate.vllm.kinds import deployment_kinds  # noqa: E402
from kvplan.estimate.vllm.prediction import VllmPrediction, fill_pool, predict_vllm  # noqa: E402
from kvplan.paths import profiles_dir  # noqa: E402
from kvplan.units import GIB  # noqa: E402
from startup_kinds import Placed, print_kinds, row_set  # noqa: E402
from startup_ranges import Startup, print_ranges, read_first_sight, read_startups, write_ranges  # noqa: E402
from startup_rows import (  # noqa: E402
    Row,
    is_campaign,
    is_newest,
    load_models,
    number,
    read_rows,
    row_activation_gib,
    row_gpu,
    row_graph_estimate_gib,
    row_settings,
    row_source,
    row_spec,
    row_version,
)

DATA = ROOT / "tests" / "data"
FIRST_SIGHT = DATA / "vllm_startups_first_sight.csv"


_STARTED = ("stopped after the pool was sized", "killed later")
"""Outcomes that have nothing to do with the GPU's memory."""


@dataclass(frozen=True, slots=True)
class RowScore:
    """One row against its prediction. Errors are relative, None where the row does not state the figure.

    ``token_deviation`` keeps its sign: positive where more tokens are predicted than there were.
    """

    id: str
    grade: str
    campaign: bool
    newest: bool
    modified: bool
    source: str
    version: str
    model: str
    reason: str | None
    weight_error: float | None = None
    memory_error: float | None = None
    token_error: float | None = None
    token_deviation: float | None = None
    failed: bool = False
    predicted_to_fit: bool | None = None
    observed_tokens: float | None = None
    detail: str = ""
    placed: Placed | None = None


def score_rows(rows: Iterable[Row], models: dict[str, dict[str, object]]) -> list[RowScore]:
    return [_score(row, models) for row in rows]


def _score(row: Row, models: dict[str, dict[str, object]]) -> RowScore:
    grade = row["inferred"].strip()[1:2]
    base = {
        "id": row["id"],
        "grade": grade,
        "campaign": is_campaign(row),
        "newest": is_newest(row),
        "modified": is_modified_build(row["vllm_version"]),
        "source": row_source(row),
        "version": ".".join(map(str, vllm_release(row_version(row)).version[:2])),
        "model": row["model"],
        "failed": row["outcome"] != "ok" and not row["outcome"].startswith(_STARTED),
    }
    if "Embedding" in row["model"]:
        return RowScore(reason="an embedding model: it generates no text and its run samples nothing", **base)  # type: ignore[arg-type]
    try:
        spec = row_spec(row, models)
        gpu = row_gpu(row)
        settings = row_settings(row)
        predicted = predict_vllm(spec, gpu, settings, row_version(row))
    except KvplanError as error:
        return RowScore(reason=error.message, **base)  # type: ignore[arg-type]
    base["placed"] = Placed(row, deployment_kinds(spec, gpu, predicted))
    observed = number(row["available_kv_gib"])
    if grade == "B" and observed is not None:
        refilled = fill_pool(predicted.rank, int(observed * GIB), predicted.settings, vllm_release(row_version(row)))
        return _compared(row, base, refilled, end_to_end=False)
    return _compared(row, base, predicted, end_to_end=grade == "A")


def _compared(row: Row, base: dict[str, object], predicted: VllmPrediction, *, end_to_end: bool) -> RowScore:
    rank = predicted.rank
    available = number(row["available_kv_gib"])
    tokens, blocks = number(row["kv_cache_tokens"]), number(row["num_gpu_blocks"])
    deviation = _deviation(predicted.kv_cache_tokens, tokens)
    if deviation is None:
        deviation = _deviation(predicted.num_blocks, blocks)
    if base["grade"] == "C":
        deviation = None
    memory_error = _error(rank.available_kv_bytes / GIB, available) if end_to_end else None
    graphs = f"{_said(row_graph_estimate_gib(row))}; took {row['cudagraph_gib']}"
    detail = (
        f"weights {rank.weight_bytes / GIB:.2f} ({row['weights_gib']}), activation "
        f"{rank.activation.peak_bytes / GIB:.2f} {rank.activation.decided_by} ({_said(row_activation_gib(row))}), "
        f"non-torch {rank.non_torch_bytes / GIB:.2f} ({row['non_torch_gib']}), graphs {rank.cudagraph_bytes / GIB:.2f} "
        f"({graphs}), KV {rank.available_kv_bytes / GIB:.2f} ({row['available_kv_gib']}), "
        f"tokens {predicted.kv_cache_tokens} ({row['kv_cache_tokens']}), blocks {predicted.num_blocks} "
        f"({row['num_gpu_blocks']}), concurrency {predicted.max_concurrency:.2f} ({row['max_concurrency_x']}), "
        f"{predicted.outcome}"
    )
    return RowScore(
        reason=None,
        weight_error=_error(rank.weight_bytes / GIB, number(row["weights_gib"])),
        memory_error=memory_error,
        token_error=None if deviation is None else abs(deviation),
        token_deviation=deviation,
        predicted_to_fit=predicted.fits,
        observed_tokens=tokens,
        detail=detail,
        **base,  # type: ignore[arg-type]
    )


def _said(gib: float | None) -> str:
    return "" if gib is None else f"{gib:.2f}"


def _deviation(predicted: float, observed: float | None) -> float | None:
    if observed is None or observed == 0:
        return None
    return (predicted - observed) / abs(observed)


def _error(predicted: float, observed: float | None) -> float | None:
    deviation = _deviation(predicted, observed)
    return None if deviation is None else abs(deviation)


@dataclass(frozen=True, slots=True)
class Summary:
    """Median and 90th percentile of |error| over the rows of one set that state the figure."""

    name: str
    num_rows: int
    num_scored: int
    weights: tuple[float, float] | None
    memory: tuple[float, float] | None
    tokens: tuple[float, float] | None


def _spread(values: list[float]) -> tuple[float, float] | None:
    return (statistics.median(values), quantile(sorted(values), 0.9)) if values else None


def summarize(name: str, scores: Sequence[RowScore]) -> Summary:
    return Summary(
        name=name,
        num_rows=len(scores),
        num_scored=sum(1 for score in scores if score.reason is None),
        weights=_spread([score.weight_error for score in scores if score.weight_error is not None]),
        memory=_spread([score.memory_error for score in scores if score.memory_error is not None]),
        tokens=_spread([score.token_error for score in scores if score.token_error is not None]),
    )


def summaries(scores: Sequence[RowScore]) -> list[Summary]:
    whole = [score for score in scores if score.grade == "A"]
    plain = [score for score in whole if not score.modified]
    sets = {
        "A, campaign": [score for score in plain if score.campaign],
        "A, other sources": [score for score in plain if not score.campaign and not score.newest],
        "  and modified builds": [score for score in whole if not score.campaign and not score.newest],
        "A, newest": [score for score in plain if score.newest],
        "B, memory to tokens": [score for score in scores if score.grade == "B"],
        "C, partial": [score for score in scores if score.grade == "C"],
    }
    return [summarize(name, rows) for name, rows in sets.items() if rows]


def failures(scores: Sequence[RowScore]) -> tuple[list[RowScore], list[RowScore]]:
    """(rows that failed for lack of memory and were scored, those of them predicted to fit)."""
    failed = [score for score in scores if score.failed and score.reason is None]
    return failed, [score for score in failed if score.predicted_to_fit]


def _percent(pair: tuple[float, float] | None) -> str:
    return f"{pair[0] * 100:6.2f} % {pair[1] * 100:7.2f} %" if pair else f"{'-':>8} {'-':>9}"


def print_report(scores: Sequence[RowScore], *, per_row: bool) -> None:
    if per_row:
        for score in sorted(scores, key=lambda score: -(score.token_error or score.weight_error or 0)):
            errors = [score.weight_error, score.memory_error, score.token_error]
            text = " ".join("      -" if error is None else f"{error * 100:6.2f}%" for error in errors)
            print(f"{score.id} {score.grade}{'c' if score.campaign else ' '} {text} {score.model[:44]:44s} ", end="")
            print(score.reason or score.detail)
        print()
    print(f"{'|error|: median, p90':24s} {'scored':>10} {'weights':>19} {'available KV':>19} {'KV tokens':>19}")
    for item in summaries(scores):
        share = f"{item.num_scored}/{item.num_rows}"
        columns = "  ".join(_percent(pair) for pair in (item.weights, item.memory, item.tokens))
        print(f"{item.name:24s} {share:>10}  {columns}")
    _print_first_sight(scores)
    _print_modified(scores)
    failed, wrong = failures(scores)
    print(f"failed for lack of memory: {len(failed) - len(wrong)} of {len(failed)} predicted not to fit")
    for score in wrong:
        print(f"  predicted to fit: {score.id} {score.model}")
    left_out = [score for score in scores if score.reason is not None]
    print(f"not scored: {len(left_out)} of {len(scores)}")
    for score in left_out:
        print(f"  {score.id} {score.model}: {score.reason}")


def first_sight_errors(scores: Sequence[RowScore]) -> list[float]:
    """|error| of KV tokens of the newest rows of grade A, as predicted before anything was mended for them."""
    first = read_first_sight(FIRST_SIGHT)
    newest = (score for score in scores if score.newest and score.grade == "A" and not score.modified)
    return [
        abs(first[score.id].tokens / score.observed_tokens - 1)
        for score in newest
        if score.id in first and score.observed_tokens and first[score.id].tokens
    ]


def _print_first_sight(scores: Sequence[RowScore]) -> None:
    errors = first_sight_errors(scores)
    if errors:
        print(f"{'  at first sight':24s} {len(errors):>10}  {'':42s}{_percent(_spread(errors))}")


def _print_modified(scores: Sequence[RowScore]) -> None:
    modified = [score for score in scores if score.modified and score.reason is None]
    if modified:
        print(f"builds that are neither a release nor a commit of vLLM: {len(modified)} rows")
    for score in modified:
        print(f"  {score.id} {score.version} {score.model}: tokens {_signed(score.token_deviation)}")


def _signed(deviation: float | None) -> str:
    return "not observed" if deviation is None else f"{deviation * 100:+.2f} %"


def print_groups(scores: Sequence[RowScore]) -> None:
    """Grade A end to end, by source and by version: tokens predicted less observed, and the rest's p90 without them."""
    scored = [score for score in scores if score.grade == "A" and score.token_deviation is not None]
    others = [score for score in scored if not score.campaign and not score.modified]
    for title, key in (("source", lambda score: score.source), ("version", lambda score: score.version)):
        print(f"\nKV tokens by {title:44s} {'rows':>4}  {'mean':>9}  {'furthest':>9}  p90 of the other rows of A")
        for name in sorted({key(score) for score in scored}, key=_in_order):
            _print_group(name, [score for score in scored if key(score) == name], others)


def _in_order(name: str) -> tuple[list[int], str]:
    return [int(part) for part in name.split(".") if part.isdigit()], name


def _print_group(name: str, group: Sequence[RowScore], others: Sequence[RowScore]) -> None:
    deviations = [score.token_deviation or 0.0 for score in group]
    rest = [score.token_error or 0.0 for score in others if score not in group]
    furthest = max(deviations, key=abs)
    without = f"{quantile(sorted(rest), 0.9) * 100:.2f} %" if rest else "-"
    mean = statistics.fmean(deviations)
    print(f"  {name[:55]:55s} {len(group):4d}  {_signed(mean):>9}  {_signed(furthest):>9}  {without}")


def print_by_kind(scores: Sequence[RowScore]) -> None:
    """Grade A end to end, by kind: of all sets together, and of those beside the campaign."""
    found = [
        (score.placed, score.token_deviation)
        for score in scores
        if score.grade == "A" and not score.modified and score.placed and score.token_deviation is not None
    ]
    print_kinds("KV tokens by kind, all sets", found)
    outside = [(placed, error) for placed, error in found if row_set(placed.row) != "campaign"]
    print_kinds("KV tokens by kind, no campaign", outside)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--csv", type=Path, default=DATA / "vllm_startups.csv")
    parser.add_argument("--models", type=Path, default=DATA / "vllm_startup_models.json")
    parser.add_argument("--rows", action="store_true", help="one line per row, worst first")
    parser.add_argument("--groups", action="store_true", help="errors by source and by version")
    parser.add_argument("--kinds", action="store_true", help="errors by kind of deployment")
    parser.add_argument("--ranges", action="store_true", help="how many start-ups lie in their 90 %% interval")
    parser.add_argument("--write-ranges", action="store_true", help="write what the interval is made from")
    arguments = parser.parse_args()
    rows, models = read_rows(arguments.csv), load_models(arguments.models)

    def startups() -> list[Startup]:
        return read_startups(rows, models, read_first_sight(FIRST_SIGHT))

    scores = score_rows(rows, models)
    print_report(scores, per_row=arguments.rows)
    if arguments.groups:
        print_groups(scores)
    if arguments.kinds:
        print_by_kind(scores)
    if arguments.ranges:
        print_ranges(startups())
    if arguments.write_ranges:
        write_ranges(startups(), profiles_dir() / FILE)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
