"""The deployment of a row, as a plan has it: model, GPU, layout, formats, settings and load."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.releases.sglang import sglang_release
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import UsageError
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.host import IN_PROCESS
from kvplan.planner.choices.deployment import DeploymentChoice
from kvplan.planner.choices.formats import WeightFormat, weight_formats
from kvplan.planner.question.request import PlanRequest, Workload
from kvplan.settings import KNOBS, ServingSettings
from published_speeds.models import FP4_CHECKPOINTS, gpu_named, model_kind, model_named
from published_speeds.newest import newest_release
from published_speeds.rows import PublishedRow
from published_speeds.samples import sample_of

ENGINES = {"vLLM": "vllm", "SGLang": "sglang", "TensorRT-LLM": "trtllm"}
"""As rows and as kvplan call them."""
_FORMATS = (("awq", "awq"), ("gptq", "gptq"), ("nvfp4", "nvfp4"), ("int8", "int8"), ("int4", "int4"), ("fp8", "fp8"))
"""How a row calls a format and how ``--quantization`` does; the first that the cell contains."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """A row's deployment: ``replicas`` instances of ``choice``, each with its share of ``workload``.

    ``version``: of the row's engine; ``backend``: of TensorRT-LLM, where it is not its release's default, and
    ``IN_PROCESS`` of vLLM without a server.
    ``workload``: of one replica; its ``num_users`` are requests sent at once, or in flight at most. ``states_longest``:
    max_model_len is what was set, not a guess.
    """

    engine: str
    version: str
    choice: DeploymentChoice
    replicas: int
    settings: ServingSettings
    workload: Workload
    states_longest: bool = False
    backend: str = ""

    @property
    def vllm_version(self) -> str:
        """That of the start which stands for other engines' too."""
        return self.version if self.engine == "vLLM" else "latest"

    @property
    def spec(self) -> ModelSpec:
        return self.choice.weights.spec

    @property
    def is_first_engine(self) -> bool:
        """vLLM's, before 0.8."""
        return self.engine == "vLLM" and not vllm_release(self.version).v1

    @property
    def request(self) -> PlanRequest:
        """What a user of ``plan`` would ask, of the row's engine."""
        engine = EngineChoice(ENGINES[self.engine], self.version, self.backend)
        return PlanRequest(engine=engine, settings=self.settings)


def deployed(row: PublishedRow) -> Deployed:
    """KvplanError where the model, the GPU or the engine is not known, or its formats are not."""
    engine = row.text["engine"]
    if engine not in ENGINES:
        raise UsageError(f"the engine is {engine}")
    weights = _weights(row.text["model"], row.text["quantization"])
    layout, replicas = _layout(row, weights.spec)
    replicas = min(replicas, row.max_concurrency or replicas)  # no more than those who ask keep busy
    kv_cache_dtype = row.text["kv_cache_dtype"] or _cache_of_checkpoint(row)
    return Deployed(
        engine=engine,
        version=release_of(row),
        backend=_backend(row),
        choice=DeploymentChoice(_gpu(row), layout, weights, kv_cache_dtype),
        replicas=replicas,
        settings=_settings(row, layout, kv_cache_dtype),
        workload=_workload(row, replicas),
        states_longest=_stated_longest(row) is not None,
    )


_MODELOPT = "modelopt"


def _cache_of_checkpoint(row: PublishedRow) -> str:
    """NVIDIA's 8- and 4-bit checkpoints ask for K and V in fp8 (hf_quant_config.json); which engines do so."""
    engine, version = row.text["engine"], release_of(row)
    if not (row.text["model"].startswith("nvidia/") and row.text["quantization"].startswith(("fp8", "nvfp4"))):
        return "auto"
    followed: tuple[str, ...] = (_MODELOPT,)
    if engine == "vLLM":
        followed = vllm_release(version).stated_cache
    elif engine == "SGLang":
        followed = sglang_release(version).stated_cache
    return "fp8" if _MODELOPT in followed else "auto"


def _gpu(row: PublishedRow) -> GpuProfile:
    """With the bridge that its form may have where the row says so."""
    name, form = row.text["gpu"], row.text["gpu_form"]
    gpu = gpu_named(f"{name} {form}" if form and form.casefold() not in name.casefold() else name)
    return gpu.with_bridge() if row.says("nvlink_bridge") else gpu


@cache
def _weights(model: str, quantization: str) -> WeightFormat:
    """The checkpoint's own format, or the row's where the checkpoint is plain. One object for all rows of a model.

    A fine-tune in 16 bits of a model that was published quantized says none, one in 4 bits fp4.
    """
    spec = model_named(model)
    if quantization.startswith("fp4"):
        spec = model_named(FP4_CHECKPOINTS.get(model, model))
    if quantization.startswith("none"):
        return weight_formats(replace(spec, quantization=None, checkpoint=None), None)[0]
    wanted = next((name for word, name in _FORMATS if word in quantization), None)
    if wanted is None or spec.quantization is not None:
        return weight_formats(spec, None)[0]
    return weight_formats(spec, (wanted,))[0]


def _layout(row: PublishedRow, spec: ModelSpec) -> tuple[ParallelLayout, int]:
    """(one instance, number of them). Groups beside each other are instances unless they share experts.

    SGLang's do so with dp attention alone: each group has a whole model otherwise (as its /get_server_info tells).
    Without --dp-size it turns that off, but in its first releases each GPU was a group then. Its experts stay divided
    by all GPUs unless --ep-size says otherwise (server_args.py).
    """
    tensor, pipeline, data = row.tensor_parallel_size, row.pipeline_parallel_size, row.data_parallel_size
    is_mixture, attends_in_groups = model_kind(spec) != "dense", row.says("attention_dp")
    if row.text["engine"] == "SGLang":
        is_each_gpu = sglang_release(row.text["engine_version"].lstrip("v")).attends_on_each_gpu
        attends_in_groups = attends_in_groups and (data > 1 or is_each_gpu)
    if attends_in_groups and is_mixture:
        groups = max(data, 1) if data > 1 else row.num_gpus
        with_experts = row.text["engine"] != "SGLang" or _expert_parallel(row)
        return _parallel(max(row.num_gpus // groups, 1), 1, groups, with_experts=with_experts), 1
    shares_experts = not row.says("independent_replicas") and row.text["engine"] != "SGLang"
    if data > 1 and is_mixture and shares_experts:
        return _parallel(tensor, pipeline, data, with_experts=bool(_expert_parallel(row))), 1
    return _parallel(tensor, pipeline, 1, with_experts=is_mixture and _expert_parallel(row)), data


def _expert_parallel(row: PublishedRow) -> bool:
    return row.text["ep"] not in ("", "1")


def _parallel(tensor: int, pipeline: int, data: int, *, with_experts: bool) -> ParallelLayout:
    return ParallelLayout(
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        data_parallel_size=data,
        enable_expert_parallel=with_experts,
    )


def _backend(row: PublishedRow) -> str:
    """TensorRT-LLM's, where the command names it, and vLLM's without a server."""
    if row.text["engine"] == "vLLM" and row.text["api"] == IN_PROCESS:
        return IN_PROCESS
    return row.text["backend"] if row.text["engine"] == "TensorRT-LLM" else ""


def _moe_backend(row: PublishedRow) -> str:
    """Of TensorRT-LLM, where the source's own script has a ``moe_config``, and of SGLang with "modelopt".

    That leaves its default, cutlass_moe_fp4; fp8, modelopt_fp8 and modelopt_fp4 get TensorRT-LLM's experts (0.5.9,
    sglang/srt/server_args.py and layers/quantization/modelopt_quant.py).
    """
    if row.text["engine"] == "SGLang" and row.text["quantization_option"] == "modelopt":
        return "cutlass"
    stated = row.text["moe_backend"]
    return KNOBS["moe_backend"].canonical_name(stated.upper()) if stated else "auto"


def release_of(row: PublishedRow) -> str:
    """As stated, else the newest one of the row's day, else the newest of all."""
    stated = _version(row.text["engine_version"])
    return stated if stated != _LATEST else newest_release(row.text["engine"], row.text["date"]) or stated


_LATEST = "latest"


def _version(text: str) -> str:
    """``0.11.0`` of "v0.11.0 (inferred)"; the latest where no release is stated."""
    found = re.search(r"\d+\.\d+(\.\d+)?", text)
    return found.group() if found else _LATEST


def _settings(row: PublishedRow, layout: ParallelLayout, kv_cache_dtype: str) -> ServingSettings:
    utilization = row.text["gpu_memory_utilization"]
    return ServingSettings(
        gpu_memory_utilization=float(utilization) if re.fullmatch(r"[\d.]+", utilization) else None,
        max_num_seqs=_most_running(row),
        max_num_batched_tokens=_batched_tokens(row),
        max_model_len=_longest(row),
        tensor_parallel_size=layout.tensor_parallel_size,
        pipeline_parallel_size=layout.pipeline_parallel_size,
        data_parallel_size=layout.data_parallel_size,
        enable_expert_parallel=layout.enable_expert_parallel,
        kv_cache_dtype=kv_cache_dtype,
        moe_backend=_moe_backend(row),
        enforce_eager=row.says("enforce_eager"),
        enable_prefix_caching=False if row.text["prefix_caching"] == "no" else None,
    )


def _most_running(row: PublishedRow) -> int | None:
    """None where it was given to the engine of other runs alone."""
    text = row.text["max_num_seqs"]
    is_set = row.text["max_num_seqs_of"] in row.text["request_rate"]
    return int(text) if text.isdigit() and is_set else None


def _batched_tokens(row: PublishedRow) -> int | None:
    text = row.text["max_num_batched_tokens"]
    return int(text) if text.isdigit() else None


def _longest(row: PublishedRow) -> int:
    """What was set; else prompt and answer, rounded up to what somebody may have set."""
    if stated := _stated_longest(row):
        return stated
    tokens = round(row.input_tokens) + round(row.output_tokens)
    return -(-tokens // 1024) * 1024


def _stated_longest(row: PublishedRow) -> int | None:
    sample, stated = sample_of(row), row.number("max_model_len")
    if sample:
        return sample.max_model_len
    return None if stated is None else int(stated)


def _workload(row: PublishedRow, replicas: int) -> Workload:
    prompt, answer = max(round(row.input_tokens), 1), max(round(row.output_tokens), 1)
    at_once = min(each for each in (row.max_concurrency, row.num_prompts, 100_000) if each is not None)
    rate = row.request_rate
    return Workload(
        num_users=max(round(at_once / replicas), 1) if rate is None else None,
        requests_per_second=None if rate is None else rate / replicas,
        average_context=prompt + answer // 2,
        longest_context=prompt + answer,
        input_tokens=prompt,
        output_tokens=answer,
        assumptions=(),
    )
