"""``kvplan sweep --engine vllm`` and the like: rows that say all of a setting; the manifest remakes the lengths."""

from __future__ import annotations

from pathlib import Path

from kvplan.calibrate.results.outcome import LoadFigures, LoadResult, Results
from kvplan.calibrate.results.served import ServedDeployment
from kvplan.calibrate.trials import RequestsByLoad, why_unmeasured
from kvplan.runs.columns import Row
from kvplan.runs.directory import MANIFEST, TRIALS, Manifest, read_sweep_manifest, read_trials
from kvplan.sweeps.engine_names import OWN_ENGINE
from kvplan.workload.requests import WorkloadSpec


def is_kvplan_sweep(directory: Path) -> bool:
    return (directory / MANIFEST).is_file()


def is_own_sweep(path: Path) -> bool:
    """Whether kvplan's own engine served the sweep, whose rows tell each step."""
    return is_kvplan_sweep(path) and read_sweep_manifest(path)["options"].get("engine", OWN_ENGINE) == OWN_ENGINE


def read_kvplan_sweep(directory: Path) -> Results:
    """Every row that was served."""
    manifest, found = read_sweep_manifest(directory), Results()
    requests = RequestsByLoad(WorkloadSpec.from_json(manifest["workload"]["spec"]))
    for record in read_trials(directory / TRIALS).records:
        row = record["row"]
        reason = "a prefix was shared" if row.get("num_cached_tokens") else why_unmeasured(row)
        if reason:
            found.excluded[reason] += 1
        else:
            found.loads.append(_load(row, manifest, requests, f"trial {row['trial_number']} of {directory}"))
    return found


def _load(row: Row, manifest: Manifest, requests: RequestsByLoad, source: str) -> LoadResult:
    return LoadResult(
        source=source,
        served=_served(row, manifest),
        requests=requests.of(row),
        max_concurrency=row["max_concurrency"],
        figures=_figures(row),
        has_lengths=True,
    )


def _served(row: Row, manifest: Manifest) -> ServedDeployment:
    on_cpu = row["device"] == "cpu"
    cores = manifest["device"].get("num_cores") if on_cpu else None
    return ServedDeployment(
        model=str(manifest["options"]["model"]),
        gpu="cpu" if on_cpu else row["device_name"],
        cpu_name=row["device_name"] if on_cpu else None,
        num_cores=None if cores is None else int(cores),
        engine=row["engine"],
        engine_version=row["engine_version"],
        tensor_parallel_size=row["tensor_parallel_size"],
        dtype=row["dtype"],
        kv_cache_dtype=row["kv_cache_dtype"],
        max_num_seqs=row["max_num_seqs"],
        max_num_batched_tokens=row["max_num_batched_tokens"],
        max_model_len=row["max_model_len"],
        block_size=row["block_size"],
        num_blocks=row["num_blocks_total"],
    )


def _figures(row: Row) -> LoadFigures:
    duration, throughput = row["duration"], row["output_throughput"]
    assert duration is not None and throughput is not None, "a served row has both"
    return LoadFigures(
        duration=duration,
        output_throughput=throughput,
        mean_ttft=_seconds(row["mean_ttft_ms"]),
        median_ttft=_seconds(row["median_ttft_ms"]),
        mean_tpot=_seconds(row["mean_tpot_ms"]),
        median_tpot=_seconds(row["median_tpot_ms"]),
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if not milliseconds else milliseconds / 1000
