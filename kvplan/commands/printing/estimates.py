"""How an estimate is printed: as a table, as JSON, as CSV, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvplan.commands.printing.estimate_parts import (
    held_formula,
    layout_lines,
    print_speculation,
    print_speeds,
    storage_formulas,
)
from kvplan.commands.printing.estimate_rows import (
    RANGE_HEAD,
    RANGE_MEANING,
    csv_rows,
    gpu_label,
    has_ranges,
    later_starts_note,
    limit_cell,
    print_comparison,
    print_ranges,
    range_cell,
    range_warnings,
)
from kvplan.commands.printing.render import (
    OutputFormat,
    print_csv,
    print_json,
    print_markdown,
    print_sentence,
    print_table,
    say,
)
from kvplan.estimate.answer import EstimateAnswer
from kvplan.estimate.cache_entries import KIND_NAMES
from kvplan.estimate.document import deployment_figures, estimate_document
from kvplan.estimate.kv_cache import KvCacheSize, KvComponent
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.placed.placement import SizedDeployment
from kvplan.estimate.sequence_pages import SequencePages
from kvplan.estimate.sglang import CONTEXT_BYTES as SGLANG_CONTEXT
from kvplan.units import format_bytes, format_gib, format_tokens

MANY_SCHEMA = "kvplan.estimates/1"


def print_estimates(answers: Sequence[EstimateAnswer], output_format: OutputFormat, *, explain: bool = False) -> None:
    """Print one answer in full, several as one table; ``explain`` adds every formula and assumption for people."""
    if output_format is OutputFormat.json:
        documents = [estimate_document(answer) for answer in answers]
        print_json(documents[0] if len(answers) == 1 else {"schema": MANY_SCHEMA, "estimates": documents})
    elif output_format is OutputFormat.csv:
        print_csv([row for answer in answers for row in csv_rows(answer)])
    elif len(answers) > 1 and not explain:
        print_comparison(answers, as_markdown=output_format is OutputFormat.md)
    else:
        for number, answer in enumerate(answers):
            say("\n" if number else "", end="")
            if output_format is OutputFormat.md:
                _print_markdown(answer)
            else:
                _print_text(answer, explain=explain)


_COLUMNS = {
    "memory": "device_memory_bytes",
    "weights": "weight_bytes",
    "activations": "activation_peak_bytes",
    "overhead": "overhead_bytes",
    "KV pool": "kv_pool_bytes",
    "KV tokens": "kv_cache_tokens",
    "sequences": "max_concurrency",
}
"""Heads of the table's columns, and the figures that stand in them."""
_HEAD = ("GPU", *_COLUMNS, "limit")
_PARTS = ("KV tokens",)
"""Where the table is cut on a narrow terminal: the account of the memory, and what it holds."""
_INDENT = " " * 12
_FURTHER = " " * 14
_MARKDOWN_HEAD = tuple(
    f"{head}, GiB" if _COLUMNS.get(head, "").endswith("_bytes") else head for head in _HEAD
)  # no title tells the unit there


def _deployment_table(answer: EstimateAnswer, head: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """(head, rows), with a column for the interval behind the tokens where there is one."""
    rows = _deployment_rows(answer)
    if not has_ranges(answer):
        return list(head), rows
    place = head.index("KV tokens") + 1
    shown = zip(rows, answer.deployments, strict=True)
    return (
        [*head[:place], RANGE_HEAD, *head[place:]],
        [[*row[:place], range_cell(deployment), *row[place:]] for row, deployment in shown],
    )


def _deployment_rows(answer: EstimateAnswer) -> list[list[str]]:
    rows = []
    for deployment in answer.deployments:
        figures = deployment_figures(deployment)
        cells = [_cell(name, figures[name]) for name in _COLUMNS.values()]
        rows.append([gpu_label(answer, deployment), *cells, limit_cell(deployment)])
    return rows


def _cell(figure: str, value: Any) -> str:
    if figure.endswith("_bytes"):
        return format_gib(value)
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def _print_text(answer: EstimateAnswer, *, explain: bool) -> None:
    spec = answer.spec
    print_sentence(
        f"{spec.title}: {spec.architecture}, {spec.num_layers} layers, {_parameters(answer)}", indent="", further="  "
    )
    say()
    _print_weights(answer, explain=explain)
    _print_cache(answer, explain=explain)
    if answer.deployments:
        say()
        _print_deployments(answer)
        if explain:
            for row in answer.deployments:
                print_sentence(_budget(answer, row), further="    ")
            print_ranges(answer)
        else:
            for note in filter(None, (later_starts_note(answer), *range_warnings(answer))):
                print_sentence(f"note: {note}", indent="", further="  ")
        print_speeds(answer, explain=explain)
    print_speculation(answer)
    if explain:
        say()
        say("Assumptions:" if answer.assumptions else "No assumptions.")
    for sentence in answer.assumptions if explain else answer.spec.assumptions:
        if explain:
            print_sentence(f"- {sentence}", further="    ")
        else:
            print_sentence(f"note: {sentence}", indent="", further="  ")


def _print_detail(text: str) -> None:
    """A line below a figure, which a narrow terminal shows in several."""
    print_sentence(text, indent=_INDENT, further=_FURTHER)


def _print_weights(answer: EstimateAnswer, *, explain: bool) -> None:
    weights = answer.weights
    formats = " + ".join(dict.fromkeys(each.format for each in weights.components if _is_large(answer, each.num_bytes)))
    print_sentence(f"Weights   {format_bytes(weights.total_bytes)} ({formats})", indent="", further=" " * 10)
    if explain or len(formats.split(" + ")) > 1:
        for each in weights.components:
            _print_detail(f"{each.kind}: {format_bytes(each.num_bytes)} = {each.formula}")
    if explain:
        held = (held_formula(answer.spec, each) for each in answer.deployments)
        for formula in filter(None, dict.fromkeys((*storage_formulas(answer.spec), *held))):
            _print_detail(formula)
    for extra in answer.spec.extras:
        count = "not counted" if extra.num_parameters is None else f"{extra.num_parameters:,} parameters"
        _print_detail(f"in addition, {extra.name}: {count}")


def _is_large(answer: EstimateAnswer, num_bytes: int) -> bool:
    return num_bytes * 50 > answer.weights.total_bytes


def _print_cache(answer: EstimateAnswer, *, explain: bool) -> None:
    cache, pages = answer.kept, answer.pages
    print_sentence(f"KV cache  {_cost_of_tokens(cache)} ({answer.kv_dtype})", indent="", further=" " * 10)
    for component in cache.components:
        _print_detail(f"{KIND_NAMES[component.kind]}: {_component_line(component)}")
    size = f"One sequence of {_tokens(answer.context_tokens)}: {format_bytes(cache.logical_bytes)}"
    if pages is None:
        say(size)
        return
    blocks = f"{format_bytes(pages.paged_bytes)} in whole blocks; {_admission(answer)} must be free to admit it"
    print_sentence(f"{size} ({blocks})", indent="", further="  ")
    if explain:
        _print_detail(f"logical: {_affine(answer)} = {cache.logical_bytes:,} B")
        _print_detail(f"paged: {pages.paged_formula} = {pages.paged_bytes:,} B{_over(answer, pages)}")
        for line in layout_lines(pages.layout, answer.context_tokens) if pages.layout else ():
            say(f"              {line}")
        for line in dict.fromkeys(_admission_line(answer, *each) for each in _admissions(answer)):
            _print_detail(line)


def _over(answer: EstimateAnswer, pages: SequencePages) -> str:
    """How much of the blocks the architecture does not need."""
    needed = answer.kept.logical_bytes
    return f", {100 * (pages.paged_bytes / needed - 1):.1f} % over logical" if needed else ""


def _admission_line(answer: EstimateAnswer, pages: SequencePages, tokens: int) -> str:
    """The formula, and the tokens in flight where they add to the blocks of a sequence that decodes."""
    line = f"admission: {pages.admission_formula} = {pages.admission_bytes:,} B"
    if pages.admission_blocks == pages.paged_blocks:
        return line
    batches = answer.in_flight_batches
    each = f": {batches} batches of {tokens // batches:,}" if batches > 1 else ""
    return f"{line} (with {tokens:,} tokens in flight{each})"


def _admissions(answer: EstimateAnswer) -> list[tuple[SequencePages, int]]:
    """The pages of the GPU with the fewest tokens in flight and, where they differ, of the one with the most."""
    both = ((answer.pages, answer.in_flight_tokens), (answer.most_pages, answer.most_in_flight_tokens))
    return list(dict.fromkeys((pages, tokens) for pages, tokens in both if pages is not None))


def _admission(answer: EstimateAnswer) -> str:
    """``4.00 GiB``, or ``3.91 GiB to 10.48 GiB`` where GPUs have different default batches."""
    return " to ".join(dict.fromkeys(format_bytes(pages.admission_bytes) for pages, _ in _admissions(answer)))


def _tokens(number: int) -> str:
    """``32k tokens``, ``1 token``."""
    return f"{format_tokens(number)} token" + ("s" if number != 1 else "")


def _cost_of_tokens(cache: KvCacheSize) -> str:
    """What one more token costs at this context, and what the rest of a sequence takes: full windows and states."""
    per_token = cache.next_token_bytes
    fixed = cache.logical_bytes - per_token * cache.context_tokens
    if fixed and not per_token:
        return f"{format_bytes(fixed)} per sequence, nothing for a further token"
    return f"{per_token:,} B per token" + (f" + {format_bytes(fixed)} per sequence" if fixed else "")


def _affine(answer: EstimateAnswer) -> str:
    """fixed + per token x context, with windows still open at this context written out."""
    terms = []
    for component in answer.kept.components:
        entry = component.entry
        if component.bytes_per_token:
            terms.append(f"{component.bytes_per_token:,} B x {answer.context_tokens:,}")
        elif component.window_bytes_per_token and entry.window_tokens is not None:
            kept = f"min({entry.window_tokens:,}, {answer.context_tokens:,})"
            terms.append(f"{component.window_bytes_per_token:,} B x {kept}")
        else:
            terms.append(f"{component.fixed_bytes:,} B")
    return " + ".join(terms) or "0 B"


def _print_deployments(answer: EstimateAnswer) -> None:
    engine = answer.deployments[0].engine
    context = _tokens(answer.context_tokens)
    head, rows = _deployment_table(answer, _HEAD)
    text_columns: tuple[int, ...] = (0, len(head) - 1)
    if not any(row[-1] for row in rows):
        head, rows, text_columns = head[:-1], [row[:-1] for row in rows], (0,)
    counts = {ParallelLayout.of(each.settings).num_gpus for each in answer.deployments}
    ranks = f" on {min(counts)} GPUs" if len(counts) == 1 and counts != {1} else ""
    unit = "GiB" if counts == {1} else "GiB per GPU"
    meaning = f"; {RANGE_MEANING}" if RANGE_HEAD in head else ""
    print_table(
        f"Sequences of {context} that fit at once, {engine}{ranks} ({unit}{meaning}):",
        head,
        rows,
        text_columns=text_columns,
        parts=_PARTS,
    )


def _budget(answer: EstimateAnswer, row: SizedDeployment) -> str:
    """How the pool comes about; where its size is given, what is left beside it."""
    whole, given = format_gib(row.settings.device_memory_bytes), row.settings.kv_cache_memory_bytes is not None
    used = (
        f"weights {format_gib(row.weight_bytes)} - activations {format_gib(row.activation_peak_bytes)} - "
        f"overhead {format_gib(row.overhead_bytes)}"
    )
    blocks = f"{row.num_blocks:,} blocks of {_block(answer, row)}"
    if given and row.engine != "kvplan":
        left = row.budget_bytes - row.weight_bytes - row.activation_peak_bytes - row.overhead_bytes - row.kv_pool_bytes
        pool = f"KV pool {format_gib(row.kv_pool_bytes)} as given"
        return f"{row.counted_gpu}: {whole} GiB - {used} - {pool} = {format_gib(left)} GiB left; {blocks}"
    if row.engine.startswith("sglang"):
        static = row.settings.gpu_memory_utilization
        images = row.overhead_bytes - SGLANG_CONTEXT
        kept = f" - {format_gib(images)} for images" if images > 0 else ""
        return (
            f"{row.counted_gpu}: ({whole} - {format_gib(SGLANG_CONTEXT)} context) x {static:.3g} mem_fraction_static = "
            f"{format_gib(row.budget_bytes)} GiB - weights {format_gib(row.weight_bytes)}{kept} = "
            f"{format_gib(row.kv_pool_bytes)} GiB; {row.kv_cache_tokens:,} tokens"
        )
    return (
        f"{row.counted_gpu}: {whole} x {row.settings.gpu_memory_utilization:g} = {format_gib(row.budget_bytes)} GiB "
        f"budget - {used} = {format_gib(row.kv_pool_bytes)} GiB = {blocks}"
    )


def _block(answer: EstimateAnswer, row: SizedDeployment) -> str:
    """What a block is: so many tokens or, where it is a part of them, bytes."""
    layout = answer.pages.layout if answer.pages else None
    if layout is None or layout.is_uniform:
        return f"{row.block_size} tokens"
    return format_bytes(layout.block_bytes)


def _parameters(answer: EstimateAnswer) -> str:
    total, active = answer.spec.num_parameters, answer.spec.num_active_parameters
    return f"{total:,} parameters" + (f", {active:,} active per token" if active != total else "")


def _component_line(component: KvComponent) -> str:
    if component.bytes_per_token:
        return f"{component.bytes_per_token:,} B per token = {component.formula}"
    if component.window_bytes_per_token:
        tokens = component.entry.window_tokens or 0
        return (
            f"{component.window_bytes_per_token:,} B per token up to {tokens:,} tokens = {component.formula} "
            f"(at most {format_bytes(component.fixed_bytes)})"
        )
    return f"{format_bytes(component.fixed_bytes)} per sequence = {component.formula}"


def _print_markdown(answer: EstimateAnswer) -> None:
    say(f"**{answer.spec.title}**: {_parameters(answer)}, weights {format_bytes(answer.weights.total_bytes)}")
    say()
    say(f"KV cache: {_cost_of_tokens(answer.kept)} ({answer.kv_dtype})")
    for component in answer.kept.components:
        say(f"- {KIND_NAMES[component.kind]}: {_component_line(component)}")
    say()
    print_markdown(*_deployment_table(answer, _MARKDOWN_HEAD))
    print_speculation(answer, as_markdown=True)
