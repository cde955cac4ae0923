"""A run directory: the names of its files, what each of them holds, and how to read it strictly.

JSON is UTF-8; a missing figure is ``null`` in JSON and an empty cell in the CSV.

``trials.jsonl``   one ``TrialRecord`` per line and finished trial, in the order in which they ended
``requests.jsonl`` one ``RequestLine`` of kvplan.runs.request_lines per request of these trials
``results.csv``    the rows alone, one column per entry of ``Row``, in the same order
``manifest.json``  ``Manifest``: settings, versions, device, planes, and the list of columns
``summary.json``   ``Summary`` of kvplan.runs.answers.summary: best settings, boundaries, KV waste, prediction errors
``worker.log``     what the worker processes wrote to stderr
``model/``         the config.json that random weights were made from

A sweep that continues reads its directory here and refuses damage. A report reads it through
``kvplan.runs.storage.reader``, which works with whatever is left.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict, cast

from kvplan.errors import KvplanError
from kvplan.files import parse_json
from kvplan.runs.columns import Row
from kvplan.runs.rows import as_written_now, empty_row
from kvplan.runs.shape import ShapeError, check_shape
from kvplan.runs.trials import TrialJson

TRIALS: Final = "trials.jsonl"
RESULTS: Final = "results.csv"
MANIFEST: Final = "manifest.json"
SUMMARY: Final = "summary.json"
WORKER_LOG: Final = "worker.log"
MODEL: Final = "model"

TRIAL_SCHEMA: Final = "kvplan.trial/1"
MANIFEST_SCHEMA: Final = "kvplan.manifest/1"
SUMMARY_SCHEMA: Final = "kvplan.sweep/1"


class Series(TypedDict):
    """A trial over time: equally long lists of at most 400 points.

    seconds: since the first arrival. kv_usage: used blocks / blocks, 0 to 1. num_running, num_waiting: sequences.
    used_tokens: tokens whose K and V lie in the pool. cached_tokens: prompt tokens found in the prefix cache so far.
    step_seconds: what the steps of a point took, without waiting for arrivals between them.
    """

    seconds: list[float]
    kv_usage: list[float]
    num_running: list[float]
    num_waiting: list[float]
    used_tokens: list[float]
    cached_tokens: list[float]
    output_tokens_per_second: list[float]
    step_seconds: list[float]


class TrialRecord(TypedDict):
    """One line of trials.jsonl. series: None for a trial that never ran."""

    schema: str
    row: Row
    series: Series | None


class _FurtherModelEntry(TypedDict, total=False):
    sized_as: str | None
    parts: list[str]


class ModelEntry(_FurtherModelEntry):
    """The model in a manifest. config_sha256: of its config.json, so that a resume notices a change.

    id: what was asked for; sized_as: the profile that its shape was taken from, where that is another one. parts: what
    it has beside dense layers with attention over keys and values in 16 bits.
    """

    id: str
    architecture: str
    num_layers: int
    num_parameters: int
    max_position_embeddings: int | None
    config_sha256: str


class _OpenedDeviceEntry(TypedDict, total=False):
    uuid: str
    compute_capability: list[int]


class DeviceEntry(_OpenedDeviceEntry):
    """The device in a manifest. uuid, compute_capability: of a GPU that a worker opened."""

    kind: str
    name: str
    memory_bytes: int
    num_cores: int


class WorkloadEntry(TypedDict, total=False):
    """The requests in a manifest. spec: WorkloadSpec as JSON. sha256: of their lengths and arrival times.

    longest_request_tokens: of prompt and output together.
    """

    text: str
    spec: dict[str, Any]
    sha256: str
    longest_request_tokens: int


class SettingsEntry(TypedDict):
    """What the options came to: defaults filled in, axes as lists of values."""

    seed: int
    num_runs: int
    load_format: str
    axes: dict[str, list[float | int | str]]


class ShardEntry(TypedDict):
    """Which part of a plan a sweep ran (``--shard``). plan_sha256: of the trials of the whole plan."""

    number: int
    count: int
    plan_sha256: str


class Manifest(TypedDict, total=False):
    """manifest.json. options: SweepOptions as JSON, as the user gave them. Older directories lack some keys.

    shard: of a part of a sweep, whose trials alone are listed; merged_from: the run ids of the parts of a merged one.

    server: its URL, of a load; a load has no device, and its options are those of ``kvplan load``.
    """

    schema: str
    run_id: str
    created_at: str
    command: str
    model: ModelEntry
    device: DeviceEntry
    server: dict[str, str]
    workload: WorkloadEntry
    settings: SettingsEntry
    options: dict[str, Any]
    planes: list[dict[str, str]]
    trials: list[TrialJson]
    shard: ShardEntry
    merged_from: list[str]
    versions: dict[str, str]
    platform: str
    commit: str | None
    statuses: dict[str, str]
    columns: list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class StoredTrials:
    """The complete records of a trials.jsonl, and how many bytes of it they take: what follows is a torn write."""

    records: tuple[TrialRecord, ...]
    num_bytes: int
    is_torn: bool


def read_trials(path: Path) -> StoredTrials:
    """Every complete record. KvplanError if a record follows a damaged line, which no torn write leaves behind."""
    content = path.read_bytes() if path.exists() else b""
    records: list[TrialRecord] = []
    position, damaged_line = 0, 0
    for number, line in enumerate(content.split(b"\n"), start=1):
        record = _record(line) if position + len(line) < len(content) else None
        if record is None:
            damaged_line = damaged_line or number
        elif damaged_line:
            raise KvplanError(
                f"Line {damaged_line} of {path} is damaged, and records follow it.",
                hint="remove that line to run its trial again with --resume",
            )
        else:
            records.append(record)
            position += len(line) + 1
    return StoredTrials(tuple(records), position, position < len(content))


def _record(line: bytes) -> TrialRecord | None:
    """The record in a line without its line feed, or None. Columns that an older version did not write become None."""
    try:
        record = parse_json(line)
        json.dumps(record, allow_nan=False)  # a sweep writes no other numbers, and none could be written again
    except ValueError:
        return None
    if not isinstance(record, dict) or record.get("schema") != TRIAL_SCHEMA or not isinstance(record.get("row"), dict):
        return None
    try:
        check_shape(record.setdefault("series", None), Series | None, "series")
        check_shape({name: cell for name, cell in record["row"].items() if cell is not None}, Row, "row")
    except ShapeError:
        return None
    return cast(TrialRecord, record | {"row": empty_row() | as_written_now(record["row"])})


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a run. KvplanError if there is none or it is malformed."""
    path = directory / MANIFEST
    try:
        manifest = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise KvplanError(f"{directory} holds no sweep (no {MANIFEST}).") from None
    except (OSError, ValueError) as error:
        raise KvplanError(f"{path} cannot be read: {error}.") from error
    if not isinstance(manifest, dict):
        raise KvplanError(f"{path} is not a sweep's manifest.")
    return cast(Manifest, manifest)


def read_sweep_manifest(directory: Path) -> Manifest:
    """The manifest of a sweep. KvplanError if the directory holds a load of a server: nothing to continue or to fit.

    KvplanError, too, if it lacks what every sweep is read with.
    """
    manifest = read_manifest(directory)
    if "server" in manifest:
        raise KvplanError(
            f"{directory} holds a load, not a sweep.",
            hint=f"{shlex.join(['kvplan', 'report', str(directory)])} reads it",
        )
    if missing := lacking(manifest, {"options": ("model",), "workload": ("spec",)}):
        raise KvplanError(
            f"{directory / MANIFEST} lacks {', '.join(missing)}.", hint="`kvplan report` still reads the sweep's rows"
        )
    refuse_misshapen(manifest, directory)
    return manifest


def refuse_misshapen(manifest: Manifest, directory: Path) -> None:
    """KvplanError if an entry of a sweep's manifest is not what every version writes there."""
    try:
        check_shape(manifest, Manifest, "it")
    except ShapeError as error:
        raise KvplanError(
            f"{directory / MANIFEST} is not what a sweep writes: {str(error).removeprefix('it.')}.",
            hint="`kvplan report` still reads the sweep's rows",
        ) from error


def lacking(manifest: Manifest, needed: Mapping[str, Sequence[str]]) -> list[str]:
    """Return which of ``needed``, a manifest's entries with their keys, it does not have: ``options``, ``model.id``."""
    missing = []
    for name, keys in needed.items():
        entry = cast(Mapping[str, Any], manifest).get(name)
        if entry is None or (keys and not isinstance(entry, Mapping)):
            missing.append(name)
        else:
            missing += [f"{name}.{key}" for key in keys if key not in entry]
    return missing
