"""Estimates as rows: one CSV line per deployment, and the table that compares models, formats and contexts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvplan.commands.printing.render import print_markdown, print_sentence, print_table, say
from kvplan.estimate.answer import EstimateAnswer
from kvplan.estimate.document import deployment_figures
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.placed.placement import SizedDeployment
from kvplan.units import format_bytes, format_gib, format_tokens

RANGE_HEAD = "+/-"
RANGE_MEANING = f"{RANGE_HEAD} is a 90 % interval"


def has_ranges(answer: EstimateAnswer) -> bool:
    """Whether any deployment has an interval wider than a point."""
    return any(_has_width(each) for each in answer.deployments)


def _has_width(deployment: SizedDeployment) -> bool:
    return deployment.kv_range is not None and bool(deployment.kv_range.causes)


def range_cell(deployment: SizedDeployment) -> str:
    """``1.2 %``: how far the KV tokens can lie from what is predicted; blank without an interval.

    ``x 2.6`` where that is more, ``0 to 37,000`` where there may be none at all.
    """
    found, tokens = deployment.kv_cache_tokens_range, deployment.kv_cache_tokens
    if found is None or not tokens or not _has_width(deployment):
        return ""
    low, high = found
    if low <= 0:
        return f"0 to {high:,}"
    share = max(tokens - low, high - tokens) / tokens
    return f"{100 * share:.1f} %" if share < 1 else f"x {1 + share:.1f}"


def limit_cell(deployment: SizedDeployment) -> str:
    """What stands in the way, for certain or at the low end of the interval; blank where nothing does."""
    if not deployment.fits:
        return deployment.limit or "does not fit"
    seqs, asked = deployment.most_num_seqs_range, deployment.settings.max_num_seqs
    if seqs is not None and 0 < seqs[0] < asked:
        return f"may be refused: max_num_seqs {asked:,}, {seqs[0]:,} to {seqs[1]:,} state blocks"
    found = deployment.max_concurrency_range
    return "may not fit: at the low end there is no room for one sequence" if found is not None and found[0] < 1 else ""


def print_ranges(answer: EstimateAnswer) -> None:
    """The interval of every deployment and what it comes from, in GiB of one GPU."""
    for deployment in answer.deployments:
        found = deployment.kv_range
        if found is None or not found.causes:
            continue
        (low, high), (few, many) = found.pool_bytes, found.tokens
        pool = f"{format_gib(low)} to {format_gib(high)} GiB of KV pool, {few:,} to {many:,} tokens"
        print_sentence(
            f"{deployment.counted_gpu}: 9 of 10 start-ups have {pool}; each cause alone (they add as squares):",
            further="    ",
        )
        for each in found.causes:
            print_sentence(f"{RANGE_HEAD} {format_gib(each.num_bytes)} {each.sentence}", indent="    ", further=" " * 6)
        if found.later_start_bytes:
            more = f"{format_gib(found.later_start_bytes)} GiB more, which is not in the interval"
            print_sentence(f"a later start, which finds its kernels compiled: {more}", indent="    ", further=" " * 6)
        if found.known is not None:
            print_sentence(found.known.sentence, indent="    ", further=" " * 6)


def later_starts_note(*answers: EstimateAnswer) -> str | None:
    """What later starts have beside the intervals that are shown, where that is more than half of one."""
    deployments = (each for answer in answers for each in answer.deployments if range_cell(each))
    ranges = (each.kv_range for each in deployments if each.kv_range is not None)
    gains = [
        within.later_start_bytes
        for within in ranges
        if 2 * within.later_start_bytes > within.pool_bytes[1] - within.pool_bytes[0]
    ]
    if not gains:
        return None
    low, high = format_gib(min(gains)), format_gib(max(gains))
    more = low if low == high else f"{low} to {high}"
    return f"{RANGE_HEAD} is of a first start; a later one has {more} GiB more for KV (--warm-start)."


def range_warnings(answer: EstimateAnswer) -> tuple[str, ...]:
    """Return what nobody has compared of these deployments, each sentence once."""
    known = (each.kv_range.known for each in answer.deployments if each.kv_range is not None)
    return tuple(dict.fromkeys(each.warning for each in known if each is not None and each.warning is not None))


def csv_rows(answer: EstimateAnswer) -> list[dict[str, object]]:
    """One row per deployment: what was asked, what a token costs in bytes, and the deployment's figures."""
    question = {
        "model": answer.spec.short_id,
        "served": answer.spec.served_id,
        "sized_as": answer.spec.sized_as,
        "context_tokens": answer.context_tokens,
        "dtype": answer.dtype,
        "weight_format": weight_format(answer),
        "kv_cache_dtype": answer.kv_dtype,
        "bytes_per_token": answer.kept.bytes_per_token,
        "fixed_bytes_per_sequence": answer.kept.fixed_bytes_per_sequence,
        "logical_bytes": answer.kept.logical_bytes,
    }
    rows = []
    for deployment in answer.deployments:
        served = {"dtype": deployment.settings.dtype, "kv_cache_dtype": deployment.settings.kv_cache_dtype}
        rows.append(question | served | deployment_figures(deployment))
    return rows


def weight_format(answer: EstimateAnswer) -> str:
    """The format that most of the weights are stored in."""
    counts: dict[str, int] = {}
    for each in answer.weights.components:
        counts[each.format] = counts.get(each.format, 0) + each.num_elements
    return max(counts, key=lambda name: counts[name])


def gpu_label(answer: EstimateAnswer, deployment: SizedDeployment) -> str:
    """``h200``; ``8 x h200`` where the answer has deployments of several sizes."""
    counts = {ParallelLayout.of(each.settings).num_gpus for each in answer.deployments}
    return deployment.gpu if len(counts) == 1 else deployment.counted_gpu


_Cell = Callable[[EstimateAnswer, SizedDeployment], str]
_COLUMNS: tuple[tuple[str, _Cell], ...] = (
    ("model", lambda answer, _: answer.spec.served_id.rsplit("/", 1)[-1]),
    ("weights", lambda answer, _: weight_format(answer)),
    ("KV cache", lambda answer, _: answer.kv_dtype),
    ("context", lambda answer, _: format_tokens(answer.context_tokens)),
    ("B/token", lambda answer, _: f"{answer.kept.next_token_bytes:,}"),
    ("per sequence", lambda answer, _: format_bytes(answer.kept.logical_bytes)),
    ("GPU", lambda _, found: found.counted_gpu),
    ("weights GiB", lambda _, found: format_gib(found.weight_bytes)),
    ("KV pool GiB", lambda _, found: format_gib(found.kv_pool_bytes)),
    ("KV tokens", lambda _, found: f"{found.kv_cache_tokens:,}"),
    (RANGE_HEAD, lambda _, found: range_cell(found)),
    ("sequences", lambda _, found: f"{found.max_concurrency:,.1f}"),
    ("limit", lambda _, found: limit_cell(found)),
)
_TEXT = ("model", "weights", "KV cache", "GPU", "limit")
_ONLY_WHERE_THEY_DIFFER = ("weights", "KV cache", "limit")


def _is_shown(name: str, cells: Sequence[str]) -> bool:
    return name not in _ONLY_WHERE_THEY_DIFFER or len(set(cells)) > 1


def print_comparison(answers: Sequence[EstimateAnswer], *, as_markdown: bool) -> None:
    """One row per model, format, context and GPU. Formats are a column where there are several."""
    pairs = [(answer, deployment) for answer in answers for deployment in answer.deployments]
    columns = [(name, [cell(*pair) for pair in pairs]) for name, cell in _COLUMNS]
    shown = [(name, cells) for name, cells in columns if any(cells) and _is_shown(name, cells)]
    head = [name for name, _ in shown]
    rows = [list(row) for row in zip(*(cells for _, cells in shown), strict=True)]
    if as_markdown:
        print_markdown(head, rows)
        _print_titles(answers)
        return
    engine = answers[0].deployments[0].engine
    text_columns = tuple(index for index, name in enumerate(head) if name in _TEXT)
    meaning = f"; {RANGE_MEANING}" if RANGE_HEAD in head else ""
    title = f"Sequences that fit at once, {engine} (weights and KV pool per GPU{meaning}):"
    print_table(title, head, rows, text_columns=text_columns, parts=("weights GiB",))
    note = later_starts_note(*answers)
    if note is not None:
        print_sentence(f"note: {note}", indent="", further="  ")
    _print_titles(answers)


def _print_titles(answers: Sequence[EstimateAnswer]) -> None:
    """Print whose shape stands behind a name of the table, where it is another checkpoint's."""
    sized = dict.fromkeys(answer.spec.title for answer in answers if answer.spec.sized_as is not None)
    if sized:
        say()
    for title in sized:
        print_sentence(title, indent="", further="  ")
