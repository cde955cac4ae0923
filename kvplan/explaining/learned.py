"""What a log teaches: a model on a GPU as it started, for predictions of the two with other settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from kvplan.catalog.devices.gpus import GpuCount, GpuProfile
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.question import tensor_parallel_size
from kvplan.estimate.vllm.learned import LearnedStart
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.estimate.vllm.ranges import kv_range
from kvplan.explaining.account import outside_sentences, parts_of
from kvplan.explaining.explanation import is_another_checkpoint
from kvplan.explaining.reading import is_another_model, named_model, read_log
from kvplan.explaining.startup_log import StartupLog
from kvplan.explaining.stated_settings import overridden
from kvplan.explaining.which_gpu import fitting_gpus
from kvplan.settings import KV_CACHE_DTYPES, ServingSettings


class LogBasis(NamedTuple):
    """What a prediction from a log starts from.

    ``spec``: the model that was named, or the log's; ``settings``: those of the log, and what was given instead of
    them; ``contexts``: its longest sequence, as an option has it.
    """

    learned: LearnedStart
    spec: ModelSpec
    gpu: GpuProfile
    engine: EngineChoice
    settings: ServingSettings
    contexts: tuple[str, ...]
    notes: tuple[str, ...]


def basis_of(
    path: Path, spec: ModelSpec | None, counted: GpuCount | None, engine: EngineChoice, given: ServingSettings
) -> LogBasis:
    """Learn from the log at ``path``. ``spec`` None: the model that it names; ``counted`` None: the GPU that fits it.

    KvplanError where it teaches nothing.
    """
    if engine.name != "vllm":
        raise UsageError("--from-log is for vLLM's memory.", hint="leave --engine out")
    found, note = read_log(path)
    notes = list(found.notes) + ([] if note is None else [note])
    if spec is None:
        spec = _model_of(found, path)
        notes.append(f"Model taken to be {spec.served_id}, which the log names.")
    gpu = None if counted is None else counted.gpu
    if gpu is None:
        fitting = fitting_gpus(found)
        if len(fitting.profiles) != 1:
            raise KvplanError(f"{path} does not tell its GPU.", hint="name it with --gpu")
        gpu = fitting.profiles[0]
        notes.append(fitting.note or "")
    if found.engine == "vllm" and is_another_model(spec, found.model):
        raise UsageError(
            f"{path} is of {found.model}, not of {spec.title}.", hint="name that model, or pass a log of this one"
        )
    learned = learn(found, spec, gpu)
    notes.append(_outside(found, spec, gpu) or "")
    settings, _ = overridden(_carried(found.settings), given)
    if counted is not None and counted.num_gpus > 1:
        settings = replace(settings, tensor_parallel_size=tensor_parallel_size(counted, given))
    version = (found.version or found.wording or "latest") if engine.version == "latest" else engine.version
    length = found.settings.max_model_len
    return LogBasis(
        learned,
        spec,
        gpu,
        replace(engine, version=version),
        replace(settings, max_model_len=None),
        () if length is None else (str(length),),
        tuple(filter(None, notes)),
    )


def _outside(log: StartupLog, spec: ModelSpec, gpu: GpuProfile) -> str | None:
    """What is to be said where the log's cache lies outside the interval that is predicted of it."""
    found = predict_vllm(spec, gpu, log.settings, log.version or log.wording or "latest")
    return outside_sentences(log, kv_range(spec, gpu, found), parts_of(log, found))


def _model_of(log: StartupLog, path: Path) -> ModelSpec:
    """The model that the log names. UsageError where it names none, or one that is not known."""
    found = named_model(None, log.model)
    if found is not None:
        return found
    what = "does not name its model" if log.model is None else f"is of {log.model}, which is not known here"
    raise UsageError(f"{path} {what}.", hint="name the model, or its config.json, before --from-log")


def _carried(logged: ServingSettings) -> ServingSettings:
    """Settings that a prediction takes from a log: not the device's memory, nor formats that go by other names."""
    known = logged.kv_cache_dtype if logged.kv_cache_dtype in KV_CACHE_DTYPES else "auto"
    return replace(
        logged, device_memory_bytes=None, quantization="auto", kv_cache_memory_bytes=None, kv_cache_dtype=known
    )


def learn(log: StartupLog, spec: ModelSpec, gpu: GpuProfile) -> LearnedStart:
    """Compare the log with what is predicted of it. UsageError where it is none of vLLM on a GPU with a KV cache."""
    memory = log.memory
    if log.engine != "vllm" or log.device != "gpu":
        raise UsageError("Only a log of vLLM on a GPU can be predicted from.", hint="leave --from-log out")
    if memory.kv_pool_bytes is None or log.has_given_pool:
        raise UsageError(
            "The log has no KV cache that follows from a share of the GPU.",
            hint="pass one with a line like 'Available KV cache memory: 20.0 GiB'",
        )
    version = log.version or log.wording or "latest"
    found = predict_vllm(spec, gpu, log.settings, version)
    rank = found.rank
    if is_another_checkpoint(log, found):
        raise UsageError(
            f"By its memory the log is not of {spec.title} as kvplan takes it to be stored.",
            hint="name the model or the format that it is of, or pass the model's config.json",
        )
    weights = _more(memory.weight_bytes, rank.weight_bytes)
    state = rank.state_bytes if memory.consumed_bytes is not None else 0
    outside = _more(memory.non_torch_bytes, rank.non_torch_bytes + state)
    peak = _more(memory.activation_bytes, rank.activation.peak_bytes)
    graphs = _more(memory.graph_estimate_bytes, rank.subtracted_graph_bytes) if rank.subtracted_graph_bytes else None
    if memory.peak_with_graphs_bytes is not None:
        peak = _more(memory.peak_with_graphs_bytes, rank.activation.peak_bytes + rank.subtracted_graph_bytes)
    told = sum(figure or 0 for figure in (weights, outside, peak, graphs))
    return LearnedStart(
        gpu_id=gpu.id,
        version=found.version,
        settings=found.settings.serving,
        device_memory_bytes=memory.total_bytes,
        weight_bytes=weights,
        non_torch_bytes=outside,
        activation_bytes=peak,
        graph_bytes=graphs,
        rest_bytes=rank.available_kv_bytes - memory.kv_pool_bytes - told,
    )


def _more(logged: int | None, predicted: int) -> int | None:
    return None if logged is None else logged - predicted
