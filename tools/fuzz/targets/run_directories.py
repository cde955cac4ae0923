"""Run directories that anybody may have written: manifest.json, trials.jsonl, summary.json and results.csv.

A case is a directory of two shards' files with some of them changed, and what is done with it: ``kvplan report`` in
each of its formats, ``kvplan merge``, or everything that ``kvplan sweep --resume`` does before a trial runs. Pages are
made without pictures but for two in a thousand cases: drawing takes a second, and what is drawn was read before.
"""

from __future__ import annotations

import copy
import io
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fuzz.harness import Fault, Target
from fuzz.mutations import deep_json, mutate_bytes, mutate_json, odd_value
from kvplan.cli import main
from kvplan.errors import KvplanError
from kvplan.reports.comparison import compare_runs
from kvplan.reports.html.page import report_page
from kvplan.reports.writing import report_text, write_all
from kvplan.runs.answers.summary import summarize
from kvplan.runs.columns import COLUMN_NAMES, Row
from kvplan.runs.directory import TRIAL_SCHEMA, read_sweep_manifest
from kvplan.runs.storage.reader import WHOLE_COLUMNS, load_run
from kvplan.runs.storage.store import SweepStore, csv_text
from kvplan.runs.trials import Trial
from kvplan.sweeps.consent import refuse_unasked
from kvplan.sweeps.forecast.under_load import UnderLoad
from kvplan.sweeps.hosts import SweptEngine
from kvplan.sweeps.manifest import manifest_of, plan_from_manifest
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import SweepPlan, make_plan
from kvplan.sweeps.rows import SweepIdentity, finished_record, row_before
from kvplan.sweeps.shards.merging import merge_shards

Files = Mapping[str, bytes]
Case = tuple[str, tuple[Files, Files]]

_ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_ACTIONS = ("csv", "md", "json", "page", "comparison", "merge", "resume", "resume")
_PICTURES_SHARE = 0.002
_SHARDS = ("1/2", "2/2")
_SERIES = ("seconds", "kv_usage", "num_running", "num_waiting", "used_tokens", "cached_tokens",
           "output_tokens_per_second", "step_seconds")  # fmt: skip


@contextmanager
def open_target() -> Iterator[Target[Case]]:
    """The target, with two shards of a small sweep that never ran as what is changed."""
    shards = [_shard(part) for part in _SHARDS]

    def make_case(rng: random.Random) -> Case:
        action = "pictures" if rng.random() < _PICTURES_SHARE else rng.choice(_ACTIONS)
        first, second = (_changed(documents, rng) for documents in copy.deepcopy(shards))
        return action, (first, second if rng.random() < 0.3 else _written(shards[1]))

    with TemporaryDirectory() as folder:
        yield Target(make_case, _Tries(Path(folder)).try_case, seconds_per_case=60.0)


def _shard(part: str) -> dict[str, Any]:
    options = SweepOptions(
        model="gpt2", axes={"max_num_seqs": "1,2", "block_size": "16,32"}, load_format="none", device_memory="1GiB",
        num_prompts=4, input_len="8..16", output_len="4", shard=part,
    )  # fmt: skip
    plan = make_plan(options)
    manifest = manifest_of(plan, f"kvplan sweep --shard {part}")
    trials = [_record(plan, trial) for trial in plan.trials]
    rows = [record["row"] for record in trials]
    return {"manifest": dict(manifest), "trials": trials, "summary": dict(summarize(manifest, rows))}


def _record(plan: SweepPlan, trial: Trial) -> dict[str, Any]:
    """What a worker would have told of it: every column has a figure."""
    identity = SweepIdentity(plan.run_id, plan.spec.id, plan.device, plan.workload, plan.load_format)
    before = row_before(identity, UnderLoad(plan.workload, plan.predictor).prepare(trial))
    measured: dict[str, Any] = {
        name: 2 if name in WHOLE_COLUMNS else 1.5
        for name in COLUMN_NAMES
        if re.search(r"_ms$|_pct$|throughput$|^num_|^max_(running|waiting)|_bytes$|^kv_usage", name)
        and before.get(name) is None
    }
    measured |= {"status": "ok", "completed": 4, "failed": 0, "bound_by": "kv"}
    series: Any = {name: [0.0, 0.5, 1.0] for name in _SERIES}
    record = finished_record(identity, before, _as_row(measured), series, 1.0)
    return {"schema": TRIAL_SCHEMA, "row": dict(record["row"]), "series": series}


def _as_row(values: dict[str, Any]) -> Row:
    return values  # type: ignore[return-value]


def _changed(documents: dict[str, Any], rng: random.Random) -> Files:
    """The files of a directory, one or more of them damaged in their values or in their bytes."""
    names = rng.sample(("manifest", "trials", "summary"), rng.randint(1, 3))
    for name in names:
        if name == "trials":
            place = rng.randrange(len(documents[name]))
            documents[name][place] = mutate_json(documents[name][place], rng)
            _spoil_row(documents[name][place], rng)
        else:
            documents[name] = mutate_json(documents[name], rng)
    files = dict(_written(documents))
    for name in list(files):
        kind = rng.random()
        if kind < 0.03:
            files[name] = deep_json(rng) + b"\n"
        elif kind < 0.06:
            del files[name]
        elif kind < 0.12:
            files[name] = mutate_bytes(files[name], rng)
        elif kind < 0.14:
            files[name] += files[name]
    return files


def _spoil_row(record: Any, rng: random.Random) -> None:
    """A few cells of a row: a change anywhere in the record seldom meets one that is looked at."""
    row = record.get("row") if isinstance(record, dict) else None
    if isinstance(row, dict) and row:
        for _ in range(rng.randint(0, 4)):
            row[rng.choice(list(row))] = odd_value(rng)


def _written(documents: Mapping[str, Any]) -> Files:
    trials = documents["trials"]
    lines = "".join(json.dumps(record) + "\n" for record in (trials if isinstance(trials, list) else [trials]))
    rows = [record["row"] for record in trials if isinstance(record, dict) and isinstance(record.get("row"), dict)]
    return {
        "manifest.json": json.dumps(documents["manifest"]).encode(),
        "summary.json": json.dumps(documents["summary"]).encode(),
        "trials.jsonl": lines.encode(),
        "results.csv": csv_text(rows).encode("utf-8", "surrogatepass"),
    }


class _Tries:
    """What a user does with two directories in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._first, self._second = folder / "first", folder / "second"

    def try_case(self, case: Case) -> str:
        action, directories = case
        for directory, files in zip((self._first, self._second), directories, strict=True):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            for name, content in files.items():
                (directory / name).write_bytes(content)
        tried: Mapping[str, Callable[[], str]] = {
            "page": self._page, "comparison": self._comparison, "merge": self._merge, "resume": self._resume,
            "pictures": self._pictures,
        }  # fmt: skip
        try:
            return f"{action} {tried[action]() if action in tried else self._report(action)}"
        except KvplanError:
            return f"{action} refused"

    def _report(self, output_format: str) -> str:
        printed, said = io.StringIO(), io.StringIO()
        with redirect_stdout(printed), redirect_stderr(said):
            code = main(["report", str(self._first), "--format", output_format])
        text = printed.getvalue() + said.getvalue()
        if _ORDERS.search(text):
            raise Fault(f"orders to the terminal: {_ORDERS.search(text)}")
        if code not in (0, 1):
            raise Fault(f"exit code {code}: {said.getvalue()}")
        return "read" if code == 0 else "refused"

    def _page(self) -> str:
        page = report_page(load_run(self._first), [])
        if "<script>alert" in page:
            raise Fault("a tag of a row's text")
        return "read"

    def _comparison(self) -> str:
        compare_runs(load_run(self._second), load_run(self._first))
        report_text(self._second, (self._first,), "md")
        return "read"

    def _pictures(self) -> str:
        write_all(self._first)
        return "read"

    def _merge(self) -> str:
        out = self._folder / "merged"
        shutil.rmtree(out, ignore_errors=True)
        merge_shards([self._first, self._second], out, command="kvplan merge")
        load_run(out)
        return "read"

    def _resume(self) -> str:
        manifest = read_sweep_manifest(self._first)
        options = SweepOptions.from_json(manifest["options"])
        refuse_unasked(options, {}, str(manifest.get("run_id")), self._first)
        plan = plan_from_manifest(manifest, _no_engine)
        with SweepStore.reopen(self._first) as store:
            store.write_results()
            store.write_summary(summarize(store.read_manifest(), store.rows))
        return "read" if plan.trials else "empty"


def _no_engine(options: SweepOptions) -> SweptEngine | None:
    if options.is_foreign:
        raise KvplanError("No other engine is started here.")
    return None
