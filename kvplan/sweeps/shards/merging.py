"""The rows of all shards as the directory that one machine would have written, in the same order.

Each trial's row stands where the plan has it. A run that was repeated because the machine was busy is followed by its
rerun, as in a sweep of one machine; those that were repeated at the end stand at the end.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from kvplan.errors import UsageError
from kvplan.runs.answers.outliers import setting_key
from kvplan.runs.answers.summary import Summary, summarize
from kvplan.runs.directory import MODEL, Manifest, TrialRecord
from kvplan.runs.storage.requests import read_requests
from kvplan.runs.storage.store import SweepStore
from kvplan.sweeps.shards.checks import ShardDirectory, read_part, refuse_unfit, whole_plan


@dataclass(frozen=True, slots=True)
class Merged:
    """What was written to ``directory``. num_shards: how many directories it was made from."""

    directory: Path
    summary: Summary
    num_shards: int


def merge_shards(directories: Sequence[Path], out: Path, *, command: str) -> Merged:
    """Write the whole sweep into ``out``, a new directory. Nothing is written if a shard is missing, unfinished, there
    twice or of another sweep: KvplanError says which."""
    if len(directories) < 2:
        raise UsageError("Merging needs at least two directories.", hint="give the directories of all shards")
    parts = [read_part(directory) for directory in directories]
    refuse_unfit(parts)
    parts.sort(key=lambda part: part.entry["number"])
    manifest = _manifest(parts, command)
    with SweepStore.create(out, manifest, can_be_continued=False) as store:
        model = parts[0].directory / MODEL
        if model.is_dir():
            shutil.copytree(model, out / MODEL, dirs_exist_ok=True)
        requests = {trial_id: lines for part in parts for trial_id, lines in read_requests(part.directory).items()}
        for number, record in enumerate(_ordered(parts), start=1):
            served = requests.get(record["row"]["trial_id"], [])
            store.append(_of_the_whole(record, manifest["run_id"], number), served)
        store.write_results()
        summary = summarize(manifest, store.rows)
        store.write_summary(summary)
    return Merged(out, summary, len(parts))


def _manifest(parts: Sequence[ShardDirectory], command: str) -> Manifest:
    """The first shard's, as it would be without ``--shard``."""
    first = parts[0].manifest
    own = {key: value for key, value in first.items() if key != "shard"}
    changes = {
        "run_id": first["run_id"].removesuffix(f"-1of{len(parts)}"),
        "created_at": min(part.manifest["created_at"] for part in parts),
        "command": command,
        "options": first["options"] | {"shard": None},
        "trials": [trial.as_json() for trial in whole_plan(parts)],
        "merged_from": [part.manifest["run_id"] for part in parts],
    }
    return cast(Manifest, own | changes)


def _ordered(parts: Sequence[ShardDirectory]) -> Iterator[TrialRecord]:
    """The records of all parts in the order of the plan, reruns after what they repeat or at the end."""
    rows: dict[str, TrialRecord] = {}
    following: dict[str, list[TrialRecord]] = {}
    late: list[tuple[int, TrialRecord]] = []
    numbers = {trial.trial_id: trial.number for part in parts for trial in part.trials}
    for part in parts:
        before = ""
        place = 0
        for record in part.records:
            trial_id = record["row"]["trial_id"]
            if trial_id in numbers:
                rows[trial_id] = record
                before, place = trial_id, numbers[trial_id]
            elif before and _repeats(record, rows[before]):
                following.setdefault(before, []).append(record)
            else:
                before = ""
                late.append((place, record))
    for trial_id in sorted(rows, key=numbers.__getitem__):
        yield rows[trial_id]
        yield from following.get(trial_id, ())
    yield from (record for _, record in sorted(late, key=lambda entry: entry[0]))


def _repeats(rerun: TrialRecord, run: TrialRecord) -> bool:
    """Whether ``rerun`` is of the same setting and names the run number of ``run``."""
    is_same = setting_key(rerun["row"]) == setting_key(run["row"])
    return is_same and rerun["row"]["rerun_of"] == run["row"]["run_number"]


def _of_the_whole(record: TrialRecord, run_id: str, number: int) -> TrialRecord:
    row = record["row"] | {"run_id": run_id, "trial_number": number}
    return {"schema": record["schema"], "row": row, "series": record["series"]}
