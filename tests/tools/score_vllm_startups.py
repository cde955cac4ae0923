"""Scores the vLLM model against start-ups whose logs people published. Run: python tests/tools/score_vllm_startups.py

    --csv FILE     rows (default tests/data/vllm_startups.csv; the columns are described in tests/data/README.md)
    --models FILE  configs of models that no profile ships
    --rows         one line per row, worst first

Grade A rows are predicted end to end (weights, available memory, tokens), grade B rows from the observed memory to
tokens, and every row that failed for lack of memory must be predicted not to fit. Settings that a row does not state
take the version's default. No constant of the model is chosen per row or per model.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kvplan.catalog.engines import vllm_release  # noqa: E402
from kvplan.catalog.gpus import GpuProfile, find_gpu, load_gpus  # noqa: E402
from kvplan.catalog.models import find_profile, profiles, read_profile  # noqa: E402
from kvplan.catalog.reader import read_config  # noqa: E402
from kvplan.catalog.spec import ModelSpec  # noqa: E402
from kvplan.errors import KvplanError, UsageError  # noqa: E402
from kvplan.estimate.vllm import VllmPrediction, fill_pool, predict_vllm  # noqa: E402
from kvplan.estimate.vllm_settings import VllmSettings  # noqa: E402
from kvplan.estimate.weights import NAMED_FORMATS  # noqa: E402
from kvplan.units import GIB  # noqa: E402

DATA = ROOT / "tests" / "data"
CAMPAIGN = "llm-d-incubation/llm-d-planner"
Row = dict[str, str]
# fmt: off
COLUMNS = (
    "id", "source_url", "vllm_version", "model", "gpu", "gpu_count", "gpu_total_gib", "gpu_memory_utilization",
    "max_model_len", "max_num_batched_tokens", "max_num_seqs", "tp", "pp", "dtype", "quantization",
    "kv_cache_dtype", "enforce_eager", "block_size", "weights_gib", "non_torch_gib", "activation_peak_gib",
    "cudagraph_gib", "available_kv_gib", "num_gpu_blocks", "kv_cache_tokens", "max_concurrency_x", "outcome",
    "inferred", "verbatim",
)
# fmt: on


@dataclass(frozen=True, slots=True)
class RowScore:
    """One row against its prediction. Errors are relative, None where the row does not state the figure."""

    id: str
    grade: str
    campaign: bool
    model: str
    reason: str | None
    weight_error: float | None = None
    memory_error: float | None = None
    token_error: float | None = None
    failed: bool = False
    predicted_to_fit: bool | None = None
    detail: str = ""


def read_rows(path: Path) -> list[Row]:
    """The rows, with every column that the scoring looks at; one that is missing is blank."""
    with path.open(encoding="utf-8", newline="") as file:
        return [dict.fromkeys(COLUMNS, "") | row for row in csv.DictReader(file)]


def load_models(path: Path) -> dict[str, dict[str, object]]:
    return json.loads(path.read_text(encoding="utf-8"))["models"]


def score_rows(rows: Iterable[Row], models: dict[str, dict[str, object]]) -> list[RowScore]:
    return [_score(row, models) for row in rows]


def _score(row: Row, models: dict[str, dict[str, object]]) -> RowScore:
    grade = row["inferred"].strip()[1:2]
    base = {
        "id": row["id"],
        "grade": grade,
        "campaign": CAMPAIGN in row["source_url"],
        "model": row["model"],
        "failed": row["outcome"] != "ok",
    }
    if "Embedding" in row["model"]:
        return RowScore(reason="an embedding model: it generates no text and its run samples nothing", **base)  # type: ignore[arg-type]
    try:
        spec = _spec(row, models)
        gpu = _gpu(row)
        settings = _settings(row, spec)
        predicted = predict_vllm(spec, gpu, settings, _version(row))
    except KvplanError as error:
        return RowScore(reason=error.message, **base)  # type: ignore[arg-type]
    observed = _number(row["available_kv_gib"])
    if grade == "B" and observed is not None:
        refilled = fill_pool(predicted.rank, int(observed * GIB), predicted.settings, vllm_release(_version(row)))
        return _compared(row, base, refilled, end_to_end=False)
    return _compared(row, base, predicted, end_to_end=grade == "A")


def _compared(row: Row, base: dict[str, object], predicted: VllmPrediction, *, end_to_end: bool) -> RowScore:
    rank = predicted.rank
    available = _number(row["available_kv_gib"])
    tokens, blocks = _number(row["kv_cache_tokens"]), _number(row["num_gpu_blocks"])
    token_error = _error(predicted.kv_cache_tokens, tokens)
    if token_error is None:
        token_error = _error(predicted.num_blocks, blocks)
    memory_error = _error(rank.available_kv_bytes / GIB, available) if end_to_end else None
    detail = (
        f"weights {rank.weight_bytes / GIB:.2f} ({row['weights_gib']}), activation "
        f"{rank.activation.peak_bytes / GIB:.2f} {rank.activation.decided_by} ({row['activation_peak_gib']}), "
        f"non-torch {rank.non_torch_bytes / GIB:.2f} ({row['non_torch_gib']}), graphs {rank.cudagraph_bytes / GIB:.2f} "
        f"({row['cudagraph_gib']}), KV {rank.available_kv_bytes / GIB:.2f} ({row['available_kv_gib']}), "
        f"tokens {predicted.kv_cache_tokens} ({row['kv_cache_tokens']}), blocks {predicted.num_blocks} "
        f"({row['num_gpu_blocks']}), concurrency {predicted.max_concurrency:.2f} ({row['max_concurrency_x']}), "
        f"{predicted.outcome}"
    )
    return RowScore(
        reason=None,
        weight_error=_error(rank.weight_bytes / GIB, _number(row["weights_gib"])),
        memory_error=memory_error,
        token_error=token_error if base["grade"] != "C" else None,
        predicted_to_fit=predicted.fits,
        detail=detail,
        **base,  # type: ignore[arg-type]
    )


def _error(predicted: float, observed: float | None) -> float | None:
    if observed is None or observed == 0:
        return None
    return abs(predicted - observed) / abs(observed)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _whole(text: str) -> int | None:
    match = re.match(r"\s*(\d+)", text)
    return int(match.group(1)) if match else None


def _said(row: Row, *names: str) -> int | None:
    """A whole number that the notes give under one of ``names``: ``max_model_len=8192``, ``mnbt 8192``."""
    for name in names:
        match = re.search(rf"{re.escape(name)}(?:=| of | )(\d+)", row["inferred"])
        if match:
            return int(match.group(1))
    return None


def _spec(row: Row, models: dict[str, dict[str, object]]) -> ModelSpec:
    """The row's model: a shipped profile, a config of ours, or a model of the same name in another format."""
    profile = find_profile(row["model"])
    if profile is not None:
        return read_profile(profile)
    entry = models.get(row["model"])
    if entry is not None:
        return read_config(entry["config"], model_id=row["model"])  # type: ignore[arg-type]
    return _stand_in(row, models)


_FORMAT_SUFFIXES = {
    "awq": "awq",
    "gptq": "gptq",
    "gptq-int4": "gptq",
    "w4a16": "int4",
    "int4": "int4",
    "4bit": "bitsandbytes",
    "bnb-4bit": "bitsandbytes",
    "fp8": "fp8",
    "fp8-dynamic": "fp8",
    "w8a8": "int8",
    "int8": "int8",
    "nvfp4": "nvfp4",
}
_FORMAT = re.compile(rf"[-_.](quantized[-_.])?({'|'.join(sorted(_FORMAT_SUFFIXES, key=len, reverse=True))})$")
_TUNED = re.compile(r"[-_](instruct|chat|it|hf|base|sft|dpo|thinking|(instruct|thinking)-\d{4}|\d{4})$")


def _base_name(model: str) -> tuple[str, str | None]:
    """("llama-3.1-8b", "awq") of hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ: same shape, and the format it is in."""
    name, form = model.rsplit("/", 1)[-1].casefold().removeprefix("meta-"), None
    while match := _FORMAT.search(name):
        name, form = name[: match.start()], form or _FORMAT_SUFFIXES[match.group(2)]
    while match := _TUNED.search(name):
        name = name[: match.start()]
    return name, form


def _stand_in(row: Row, models: dict[str, dict[str, object]]) -> ModelSpec:
    wanted, form = _base_name(row["model"])
    for profile in profiles():
        if _base_name(profile["id"]) == (wanted, None):
            return _in_format(read_profile(profile), form)
    for name, entry in models.items():
        if _base_name(name) == (wanted, None):
            return _in_format(read_config(entry["config"], model_id=name), form)  # type: ignore[arg-type]
    raise UsageError(f"no config of {row['model']}")


def _in_format(spec: ModelSpec, form: str | None) -> ModelSpec:
    if form is None or spec.quantization is not None:
        return spec
    return replace(spec, quantization=NAMED_FORMATS[form])


def _version(row: Row) -> str:
    if row["vllm_version"]:
        return row["vllm_version"]
    match = re.search(r"v(0\.\d+(?:\.\d+)?)", row["inferred"])
    return match.group(1) if match else "latest"


def _gpu(row: Row) -> GpuProfile:
    for candidate in _gpu_names(row["gpu"]):
        try:
            return find_gpu(candidate)
        except UsageError:
            continue
    total = _total_gib(row)
    if total is not None:
        return min(load_gpus(), key=lambda gpu: abs(gpu.memory_bytes / GIB - total))
    if row["gpu"]:
        raise UsageError(f"no profile of the GPU {row['gpu']}")
    # Not stated. What matters then is only whether it is one of the large ones (default batch).
    wide = re.search(r"(H100|80 GB|~1\d\d GB|B200)", row["inferred"])
    return find_gpu("h100-sxm" if wide else "a6000")


def _gpu_names(text: str) -> list[str]:
    """The name as written and without counts, makers, remarks and sizes: "2x NVIDIA RTX 3090 (24GB)" -> "RTX 3090"."""
    name = re.sub(r"\(.*?\)", "", text).replace("_", " ").strip()
    name = re.sub(r"^\d+ ?[x×] ?|[ ,]+[x×] ?\d+$", "", name, flags=re.IGNORECASE).strip()
    bare = re.sub(r"^(nvidia|amd|geforce|tesla)[ -]", "", name, flags=re.IGNORECASE)
    names = [name, bare, re.sub(r"[ -]\d+ ?GB?$", "", bare, flags=re.IGNORECASE)]
    return [each for one in names for each in (one, one.replace(" ", "-"), one.replace("-", " ")) if each]


def _total_gib(row: Row) -> float | None:
    stated = _number(row["gpu_total_gib"])
    if stated is not None:
        return stated
    match = re.search(r"(\d\d\d?\.\d\d?) ?GiB", row["inferred"])
    return float(match.group(1)) if match and "total" in row["inferred"] else None


def _settings(row: Row, spec: ModelSpec) -> VllmSettings:
    total = _total_gib(row)
    notes = row["inferred"]
    graphs_off = "ESTIMATE_CUDAGRAPHS=0" in notes
    dcp = re.search(r"(?:dcp|decode-context-parallel-size )(\d+)", notes)
    quantization = row["quantization"] if row["quantization"] not in ("", "none") else None
    return VllmSettings(
        gpu_memory_utilization=_number(row["gpu_memory_utilization"]),
        max_model_len=_whole(row["max_model_len"]) or _said(row, "max_model_len"),
        max_num_batched_tokens=_whole(row["max_num_batched_tokens"]) or _said(row, "max_num_batched_tokens", "mnbt"),
        max_num_seqs=_whole(row["max_num_seqs"]),
        block_size=None if "attention" in row["block_size"] else _whole(row["block_size"]),
        tensor_parallel_size=_whole(row["tp"]) or (1 if _whole(row["pp"]) else _whole(row["gpu_count"]) or 1),
        pipeline_parallel_size=_whole(row["pp"]) or 1,
        decode_context_parallel_size=int(dcp.group(1)) if dcp else 1,
        dtype=row["dtype"] or "auto",
        quantization=quantization,
        kv_cache_dtype=row["kv_cache_dtype"] or "auto",
        enforce_eager=row["enforce_eager"].lower() == "true",
        num_speculative_tokens=_speculative_tokens(notes),
        device_memory_bytes=int(total * GIB) if total is not None else None,
        estimate_cudagraphs=False if graphs_off else None,
        has_flashinfer="flashinfer" in (notes + row["verbatim"]).lower(),
    )


def _speculative_tokens(notes: str) -> int:
    """Draft tokens per step: what the notes say, 1 where they only say that there is a drafter."""
    if "SpeculativeConfig" not in notes and "MTP" not in notes:
        return 0
    match = re.search(r"n=(\d+)", notes)
    return int(match.group(1)) if match else 1


@dataclass(frozen=True, slots=True)
class Summary:
    """Median and 90th percentile of |error| over the rows of one set that state the figure."""

    name: str
    num_rows: int
    num_scored: int
    weights: tuple[float, float] | None
    memory: tuple[float, float] | None
    tokens: tuple[float, float] | None


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the values lie, between neighbours interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _spread(values: list[float]) -> tuple[float, float] | None:
    return (statistics.median(values), percentile(values, 0.9)) if values else None


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
    sets = {
        "A, campaign": [score for score in scores if score.grade == "A" and score.campaign],
        "A, other sources": [score for score in scores if score.grade == "A" and not score.campaign],
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
    failed, wrong = failures(scores)
    print(f"failed for lack of memory: {len(failed) - len(wrong)} of {len(failed)} predicted not to fit")
    for score in wrong:
        print(f"  predicted to fit: {score.id} {score.model}")
    left_out = [score for score in scores if score.reason is not None]
    print(f"not scored: {len(left_out)} of {len(scores)}")
    for score in left_out:
        print(f"  {score.id} {score.model}: {score.reason}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--csv", type=Path, default=DATA / "vllm_startups.csv")
    parser.add_argument("--models", type=Path, default=DATA / "vllm_startup_models.json")
    parser.add_argument("--rows", action="store_true", help="one line per row, worst first")
    arguments = parser.parse_args()
    scores = score_rows(read_rows(arguments.csv), load_models(arguments.models))
    print_report(scores, per_row=arguments.rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
