"""A start-up log beside our prediction: where each GiB went, what differs, and which change gains how much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.releases.vllm import is_modified_build, vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.answer import with_quantization
from kvplan.estimate.kv_cache import KvCacheSize
from kvplan.estimate.sglang import SglangPrediction, predict_sglang, sglang_cache_dtype
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.estimate.vllm.ranges import kv_range
from kvplan.explaining.account import AccountLine, Counts, outside_sentences, parts_beside_the_pool, parts_of
from kvplan.explaining.cpu_host import cpu_changes, pool_tokens, sequence_size, weight_bytes
from kvplan.explaining.reading import is_another_model
from kvplan.explaining.startup_log import StartupLog
from kvplan.explaining.stated_settings import overridden
from kvplan.explaining.ways_out import SuggestedChange, in_words_of, more_gpus, reachable_share, ways_out
from kvplan.explaining.which_gpu import fitting_gpus
from kvplan.settings import ServingSettings
from kvplan.units import GIB, format_bytes

EXPLAIN_SETTINGS = (
    "dtype",
    "quantization",
    "group_size",
    "kv_cache_dtype",
    "max_model_len",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "device_memory_bytes",
    "max_num_seqs",
    "max_num_batched_tokens",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
    "enable_expert_parallel",
    "num_speculative_tokens",
    "enforce_eager",
    "enable_prefix_caching",
    "language_model_only",
    "warm_start",
    "expandable_segments",
)
"""Settings that a user can give beside a log."""
_SMALL_GAIN = 0.02
_LEFT_FOR_PREFILL_BYTES = 2 * GIB
"""What SGLang should keep beside weights, caches and graphs: it profiles nothing, so prompts must fit into the rest."""
_MANY_SEQUENCES = 256
_SMALLEST_RAISE = 0.01


@dataclass(frozen=True, slots=True)
class LogAccount:
    """The account of one start. ``predicted`` is empty where model or GPU could not be told from the log."""

    log: StartupLog
    gpu: GpuProfile | None
    parts: tuple[AccountLine, ...]
    predicted: Counts
    changes: tuple[SuggestedChange, ...]
    notes: tuple[str, ...]


def explain_log(
    log: StartupLog, spec: ModelSpec | None, gpu: GpuProfile | None, given: ServingSettings = ServingSettings()
) -> LogAccount:
    """Compare the log with the prediction. ``gpu`` None: the one profile that fits what the log says.

    Several profiles are compared with where all of them give the same. ``given``: settings that count before those of
    the log.
    """
    settings, differing = overridden(log.settings, given)
    log = replace(log, settings=settings, has_given_pool=log.has_given_pool or bool(given.kv_cache_memory_bytes))
    if spec is not None and given.quantization != "auto":
        spec = with_quantization(spec, given)
    notes = [*log.notes, *differing, *_given_otherwise(log, spec, gpu)]
    if log.device == "cpu":
        return _explain_cpu(log, spec)
    gpus = (gpu,) if gpu is not None else _found_gpus(log, notes)
    if spec is None:
        notes.append(_unknown_model(log))
    elif not gpus:
        notes.append("No prediction: the log does not tell the GPU. Name it with --gpu.")
    compared = gpus[0] if len(gpus) == 1 or (spec is not None and _are_alike(log, spec, gpus)) else None
    if spec is not None and len(gpus) > 1:
        notes.append("kvplan predicts the same for all of them." if compared else "So nothing is compared.")
    explain = _explain_sglang if log.engine == "sglang" else _explain_vllm
    parts, predicted, changes = explain(log, spec, compared, notes)
    worded = (
        replace(each, sentence=in_words_of(log.engine, each.sentence)) for each in (*ways_out(log, gpus), *changes)
    )
    known = gpus[0] if len(gpus) == 1 else None
    return LogAccount(log, known, parts, predicted, tuple(dict.fromkeys(worded)), tuple(notes))


def _given_otherwise(log: StartupLog, spec: ModelSpec | None, gpu: GpuProfile | None) -> Iterator[str]:
    """Say where a model or a GPU that was named is not the log's."""
    if spec is not None and is_another_model(spec, log.model):
        yield f"{spec.title} is taken as given; the log has {log.model}."
    total = log.memory.total_bytes
    if gpu is not None and total is not None and abs(total / gpu.memory_bytes - 1) > _OTHER_CARD_SHARE:
        sizes = f"{format_bytes(total)}, not {format_bytes(gpu.memory_bytes)}"
        yield f"{gpu.id} is taken as given; the log's GPU has {sizes}."


_OTHER_CARD_SHARE = 0.05
"""The share of its memory by which a GPU is another card. Drivers report up to two percent more or less of one."""


def _found_gpus(log: StartupLog, notes: list[str]) -> tuple[GpuProfile, ...]:
    found = fitting_gpus(log)
    if found.note is not None:
        notes.append(found.note)
    return found.profiles


_SAME_SHARE = 0.002
"""Predictions that are no further apart are one."""


def _are_alike(log: StartupLog, spec: ModelSpec, gpus: tuple[GpuProfile, ...]) -> bool:
    """Whether the KV memory that is predicted, and the batch defaults, are the same on all of ``gpus``."""
    if not gpus or log.memory.total_bytes is None:
        return False
    pools = []
    for gpu in gpus:
        if log.engine == "sglang":
            return True  # what SGLang sets aside follows from the memory alone
        found = _tried(log, spec, gpu, log.settings)
        if found is None:
            return False
        pools.append(found.rank.available_kv_bytes)
    return max(pools) - min(pools) <= _SAME_SHARE * abs(max(pools))


def of_engine(log: StartupLog, engine: str | None) -> StartupLog:
    """``log`` as one of the engine and version that a user named. UsageError for another engine than the log's."""
    if engine is None:
        return log
    choice = EngineChoice.parse(engine, known=("vllm", "sglang"))
    if choice.name != log.engine:
        raise UsageError(
            f"The log is one of {log.engine}, not of {choice.name}.", hint=f"--engine {log.engine}@VERSION"
        )
    version = log.version if choice.version == "latest" else choice.version
    said = f"Version {version} is taken as given; the log has {log.version}."
    notes = (*log.notes, said) if log.version not in (None, version) else log.notes
    return replace(log, version=version, notes=notes)


def _unknown_model(log: StartupLog) -> str:
    if log.model is None:
        return "No prediction: the log does not tell the model. Name it with --model."
    return f"No prediction: {log.model} is not known here. Give its config.json, or a model like it, with --model."


def _no_prediction(error: KvplanError) -> str:
    return f"No prediction: {error.message}"


def _explain_cpu(log: StartupLog, spec: ModelSpec | None) -> LogAccount:
    """vLLM on a CPU: what of the host's memory the cache has, and how many tokens that is."""
    memory = log.memory
    size, notes = _cpu_sequence(log, spec)
    parts = (
        AccountLine("host in all", memory.total_bytes, None),
        AccountLine("the engine may use", memory.budget_bytes, None),
        AccountLine("weights", memory.weight_bytes, None if spec is None else weight_bytes(log, spec)),
        AccountLine("in use before the cache", memory.used_bytes, None),
        AccountLine("KV cache", memory.kv_pool_bytes, None),
    )
    tokens = None if size is None else pool_tokens(log, size)
    concurrency = None if tokens is None or size is None else tokens / size.context_tokens
    return LogAccount(log, None, parts, Counts(tokens, None, concurrency), tuple(cpu_changes(log, size)), notes)


def _cpu_sequence(log: StartupLog, spec: ModelSpec | None) -> tuple[KvCacheSize | None, tuple[str, ...]]:
    """What one sequence takes, and why that is not known."""
    if spec is None:
        return None, (_unknown_model(log),)
    try:
        return sequence_size(log, spec), ()
    except KvplanError as error:
        return None, (_no_prediction(error),)


_Account = tuple[tuple[AccountLine, ...], Counts, tuple[SuggestedChange, ...]]


def _explain_vllm(log: StartupLog, spec: ModelSpec | None, gpu: GpuProfile | None, notes: list[str]) -> _Account:
    if spec is None or gpu is None:
        return parts_of(log, None), Counts(), ()
    found = _predict(log, spec, gpu, notes)
    if found is None:
        return parts_of(log, None), Counts(), ()
    if log.has_given_pool:
        notes.append("--kv-cache-memory-bytes says how large the KV cache is, so kvplan does not predict it.")
        return parts_beside_the_pool(log, found), Counts(), ()
    within = kv_range(spec, gpu, found)
    counts = Counts(found.kv_cache_tokens, found.num_blocks, found.max_concurrency, within.tokens)
    if is_another_checkpoint(log, found):
        notes.append(
            "The checkpoint is stored otherwise than kvplan takes it to be, by the memory in the log: name its format "
            "with --quantization, or its config with --model."
        )
        return parts_of(log, found), counts, ()
    unexplained = _unexplained_bytes(log, found)
    if unexplained:
        size = f"{format_bytes(abs(unexplained))} {'smaller' if unexplained > 0 else 'larger'} than predicted"
        notes.append(
            f"The KV cache in the log is {size}: the GPU or a setting that is assumed here is another (--gpu, "
            "--gpu-memory-utilization, --tensor-parallel-size), or other programs held memory. So no change is "
            "predicted."
        )
        return parts_of(log, found), counts, ()
    parts = parts_of(log, found)
    outside = outside_sentences(log, within, parts)
    if outside is not None:
        notes.append(f"{outside} kvplan estimate --from-log keeps the difference for other settings.")
    return parts, counts, tuple(_changes(log, spec, gpu, found))


_UNEXPLAINED_SHARE = 0.2
"""The share of what the engine may use. Nine of ten published start-ups are far nearer (docs/accuracy.md)."""


def _unexplained_bytes(log: StartupLog, found: VllmPrediction) -> int:
    """How much less the pool of the log has than is predicted; 0 where that may be an error of the prediction."""
    predicted, pool = found.rank.available_kv_bytes, log.memory.kv_pool_bytes
    if pool is None and log.kv_cache_tokens and found.kv_cache_tokens:
        pool = int(predicted * log.kv_cache_tokens / found.kv_cache_tokens)
    if pool is None or abs(predicted - pool) <= _UNEXPLAINED_SHARE * found.rank.requested_bytes:
        return 0
    return predicted - pool


_OTHER_WEIGHTS_SHARE = 0.15


def is_another_checkpoint(log: StartupLog, found: VllmPrediction) -> bool:
    """Whether the weights of the log are far from those predicted, or leave room where those would not."""
    weights, pool = log.memory.weight_bytes, log.memory.kv_pool_bytes
    if weights is not None:
        return abs(weights - found.rank.weight_bytes) > _OTHER_WEIGHTS_SHARE * weights
    return found.outcome == "oom_weights" and pool is not None and pool > 0


def _explain_sglang(log: StartupLog, spec: ModelSpec | None, gpu: GpuProfile | None, notes: list[str]) -> _Account:
    empty = parts_of(log, None)
    if spec is None or gpu is None:
        return empty, Counts(), ()
    free = log.memory.free_bytes
    try:
        found = predict_sglang(spec, gpu, log.settings, free, log.version or "latest")
    except KvplanError as error:
        notes.append(_no_prediction(error))
        return empty, Counts(), ()
    known = {
        "GPU in all": found.device_memory_bytes,
        "weights": found.weight_bytes,
        "KV cache": found.kv_pool_bytes,
    }
    notes.append("SGLang's figures have no interval: too few of its start-ups were compared.")
    parts = tuple(replace(part, predicted_bytes=known.get(part.name)) for part in empty)
    changes = list(_left_memory(log, found))
    for sentence, changed in _sglang_variants(log, spec, found):
        try:
            tried = predict_sglang(spec, gpu, changed, free, log.version or "latest")
            gained = tried.kv_cache_tokens - found.kv_cache_tokens
        except KvplanError:
            continue
        changes.append(SuggestedChange(sentence, gained))
    useful = tuple(change for change in changes if change.gained_tokens is None or change.gained_tokens > 0)
    return parts, Counts(found.kv_cache_tokens), useful


def _left_memory(log: StartupLog, found: SglangPrediction) -> Iterator[SuggestedChange]:
    """What to do where too little is left when everything is in place, or more than a share can be raised by.

    The latter is so where the log does not say the share: it may be far below the default.
    """
    left = log.memory.left_bytes
    if left is None:
        return
    if left < _LEFT_FOR_PREFILL_BYTES:
        yield SuggestedChange(
            f"only {format_bytes(left)} is left for long prompts: if they run out of memory, lower "
            "--gpu-memory-utilization or --max-num-batched-tokens"
        )
        return
    is_unstated = log.settings.gpu_memory_utilization is None and left > 2 * _LEFT_FOR_PREFILL_BYTES
    if is_unstated or _raised_static(log, found) >= 1:
        yield SuggestedChange(
            f"{format_bytes(left)} is left beside the caches: raise --gpu-memory-utilization from what it was"
        )


def _raised_static(log: StartupLog, found: SglangPrediction) -> float:
    """The static share that would leave no more than prompts need, by what the log says is left."""
    assert log.memory.left_bytes is not None
    spare = (log.memory.left_bytes - _LEFT_FOR_PREFILL_BYTES) / (log.memory.free_bytes or found.device_memory_bytes)
    return int((found.mem_fraction_static + spare) * 100) / 100


def _sglang_variants(
    log: StartupLog, spec: ModelSpec, found: SglangPrediction
) -> Iterator[tuple[str, ServingSettings]]:
    settings, memory, static = log.settings, log.memory, found.mem_fraction_static
    if memory.left_bytes is not None and settings.gpu_memory_utilization is not None:
        raised = _raised_static(log, found)
        if static < raised < 1:
            yield f"raise --gpu-memory-utilization to {raised}", replace(settings, gpu_memory_utilization=raised)
    if sglang_cache_dtype(spec, settings.kv_cache_dtype) == "auto":
        yield "keep the KV cache in 8 bits: --kv-cache-dtype fp8", replace(settings, kv_cache_dtype="fp8")
    wider = replace(settings, tensor_parallel_size=settings.tensor_parallel_size * 2, gpu_memory_utilization=static)
    yield more_gpus(settings, wider), wider


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


def _changes(
    log: StartupLog, spec: ModelSpec, gpu: GpuProfile, prediction: VllmPrediction
) -> Iterator[SuggestedChange]:
    if prediction.outcome == "oom_weights":
        yield from _ways_to_fit(log, spec, gpu, prediction)
        return
    now = _held_tokens(prediction)
    for sentence, settings in _variants(log, gpu, prediction):
        changed = _tried(log, spec, gpu, settings)
        if changed is None:
            continue
        gained = _held_tokens(changed) - now
        if gained > max(_SMALL_GAIN * now, changed.block_size):
            yield SuggestedChange(sentence, gained)


def _ways_to_fit(
    log: StartupLog, spec: ModelSpec, gpu: GpuProfile, prediction: VllmPrediction
) -> Iterator[SuggestedChange]:
    """What holds the weights where these GPUs do not: the fewest more GPUs, and formats with fewer bits."""
    ranks = log.settings.tensor_parallel_size
    for more in (2 * ranks, 4 * ranks, 8 * ranks, 16 * ranks):
        found = _tried(log, spec, gpu, replace(log.settings, tensor_parallel_size=more))
        if found is not None and found.outcome != "oom_weights":
            each = format_bytes(found.rank.weight_bytes)
            wider = more_gpus(log.settings, replace(log.settings, tensor_parallel_size=more))
            yield SuggestedChange(f"{wider} ({each} of weights each){_shortened(found)}", _held_tokens(found))
            break
    if spec.quantization is not None:
        return
    for name in _SMALLER_FORMATS:
        found = _tried(log, with_quantization(spec, ServingSettings(quantization=name)), gpu, log.settings)
        if found is not None and found.outcome != "oom_weights":
            stored = f"{format_bytes(found.rank.weight_bytes)} instead of {format_bytes(prediction.rank.weight_bytes)}"
            yield SuggestedChange(f"take a checkpoint in {name}: {stored}{_shortened(found)}", _held_tokens(found))


_SMALLER_FORMATS = ("fp8", "awq")


def _shortened(found: VllmPrediction) -> str:
    """``, with --max-model-len 2560``: what vLLM refuses to start without, where one longest sequence has no room."""
    too_long = found.outcome == "rejected_ctx" and found.largest_max_model_len
    return f", with --max-model-len {found.largest_max_model_len}" if too_long else ""


def _tried(log: StartupLog, spec: ModelSpec, gpu: GpuProfile, settings: ServingSettings) -> VllmPrediction | None:
    try:
        return predict_vllm(spec, gpu, settings, _version(log))
    except KvplanError:
        return None


def _held_tokens(prediction: VllmPrediction) -> int:
    """Tokens of sequences of the longest length that the pool holds: groups of layers are not counted twice."""
    return int(prediction.max_concurrency * prediction.settings.serving.max_model_len)


def _variants(log: StartupLog, gpu: GpuProfile, prediction: VllmPrediction) -> Iterator[tuple[str, ServingSettings]]:
    settings, resolved, rank = log.settings, prediction.settings.serving, prediction.rank
    share = reachable_share(log.memory, (gpu,))
    if share >= resolved.gpu_memory_utilization + _SMALLEST_RAISE:
        yield f"raise --gpu-memory-utilization to {share:g}", replace(settings, gpu_memory_utilization=share)
    samples_much = rank.activation.decided_by == "sampler" or rank.state_bytes > 0
    if samples_much and resolved.max_num_seqs > _MANY_SEQUENCES:
        sentence = f"lower --max-num-seqs from {resolved.max_num_seqs} to {_MANY_SEQUENCES} (the sampler's logits)"
        yield sentence, replace(settings, max_num_seqs=_MANY_SEQUENCES)
    if rank.activation.decided_by == "decoder" and resolved.max_num_batched_tokens > 2048:
        chunks = f"lower --max-num-batched-tokens from {resolved.max_num_batched_tokens} to 2048"
        if not vllm_release(prediction.version).v1:
            chunks = "compute prompts in chunks: --enable-chunked-prefill --max-num-batched-tokens 2048"
        yield chunks, replace(settings, max_num_batched_tokens=2048)
    if rank.activation.decided_by == "compilation":
        sentence = (
            "start it again, with the compile cache (~/.cache/vllm) kept: this start may have compiled its kernels"
        )
        yield sentence, replace(settings, warm_start=True)
    if resolved.kv_cache_dtype in ("bfloat16", "float16", "float32"):
        yield "keep the KV cache in 8 bits: --kv-cache-dtype fp8", replace(settings, kv_cache_dtype="fp8")
    if rank.subtracted_graph_bytes:
        yield "disable CUDA graphs: --enforce-eager (slower)", replace(settings, enforce_eager=True)
    wider = replace(settings, tensor_parallel_size=settings.tensor_parallel_size * 2)
    yield more_gpus(settings, wider), wider


def difference_gib(part: AccountLine) -> float | None:
    """Logged less predicted, in GiB."""
    if part.logged_bytes is None or part.predicted_bytes is None:
        return None
    return (part.logged_bytes - part.predicted_bytes) / GIB
