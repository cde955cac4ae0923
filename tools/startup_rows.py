"""One row of start-ups as kvplan sees it: the model's config, the GPU, the settings and the release.

Settings that a row does not state take the version's default. What was read in the row's own log and has no column of
its own stands in ``inferred`` as ``name=value``.
"""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

from kvplan.catalog.devices.gpus import GpuProfile, find_gpu, load_gpus
from kvplan.catalog.models import find_profile, profiles, read_profile, resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import UsageError
from kvplan.estimate.weights import NAMED_FORMATS
from kvplan.settings import ServingSettings
from kvplan.units import GIB

Row = dict[str, str]
CAMPAIGN = "llm-d-incubation/llm-d-planner"
# fmt: off
COLUMNS = (
    "id", "source_url", "vllm_version", "model", "gpu", "gpu_count", "gpu_total_gib", "gpu_memory_utilization",
    "max_model_len", "max_num_batched_tokens", "max_num_seqs", "tp", "pp", "dtype", "quantization",
    "kv_cache_dtype", "enforce_eager", "block_size", "weights_gib", "non_torch_gib", "activation_peak_gib",
    "cudagraph_gib", "available_kv_gib", "num_gpu_blocks", "kv_cache_tokens", "max_concurrency_x", "outcome",
    "inferred", "verbatim", "collected",
)
# fmt: on


def read_rows(path: Path) -> list[Row]:
    """The rows, with every column that the scoring looks at; one that is missing is blank."""
    with path.open(encoding="utf-8", newline="") as file:
        return [dict.fromkeys(COLUMNS, "") | row for row in csv.DictReader(file)]


def load_models(path: Path) -> dict[str, dict[str, object]]:
    return json.loads(path.read_text(encoding="utf-8"))["models"]


def number(text: str) -> float | None:
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


def row_spec(row: Row, models: dict[str, dict[str, object]]) -> ModelSpec:
    """The row's model: a shipped profile or what stands for it, or a model of the same name in another format."""
    profile = find_profile(row["model"])
    if profile is not None:
        return _as_served(read_profile(profile), row.get("quantization", ""))
    entry = models.get(row["model"])
    if entry is not None and "profile" in entry:
        return resolve_model(str(entry["profile"]))
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
    "awq-int4": "awq",
    "awq-4bit": "awq",
    "w4a16-ct": "int4",
    "autoround": "int4",
    "nvfp4": "nvfp4",
}
_FORMAT = re.compile(rf"[-_.](quantized[-_.])?({'|'.join(sorted(_FORMAT_SUFFIXES, key=len, reverse=True))})$")
_TUNED = re.compile(r"[-_](instruct|chat|it|pt|hf|base|sft|dpo|qat|thinking|(instruct|thinking)-\d{4}|\d{4})$")


def base_name(model: str) -> tuple[str, str | None]:
    """("llama-3.1-8b", "awq") of hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ: same shape, and the format it is in."""
    name, form = model.rsplit("/", 1)[-1].casefold().removeprefix("meta-"), None
    while match := _FORMAT.search(name):
        name, form = name[: match.start()], form or _FORMAT_SUFFIXES[match.group(2)]
    while match := _TUNED.search(name):
        name = name[: match.start()]
    return name, form


_SAME_SHAPE = (
    (re.compile(r"^qwen2\.5-coder-"), "qwen2.5-"),
    (re.compile(r"^qwen3\.[68]-(27b|35b-a3b)$"), r"qwen3.5-\1"),
    (re.compile(r"^mistral-small-3\.2-"), "mistral-small-3.1-"),
    (re.compile(r"^vicuna-(7b|13b)-v1\.5$"), r"llama-2-\1"),
    (re.compile(r"^.*-(llama-3(\.\d)?-\d+b)$"), r"\1"),
)
"""Names of models that have another's shape: continued training, successors, and fine-tunes named after their base."""


def _same_shape(name: str) -> list[str]:
    """The name, then the names of models of the same shape."""
    found = [pattern.sub(base, name) for pattern, base in _SAME_SHAPE if pattern.search(name)]
    return [name, *found]


_WITHOUT_STAND_IN = frozenset(("nvidia/Qwen3.8-Flash-Next-NVFP4",))
"""Models whose shape is known and not which of their modules stay in 16 bits: some 8 GiB of 69 here."""


def _stand_in(row: Row, models: dict[str, dict[str, object]]) -> ModelSpec:
    if row["model"] in _WITHOUT_STAND_IN:
        raise UsageError(f"no config of {row['model']}: what of it stays in 16 bits is not known")
    name, form = base_name(row["model"])
    if form == "fp8" and row["model"].startswith("Qwen/"):
        form = "fp8-block"  # as all of its publisher's
    for wanted in _same_shape(name):
        for profile in profiles():
            if base_name(profile["id"]) == (wanted, None):
                return _in_format(read_profile(profile), form)
        for known, entry in models.items():
            if "config" in entry and base_name(known) == (wanted, None):
                return _in_format(read_config(entry["config"], model_id=known), form)  # type: ignore[arg-type]
    raise UsageError(f"no config of {row['model']}")


def _in_format(spec: ModelSpec, form: str | None) -> ModelSpec:
    if form is None or spec.quantization is not None:
        return spec
    return replace(spec, quantization=NAMED_FORMATS[form])


def _as_served(spec: ModelSpec, method: str) -> ModelSpec:
    """``spec`` in the row's format where that is another than the profile's: a checkpoint made from the same model."""
    form = NAMED_FORMATS.get(method.removesuffix("_marlin"))
    own = spec.quantization
    if form is None or own is None or own.method == form.method:
        return spec
    return replace(spec, quantization=form)


def row_version(row: Row) -> str:
    if row["vllm_version"]:
        return row["vllm_version"]
    match = re.search(r"v(0\.\d+(?:\.\d+)?)", row["inferred"])
    return match.group(1) if match else "latest"


def row_source(row: Row) -> str:
    """Where the row comes from: ``owner/name`` of the repository."""
    return "/".join(row["source_url"].removeprefix("https://github.com/").split("/")[:2])


def is_campaign(row: Row) -> bool:
    """Whether the row is one of the campaign that makes half of the rows of grade A."""
    return CAMPAIGN in row["source_url"]


def is_newest(row: Row) -> bool:
    """Whether the row was collected after the others, and so after what was fitted to them."""
    return bool(row["collected"])


def row_gpu(row: Row) -> GpuProfile:
    """The GPU as named, else by the total that is stated, else the smallest that could hold what was observed."""
    for candidate in gpu_names(row["gpu"]):
        try:
            return find_gpu(candidate)
        except UsageError:
            continue
    total = _total_gib(row)
    if total is not None:
        return min(load_gpus(), key=lambda gpu: abs(gpu.memory_bytes / GIB - total))
    if row["gpu"]:
        raise UsageError(f"no profile of the GPU {row['gpu']}")
    # Not stated. It decides the default batch and a few kernels; H100s and B200s are named in the notes.
    for pattern, name in ((r"B200", "b200"), (r"H200|~140 GB", "h200"), (r"H100|80 GB|~1\d\d GB", "h100-sxm")):
        if re.search(pattern, row["inferred"]):
            return find_gpu(name)
    return find_gpu("a6000")


def gpu_names(text: str) -> list[str]:
    """The name as written and without counts, makers, remarks and sizes: "2x NVIDIA RTX 3090 (24GB)" -> "RTX 3090"."""
    name = re.sub(r"\(.*?\)", "", text).replace("_", " ").strip()
    name = re.sub(r"^\d+ ?[x×] ?|[ ,]+[x×] ?\d+$", "", name, flags=re.IGNORECASE).strip()
    bare = re.sub(r"^(nvidia|amd|geforce|tesla)[ -]", "", name, flags=re.IGNORECASE)
    names = [name, bare, re.sub(r"[ -]\d+ ?GB?$", "", bare, flags=re.IGNORECASE)]
    return [each for one in names for each in (one, one.replace(" ", "-"), one.replace("-", " ")) if each]


def _total_gib(row: Row) -> float | None:
    stated = number(row["gpu_total_gib"])
    if stated is not None:
        return stated
    match = re.search(r"(\d\d\d?\.\d\d?) ?GiB", row["inferred"])
    return float(match.group(1)) if match and "total" in row["inferred"] else None


_GRAPH_ESTIMATE = re.compile(r"(?:estimate logged|graphs estimated|[Ee]stimated CUDA graph memory:?) (-?\d+(?:\.\d+)?)")


def row_graph_estimate_gib(row: Row) -> float | None:
    """vLLM's own estimate of its graphs, which it subtracts; what they then took stands in ``cudagraph_gib``."""
    match = _GRAPH_ESTIMATE.search(row["inferred"]) or _GRAPH_ESTIMATE.search(row["verbatim"])
    return None if match is None else float(match.group(1))


def row_activation_gib(row: Row) -> float | None:
    """The activation peak that the log prints, without the graph estimate that newer releases print in one with it.

    None where that is not known.
    """
    peak, estimate = number(row["activation_peak_gib"]), row_graph_estimate_gib(row)
    if peak is None or not vllm_release(row_version(row)).peak_activation_has_graphs:
        return peak
    return None if estimate is None else peak - estimate


def row_settings(row: Row) -> ServingSettings:
    total, notes = _total_gib(row), row["inferred"]
    if total is None and "WSL" in notes and row["gpu"] and (listed := row_gpu(row).listed_memory_bytes):
        total = listed / GIB  # what its driver reports, in each of the rows that state a total
    if not row["gpu_memory_utilization"] and re.search(r"gmu is set .*not stated", notes):
        raise UsageError("a utilization that was set but is not stated")
    estimates = re.search(r"ESTIMATE_CUDAGRAPHS=([01])", notes)
    dcp = re.search(r"(?:dcp|decode-context-parallel-size )(\d+)", notes)
    quantization = row["quantization"] if row["quantization"] not in ("", "none") else "auto"
    return ServingSettings(
        gpu_memory_utilization=number(row["gpu_memory_utilization"]),
        max_model_len=_whole(row["max_model_len"]) or _said(row, "max_model_len"),
        max_num_batched_tokens=_whole(row["max_num_batched_tokens"]) or _said(row, "max_num_batched_tokens", "mnbt"),
        max_num_seqs=_whole(row["max_num_seqs"]),
        block_size=None if "attention" in row["block_size"] else _whole(row["block_size"]),
        tensor_parallel_size=_whole(row["tp"]) or (1 if _whole(row["pp"]) else _whole(row["gpu_count"]) or 1),
        pipeline_parallel_size=_whole(row["pp"]) or 1,
        decode_context_parallel_size=int(dcp.group(1)) if dcp else 1,
        enable_expert_parallel="enable_expert_parallel" in notes,
        dtype=row["dtype"] or "auto",
        quantization=quantization,
        kv_cache_dtype=row["kv_cache_dtype"] or "auto",
        enforce_eager=row["enforce_eager"].lower() == "true",
        num_speculative_tokens=_speculative_tokens(notes),
        device_memory_bytes=int(total * GIB) if total is not None else None,
        estimate_cudagraphs=estimates.group(1) == "1" if estimates else None,
        has_flashinfer="flashinfer" in (notes + row["verbatim"]).lower(),
        enable_prefix_caching=_switch(notes, "enable_prefix_caching"),
        warm_start=_switch(notes, "warm_start") or False,
        expandable_segments="expandable" in notes,
        language_model_only=_is_text_only(notes + row["verbatim"]),
        limit_mm_per_prompt=_item_limits(notes),
        enable_lora=_switch(notes, "enable_lora") or False,
        max_loras=_said(row, "max_loras"),
        max_lora_rank=_said(row, "max_lora_rank"),
    )


def _speculative_tokens(notes: str) -> int:
    """Draft tokens per step: what the notes say, 1 where they only say that there is a drafter."""
    if "dflash" in notes.casefold():
        raise UsageError("a DFlash drafter: its config is not known")
    if not any(word in notes for word in ("SpeculativeConfig", "MTP", "DSpark")):
        return 0
    match = re.search(r"(?:num_speculative_tokens|num_spec_tokens|\bn)=(\d+)", notes)
    return int(match.group(1)) if match else 1


def _item_limits(notes: str) -> str | None:
    """``image=0,video=0`` of "limit_mm_per_prompt image=0, video=0", or of the same without equals signs."""
    match = re.search(r"limit_mm_per_prompt ((?:(?:image|video|audio)[= ]\d+(?:, )?)+)", notes)
    return None if match is None else re.sub(r"(\w+)[= ](\d+)(, )?", r"\1=\2,", match.group(1)).rstrip(",")


def _is_text_only(text: str) -> bool:
    phrases = ("--language-model-only", "language_model_only=True", "running in text-only mode")
    return any(phrase in text for phrase in phrases)


def _switch(notes: str, name: str) -> bool | None:
    """``True`` or ``False`` where the notes quote the log's ``name=True``; None where they do not."""
    match = re.search(rf"\b{name}=(True|False)", notes)
    return None if match is None else match.group(1) == "True"
