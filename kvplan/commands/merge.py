"""``kvplan merge``: the shards of a sweep as one run directory."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer


def merge(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Directories of all shards.")],
    out: Annotated[Path, typer.Option(help="Directory to write.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
) -> None:
    """Join the shards of a sweep (`kvplan sweep --shard K/N`) into the run directory of the whole.

    A shard that is missing, unfinished, given twice, or of another plan, model, device or version is refused.
    """
    from kvplan.commands.printing.render import print_json
    from kvplan.commands.printing.sweeps import print_written
    from kvplan.reports import write_reports
    from kvplan.sweeps.shards.merging import merge_shards
    from kvplan.units import plural

    merged = merge_shards(directories, out, command=shlex.join(["kvplan", *sys.argv[1:]]))
    print_written(out, write_reports(out))
    summary = merged.summary
    if as_json:
        print_json(summary)
        return
    counts = ", ".join(f"{count} {status}" for status, count in summary["status_counts"].items())
    print(f"{plural(merged.num_shards, 'shard')}, {plural(summary['num_finished'], 'trial')}: {counts}")
