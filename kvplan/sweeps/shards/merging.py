"""The rows of all shards as the directory that one machine would have written, in the same order.

Each trial's row stands where the plan has it. A run that was repeated because the machine was busy is followed by its
rerun, as in a sweep of one machine; those that were repeated at the end stand at the end.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from kvplan.errors import KvplanError, UsageError
from kvplan.runs.answers.outliers import setting_key
from kvplan.runs.answers.summary import Summary, summarize
from kvplan.runs.directory import (
    MODEL,
    TRIALS,
    Manifest,
    ShardEntry,
    TrialRecord,
    lacking,
    read_sweep_manifest,
    read_trials,
)
from kvplan.runs.rows import REFERENCE_KERNELS
from kvplan.runs.storage.requests import read_requests
from kvplan.runs.storage.store import SweepStore
from kvplan.runs.trials import Trial
from kvplan.sweeps.shards.shard import MOST_SHARDS, plan_hash
from kvplan.units import plural

# Where a model or a file of requests lies may differ from machine to machine: their hashes are compared instead.
_OWN_OPTIONS: Final = frozenset({"shard", "model", "workload", "engine_python", "engine_command"})
_CIRCUMSTANCES: Final[Mapping[str, tuple[str, ...]]] = {
    "model": ("id", "config_sha256"),
    "workload": ("text", "sha256"),
    "device": ("kind", "name", "memory_bytes", "num_cores"),
    "settings": (),
    "planes": (),
    "commit": (),
}
_IGNORED_VERSIONS: Final = frozenset({"python"})
_NEEDED: Final = {
    "shard": ("number", "count", "plan_sha256"), "trials": (), "run_id": (), "created_at": (), "planes": (),
    "model": ("id", "config_sha256"), "settings": (), "device": ("kind", "name", "memory_bytes"),
}  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class ShardDirectory:
    """One shard's directory, as it was read. trials: those of the plan that it was to run."""

    directory: Path
    manifest: Manifest
    entry: ShardEntry
    trials: tuple[Trial, ...]
    records: tuple[TrialRecord, ...]


def read_part(directory: Path) -> ShardDirectory:
    """KvplanError if the directory holds no shard, or one that has not finished its trials."""
    manifest = read_sweep_manifest(directory)
    entry = manifest.get("shard")
    if entry is None:
        raise KvplanError(f"{directory} is a whole sweep, not a shard of one.", hint="leave it out")
    if missing := lacking(manifest, _NEEDED):
        raise KvplanError(f"{directory} cannot be merged: its manifest lacks {', '.join(missing)}.")
    if not 1 <= entry["number"] <= entry["count"] <= MOST_SHARDS:
        raise KvplanError(f"{directory} says that it is shard {entry['number']} of {entry['count']}.")
    records = read_trials(directory / TRIALS).records
    trials = tuple(Trial.from_json(record) for record in manifest["trials"])
    done = {record["row"]["trial_id"] for record in records}
    num_done = sum(trial.trial_id in done for trial in trials)
    if num_done < len(trials):
        raise KvplanError(
            f"{directory} has finished {num_done} of {plural(len(trials), 'trial')}.",
            hint=f"{shlex.join(['kvplan', 'sweep', '--resume', str(directory)])} runs the others",
        )
    part = ShardDirectory(directory, manifest, entry, trials, records)
    _refuse_foreign_rows(part)
    return part


def _refuse_foreign_rows(part: ShardDirectory) -> None:
    """Rows that are neither of the shard's trials nor reruns of them, or that are there twice."""
    planned = {trial.trial_id for trial in part.trials}
    seen: set[str] = set()
    for record in part.records:
        row = record["row"]
        if row["trial_id"] in seen:
            raise KvplanError(f"{part.directory} holds trial {row['trial_id']} twice.", hint=_REMOVE.format(TRIALS))
        seen.add(row["trial_id"])
        if row["trial_id"] not in planned and row.get("rerun_of") is None:
            raise KvplanError(
                f"{part.directory} holds trial {row['trial_id']}, which is not of its plan.",
                hint=_REMOVE.format(TRIALS),
            )


_REMOVE: Final = "remove its line from {}"


def refuse_unfit(parts: Sequence[ShardDirectory]) -> None:
    """KvplanError if the parts are of different sweeps, if one is there twice, or if one is missing."""
    first = parts[0]
    for part in parts[1:]:
        if (found := next(_differences(first.manifest, part.manifest), None)) is not None:
            name, one, other = found
            raise KvplanError(
                f"{part.directory} is a shard of another sweep than {first.directory}: {name} is {other} there, and "
                f"{one} here.",
                hint="merge shards of one sweep, run with the same options, version and kind of device; "
                "`kvplan report DIR DIR2` compares others",
            )
    by_number: dict[int, ShardDirectory] = {}
    for part in parts:
        twin = by_number.setdefault(part.entry["number"], part)
        if twin is not part:
            raise KvplanError(
                f"{twin.directory} and {part.directory} are both shard {part.entry['number']}/{part.entry['count']}.",
                hint="leave one of them out",
            )
    count = first.entry["count"]
    missing = [number for number in range(1, count + 1) if number not in by_number]
    if missing:
        listed = ", ".join(f"{number}/{count}" for number in missing)
        raise KvplanError(
            f"{'Shard' if len(missing) == 1 else 'Shards'} {listed} {'is' if len(missing) == 1 else 'are'} missing.",
            hint="give the directories of all shards",
        )
    _refuse_unlike_kernels(parts)
    if plan_hash(whole_plan(parts)) != first.entry["plan_sha256"]:
        raise KvplanError("The shards' trials do not make up the plan that they name.", hint="run them anew with --out")


def _refuse_unlike_kernels(parts: Sequence[ShardDirectory]) -> None:
    """KvplanError if plain torch computed some parts, and the engine's kernels others. Older rows do not say."""
    kernels = {part.directory: {record["row"].get("kernels") for record in part.records} - {None} for part in parts}
    slow = [directory for directory, names in kernels.items() if REFERENCE_KERNELS in names]
    fast = [directory for directory, names in kernels.items() if names - {REFERENCE_KERNELS}]
    if slow and fast:
        raise KvplanError(
            f"{slow[0]} was measured without the engine's kernels, and {fast[0]} with them: these do not compare.",
            hint=f"install a C++ compiler, such as g++, on the machine of {slow[0]}, and run that shard anew",
        )


def whole_plan(parts: Sequence[ShardDirectory]) -> tuple[Trial, ...]:
    """The trials of all parts in the order of the plan."""
    return tuple(sorted((trial for part in parts for trial in part.trials), key=lambda trial: trial.number))


def _differences(one: Manifest, other: Manifest) -> Iterator[tuple[str, object, object]]:
    """(what, in one, in the other) of all that shards of one sweep share."""
    first, second = _shared(one), _shared(other)
    for name in (*first, *(name for name in second if name not in first)):
        if first.get(name) != second.get(name):
            yield name, _written(first.get(name)), _written(second.get(name))


def _shared(manifest: Manifest) -> dict[str, Any]:
    entries = cast(Mapping[str, Any], manifest)
    versions = manifest.get("versions", {}).items()
    shared: dict[str, Any] = {f"version of {name}": value for name, value in versions if name not in _IGNORED_VERSIONS}
    for name, keys in _CIRCUMSTANCES.items():
        value = entries.get(name)
        shared |= {f"{name}.{key}": (value or {}).get(key) for key in keys} if keys else {name: value}
    options = entries.get("options", {})
    shared |= {f"--{name.replace('_', '-')}": value for name, value in options.items() if name not in _OWN_OPTIONS}
    entry = entries.get("shard", {})
    return shared | {"the number of shards": entry.get("count"), "the plan": entry.get("plan_sha256")}


def _written(value: object) -> str:
    text = "not given" if value in (None, {}, (), []) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
