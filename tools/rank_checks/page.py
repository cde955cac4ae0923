"""The page that tools/check_ranks.py writes."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.machine.host import cpu_name
from rank_checks.killed import Death
from rank_checks.tokens import Row

_HEAD = """# What several ranks answer, beside one process

Written by `make check-ranks` on {cpu}; torch {torch}, gloo over loopback. Each row is an engine of
`ranks` x `stages` processes in float32, asked what one process was asked: prompts over a pool too small for them, once
with the prefix cache, chunked prompts and swapping in blocks of 16, once without them in blocks of 1, where preempted
sequences are computed again. That sequences were preempted, swapped, cached and computed in chunks is checked.
SmolLM2-135M has trained weights and reads English; the others are small and random. Blocks: what each rank then
allocated in 80 % of its memory, which the planner and an engine that only counts had predicted to the block and byte.

| model | ranks | stages | greedy tokens as in one process | blocks of each rank |
| --- | --- | --- | --- | --- |"""
_KILLED = """## A rank that is killed

`kvplan sweep` of two trials; the last rank is ended by SIGKILL while the first trial is served.

| ranks | row | error | seconds until the row | next trial |
| --- | --- | --- | --- | --- |"""


def page(rows: Sequence[Row], deaths: Sequence[Death], torch_version: str) -> str:
    """Markdown, with everything that was not as it should be at its end."""
    lines = [_HEAD.format(cpu=cpu_name(), torch=torch_version), *map(_line, rows)]
    if deaths:
        lines += ["", _KILLED]
    for death in deaths:
        cells = (f"{death.num_ranks}", f"`{death.status}`", death.error, f"{death.seconds:.1f}", f"`{death.after}`")
        lines.append(f"| {' | '.join(cells)} |")
    wrong = problems(rows, deaths)
    return "\n".join([*lines, "", "## Not as expected", "", *(wrong or ["Nothing."])]) + "\n"


def _line(row: Row) -> str:
    ranks, stages = row.grid
    tokens = f"refused: {row.refusal}" if row.refusal else f"{row.num_equal} of {row.num_tokens}"
    return f"| {row.model} | {ranks} | {stages} | {tokens} | {'' if row.refusal else row.num_blocks} |"


def problems(rows: Sequence[Row], deaths: Sequence[Death]) -> list[str]:
    """One line for each thing that was not as it should be."""
    of_rows = [f"- {row.model}, {row.grid[0]} x {row.grid[1]}: {row.problem}" for row in rows if row.problem]
    return of_rows + [f"- killed, {death.num_ranks} ranks: {death.problem}" for death in deaths if death.problem]
