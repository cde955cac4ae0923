"""A start-up log beside our prediction: where each GiB went, what differs, and which change gains how much."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kvplan.catalog.devices.gpus import GpuProfile, load_gpus
from kvplan.catalog.releases.vllm import is_modified_build, vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.answer import with_quantization
from kvplan.estimate.kv_cache import KvCacheSize
from kvplan.estimate.sglang import CONTEXT_BYTES, SglangPrediction, predict_sglang, sglang_cache_dtype
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.explaining.cpu_host import cpu_changes, pool_tokens, sequence_size, weight_bytes
from kvplan.explaining.startup_log import StartupLog
from kvplan.explaining.ways_out import Change, in_words_of, ways_out
from kvplan.settings import ServingSettings
from kvplan.units import GIB, format_bytes

_SMALL_GAIN = 0.02
_LEFT_FOR_PREFILL_BYTES = 2 * GIB
"""What SGLang should keep beside weights, caches and graphs: it profiles nothing, so prompts must fit into the rest."""
_MANY_SEQUENCES = 256


@dataclass(frozen=True, slots=True)
class Part:
    """One line of the account: bytes as logged and as predicted, None where one of them is not known."""

    name: str
    logged_bytes: int | None
    predicted_bytes: int | None


@dataclass(frozen=True, slots=True)
class Counts:
    """The capacity that was predicted; None where it is not known."""

    kv_cache_tokens: int | None = None
    num_blocks: int | None = None
    max_concurrency: float | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The account of one start. ``predicted`` is empty where model or GPU could not be told from the log."""

    log: StartupLog
    gpu: GpuProfile | None
    parts: tuple[Part, ...]
    predicted: Counts
    changes: tuple[Change, ...]
    notes: tuple[str, ...]


def explain_log(log: StartupLog, spec: ModelSpec | None, gpu: GpuProfile | None) -> Explanation:
    """Compare the log with the prediction. ``gpu`` None: the profile whose memory is nearest the logged total."""
    notes: list[str] = []
    if log.device == "cpu":
        return _explain_cpu(log, spec)
    total = _total_bytes(log)
    if gpu is None and total is not None:
        gpu = _nearest_gpu(total)
        notes.append(f"GPU assumed to be {gpu.id}, from the memory size in the log.")
    if spec is None:
        notes.append(_unknown_model(log))
    elif gpu is None:
        notes.append("No prediction: the log does not tell the GPU. Name it with --gpu.")
    explain = _explain_sglang if log.engine == "sglang" else _explain_vllm
    parts, predicted, changes = explain(log, spec, gpu, notes)
    worded = (replace(each, sentence=in_words_of(log.engine, each.sentence)) for each in (*ways_out(log), *changes))
    return Explanation(log, gpu, parts, predicted, tuple(dict.fromkeys(worded)), tuple(notes))


def _unknown_model(log: StartupLog) -> str:
    if log.model is None:
        return "No prediction: the log does not tell the model. Name it with --model."
    return f"No prediction: {log.model} is not known here. Give its config.json, or a model like it, with --model."


def _no_prediction(error: KvplanError) -> str:
    return f"No prediction: {error.message}"


def _explain_cpu(log: StartupLog, spec: ModelSpec | None) -> Explanation:
    """vLLM on a CPU: what of the host's memory the cache has, and how many tokens that is."""
    memory = log.memory
    size, notes = _cpu_sequence(log, spec)
    parts = (
        Part("host in all", memory.total_bytes, None),
        Part("the engine may use", memory.budget_bytes, None),
        Part("weights", memory.weight_bytes, None if spec is None else weight_bytes(log, spec)),
        Part("in use before the cache", memory.used_bytes, None),
        Part("KV cache", memory.kv_pool_bytes, None),
    )
    tokens = None if size is None else pool_tokens(log, size)
    concurrency = None if tokens is None or size is None else tokens / size.context_tokens
    return Explanation(log, None, parts, Counts(tokens, None, concurrency), tuple(cpu_changes(log, size)), notes)


def _cpu_sequence(log: StartupLog, spec: ModelSpec | None) -> tuple[KvCacheSize | None, tuple[str, ...]]:
    """What one sequence takes, and why that is not known."""
    if spec is None:
        return None, (_unknown_model(log),)
    try:
        return sequence_size(log, spec), ()
    except KvplanError as error:
        return None, (_no_prediction(error),)


_Account = tuple[tuple[Part, ...], Counts, tuple[Change, ...]]


def _explain_vllm(log: StartupLog, spec: ModelSpec | None, gpu: GpuProfile | None, notes: list[str]) -> _Account:
    if spec is None or gpu is None:
        return _parts(log, None), Counts(), ()
    found = _predict(log, spec, gpu, notes)
    if found is None:
        return _parts(log, None), Counts(), ()
    if log.has_given_pool:
        notes.append("--kv-cache-memory-bytes says how large the KV cache is, so kvplan does not predict it.")
        return _parts_beside_the_pool(log, found), Counts(), ()
    counts = Counts(found.kv_cache_tokens, found.num_blocks, found.max_concurrency)
    return _parts(log, found), counts, tuple(_changes(log, spec, gpu, found))


def _explain_sglang(log: StartupLog, spec: ModelSpec | None, gpu: GpuProfile | None, notes: list[str]) -> _Account:
    empty = _parts(log, None)
    if spec is None or gpu is None:
        return empty, Counts(), ()
    free = log.memory.free_bytes
    try:
        found = predict_sglang(spec, gpu, log.settings, free)
    except KvplanError as error:
        notes.append(_no_prediction(error))
        return empty, Counts(), ()
    known = {
        "GPU in all": found.device_memory_bytes,
        "weights": found.weight_bytes,
        "KV cache": found.kv_pool_bytes,
    }
    parts = tuple(replace(part, predicted_bytes=known.get(part.name)) for part in empty)
    changes = list(_left_memory(log, found))
    for sentence, changed in _sglang_variants(log, spec, found):
        try:
            gained = predict_sglang(spec, gpu, changed, free).kv_cache_tokens - found.kv_cache_tokens
        except KvplanError:
            continue
        changes.append(Change(sentence, gained))
    useful = tuple(change for change in changes if change.gained_tokens is None or change.gained_tokens > 0)
    return parts, Counts(found.kv_cache_tokens), useful


def _left_memory(log: StartupLog, found: SglangPrediction) -> Iterator[Change]:
    """What to do where too little is left when everything is in place, or more than a share can be raised by.

    The latter is so where the log does not say the share, and it was far below the default.
    """
    left = log.memory.left_bytes
    if left is None:
        return
    if left < _LEFT_FOR_PREFILL_BYTES:
        yield Change(
            f"only {format_bytes(left)} is left for long prompts: if they run out of memory, lower "
            "--gpu-memory-utilization or --max-num-batched-tokens"
        )
    elif _raised_static(log, found) >= 1:
        yield Change(f"{format_bytes(left)} is left beside the caches: raise --gpu-memory-utilization from what it was")


def _raised_static(log: StartupLog, found: SglangPrediction) -> float:
    """The static share that would leave no more than prompts need, by what the log says is left."""
    assert log.memory.left_bytes is not None
    spare = (log.memory.left_bytes - _LEFT_FOR_PREFILL_BYTES) / (log.memory.free_bytes or found.device_memory_bytes)
    return int((found.mem_fraction_static + spare) * 100) / 100


def _sglang_variants(
    log: StartupLog, spec: ModelSpec, found: SglangPrediction
) -> Iterator[tuple[str, ServingSettings]]:
    settings, memory, static = log.settings, log.memory, found.mem_fraction_static
    if memory.left_bytes is not None:
        raised = _raised_static(log, found)
        if static < raised < 1:
            yield f"raise --gpu-memory-utilization to {raised}", replace(settings, gpu_memory_utilization=raised)
    if sglang_cache_dtype(spec, settings.kv_cache_dtype) == "auto":
        yield "keep the KV cache in 8 bits: --kv-cache-dtype fp8", replace(settings, kv_cache_dtype="fp8")
    more = settings.tensor_parallel_size * 2
    wider = replace(settings, tensor_parallel_size=more, gpu_memory_utilization=static)
    yield f"use {more} GPUs: --tensor-parallel-size {more}", wider


def _total_bytes(log: StartupLog) -> int | None:
    """The GPU's memory as logged; SGLang only says what is free beside its own context."""
    if log.memory.total_bytes is None and log.engine == "sglang" and log.memory.free_bytes is not None:
        return log.memory.free_bytes + CONTEXT_BYTES
    return log.memory.total_bytes


def _nearest_gpu(total_bytes: int) -> GpuProfile:
    return min(load_gpus(), key=lambda gpu: abs(gpu.memory_bytes - total_bytes))


def _version(log: StartupLog) -> str:
    return log.version or log.wording or "latest"


def _predict(log: StartupLog, spec: ModelSpec, gpu: GpuProfile, notes: list[str]) -> VllmPrediction | None:
    try:
        found = predict_vllm(spec, gpu, log.settings, _version(log))
    except KvplanError as error:
        notes.append(_no_prediction(error))
        return None
    notes.extend(found.settings.notes)
    if log.version is None:
        notes.append(f"The log has no version; it is compared with vLLM {found.version}.")
    if is_modified_build(log.version or ""):
        notes.append(f"vLLM {log.version} is neither a release nor a commit of vLLM: its changes are not modelled.")
    return found


_PARTS: tuple[tuple[str, str, Callable[[VllmPrediction], int]], ...] = (
    ("GPU in all", "total_bytes", lambda found: found.settings.serving.device_memory_bytes),
    ("the engine may use", "budget_bytes", lambda found: found.rank.requested_bytes),
    ("weights", "weight_bytes", lambda found: found.rank.weight_bytes),
    ("activations (peak)", "activation_bytes", lambda found: found.rank.activation.peak_bytes),
    ("outside torch", "non_torch_bytes", lambda found: found.rank.non_torch_bytes),
    ("CUDA graphs", "graph_bytes", lambda found: found.rank.cudagraph_bytes),
    ("KV cache", "kv_pool_bytes", lambda found: found.rank.available_kv_bytes),
)
"""Name, where the log has it, and where the prediction has it."""


def _parts(log: StartupLog, prediction: VllmPrediction | None) -> tuple[Part, ...]:
    parts = tuple(
        Part(name, getattr(log.memory, field), None if prediction is None else predicted(prediction))
        for name, field, predicted in _PARTS
    )
    if prediction is None or not prediction.rank.state_bytes:
        return parts
    # No log has it apart: vLLM prints it as consumed, with the weights and what is outside torch.
    return (*parts[:-1], Part("state of requests", None, prediction.rank.state_bytes), parts[-1])


_BESIDE_THE_POOL = ("GPU in all", "weights")


def _parts_beside_the_pool(log: StartupLog, prediction: VllmPrediction) -> tuple[Part, ...]:
    """The account without a prediction of what follows from a share of the GPU."""
    return tuple(
        part if part.name in _BESIDE_THE_POOL else replace(part, predicted_bytes=None)
        for part in _parts(log, prediction)
    )


def _changes(log: StartupLog, spec: ModelSpec, gpu: GpuProfile, prediction: VllmPrediction) -> Iterator[Change]:
    if prediction.outcome == "oom_weights":
        yield from _ways_to_fit(log, spec, gpu, prediction)
        return
    now = _held_tokens(prediction)
    for sentence, settings in _variants(log.settings, prediction):
        changed = _tried(log, spec, gpu, settings)
        if changed is None:
            continue
        gained = _held_tokens(changed) - now
        if gained > max(_SMALL_GAIN * now, changed.block_size):
            yield Change(sentence, gained)


def _ways_to_fit(log: StartupLog, spec: ModelSpec, gpu: GpuProfile, prediction: VllmPrediction) -> Iterator[Change]:
    """What holds the weights where these GPUs do not: the fewest more GPUs, and formats with fewer bits."""
    ranks = log.settings.tensor_parallel_size
    for more in (2 * ranks, 4 * ranks, 8 * ranks, 16 * ranks):
        found = _tried(log, spec, gpu, replace(log.settings, tensor_parallel_size=more))
        if found is not None and found.outcome != "oom_weights":
            each = format_bytes(found.rank.weight_bytes)
            yield Change(
                f"use {more} GPUs: --tensor-parallel-size {more} ({each} of weights each)", _held_tokens(found)
            )
            break
    if spec.quantization is not None:
        return
    for name in _SMALLER_FORMATS:
        found = _tried(log, with_quantization(spec, ServingSettings(quantization=name)), gpu, log.settings)
        if found is not None and found.outcome != "oom_weights":
            stored = f"{format_bytes(found.rank.weight_bytes)} instead of {format_bytes(prediction.rank.weight_bytes)}"
            yield Change(f"take a checkpoint in {name}: {stored}", _held_tokens(found))


_SMALLER_FORMATS = ("fp8", "awq")


def _tried(log: StartupLog, spec: ModelSpec, gpu: GpuProfile, settings: ServingSettings) -> VllmPrediction | None:
    try:
        return predict_vllm(spec, gpu, settings, _version(log))
    except KvplanError:
        return None


def _held_tokens(prediction: VllmPrediction) -> int:
    """Tokens of sequences of the longest length that the pool holds: groups of layers are not counted twice."""
    return int(prediction.max_concurrency * prediction.settings.serving.max_model_len)


def _variants(settings: ServingSettings, prediction: VllmPrediction) -> Iterator[tuple[str, ServingSettings]]:
    resolved, rank = prediction.settings.serving, prediction.rank
    if resolved.gpu_memory_utilization < 0.95:
        yield "raise --gpu-memory-utilization to 0.95", replace(settings, gpu_memory_utilization=0.95)
    samples_much = rank.activation.decided_by == "sampler" or rank.state_bytes > 0
    if samples_much and resolved.max_num_seqs > _MANY_SEQUENCES:
        sentence = f"lower --max-num-seqs from {resolved.max_num_seqs} to {_MANY_SEQUENCES} (the sampler's logits)"
        yield sentence, replace(settings, max_num_seqs=_MANY_SEQUENCES)
    if rank.activation.decided_by == "decoder" and resolved.max_num_batched_tokens > 2048:
        chunks = f"lower --max-num-batched-tokens from {resolved.max_num_batched_tokens} to 2048"
        if not vllm_release(prediction.version).v1:
            chunks = "compute prompts in chunks: --enable-chunked-prefill --max-num-batched-tokens 2048"
        yield chunks, replace(settings, max_num_batched_tokens=2048)
    if resolved.kv_cache_dtype in ("bfloat16", "float16", "float32"):
        yield "keep the KV cache in 8 bits: --kv-cache-dtype fp8", replace(settings, kv_cache_dtype="fp8")
    if rank.subtracted_graph_bytes:
        yield "disable CUDA graphs: --enforce-eager (slower)", replace(settings, enforce_eager=True)
    more = settings.tensor_parallel_size * 2
    yield f"use {more} GPUs: --tensor-parallel-size {more}", replace(settings, tensor_parallel_size=more)


def difference_gib(part: Part) -> float | None:
    """Logged less predicted, in GiB."""
    if part.logged_bytes is None or part.predicted_bytes is None:
        return None
    return (part.logged_bytes - part.predicted_bytes) / GIB
