"""Command lines to paste: one instance of a deployment in each engine's own options.

Option names are those of the engines' current documentation. Where an engine counts something else (llama.cpp's context
is that of all slots together) the number is converted, never just renamed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from kvplan.catalog.architectures import native_architectures
from kvplan.catalog.releases.sglang import sglang_release
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import Drafter, ModelSpec, QuantizationSpec
from kvplan.catalog.vllm_refusals import is_never_served
from kvplan.estimate.dtypes import head_scale_bytes, serving_dtype
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.vllm.block_sizes import default_block_size
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.settings import KNOBS, ServingSettings, option_of

ENGINES = ("kvplan", "vllm", "sglang", "tensorrt-llm", "tgi", "llama.cpp")
_VOWEL_SOUNDS = "afimn"
"""First letters of formats' names that are spoken with a vowel first: awq, fp8, int8, mxfp4, nvfp4."""
_MOST_STATIC = 0.99
"""SGLang takes shares below 1."""
_OF_VLLM = (
    "kv_cache_memory_bytes",
    "cpu_offload_gb",
    "limit_mm_per_prompt",
    "skip_mm_profiling",
    "language_model_only",
    "enforce_eager",
    "enable_prefix_caching",
)
_EIGHT_BIT = ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla")


def launch_commands(deployment: PlannedDeployment, model_id: str) -> dict[str, str]:
    """The command of each engine that can run this deployment, for one of its instances (on its first node).

    With adapters those alone whose slots for them are known, and so in the deployment's memory; of a model that attends
    to an encoder vLLM's alone, if vLLM serves it (``command_note`` says so), and with a drafter vLLM's alone, whose
    times are those that were planned.
    """
    checkpoint = checkpoint_name(deployment, model_id)
    layout, choice = deployment.choice.layout, deployment.choice
    spec = choice.weights.spec
    built = checkpoint_name(deployment, model_id, is_built=True)
    commands = {} if is_never_served(spec.architecture) else {"vllm": vllm_command(deployment, checkpoint)}
    if spec.attends_to_encoder or spec.drafter is not None or _only_of_vllm(deployment.prediction.settings.serving):
        return commands
    if _runs_here(deployment):
        commands["kvplan"] = _kvplan(deployment, model_id)
    has_adapters = deployment.prediction.settings.serving.lora_slots is not None
    # the others have no such cache
    if choice.num_nodes == 1 and not head_scale_bytes(choice.kv_cache_dtype) and not has_adapters:
        commands["sglang"] = _sglang(deployment, checkpoint)
        if choice.gpu.vendor == "nvidia" and not spec.is_gguf:
            commands["tensorrt-llm"] = _tensorrt(deployment, built)
        if layout.num_gpus == layout.tensor_parallel_size:
            if not spec.is_gguf:  # which neither of these two loads
                commands["tgi"] = _tgi(deployment, checkpoint)
            commands["llama.cpp"] = _llama_cpp(deployment, model_id)
    return {name: commands[name] for name in ENGINES if name in commands}


def _only_of_vllm(settings: ServingSettings) -> bool:
    """Whether a setting was asked for that the other engines do not have, or call otherwise."""
    return any(getattr(settings, name) != KNOBS[name].default for name in _OF_VLLM)


def command_note(spec: ModelSpec) -> str | None:
    """Why a model has fewer commands than others, or what is to be added to them; None where they are complete."""
    if not spec.attends_to_encoder:
        is_lacking = spec.is_gguf and spec.tokenizer is None
        is_nameless = spec.sized_as is not None and "/" not in spec.served_id
        nameless = f"{spec.served_id} is no id of the Hugging Face Hub: put its organisation before it."
        return _TOKENIZER_NOTE if is_lacking else nameless if is_nameless else None
    only = "no command is known" if is_never_served(spec.architecture) else "vLLM's command is the only one known"
    return f"{spec.served_id} attends to an encoder: {only} for it."


_TOKENIZER_NOTE = (
    "vLLM reads the tokenizer of a GGUF file from the model that it was made from, which this file does not name: add "
    "--tokenizer with its hub id or path."
)


def _runs_here(deployment: PlannedDeployment) -> bool:
    """Whether kvplan's own engine could run it: one device, a family that it knows, weights that are not quantized."""
    spec, layout = deployment.choice.weights.spec, deployment.choice.layout
    return spec.architecture in native_architectures() and spec.quantization is None and layout.num_gpus == 1


def checkpoint_name(deployment: PlannedDeployment, model_id: str, *, is_built: bool = False) -> str:
    """What to load: the model itself, or a placeholder for a checkpoint that must be had or quantized beforehand.

    is_built: the engine makes no format while it loads.
    """
    weights = deployment.choice.weights
    if model_id.endswith(".json"):  # a config by itself, without the checkpoint that it is of
        return f"<the checkpoint of {model_id}>"
    if weights.is_published or (weights.is_made_while_loading and not is_built):
        return model_id
    article = "an" if weights.name[0] in _VOWEL_SOUNDS else "a"
    return f"<{article} {weights.name} build of {model_id}>"


def _line(words: Sequence[object]) -> str:
    return " ".join(word if word.startswith("'<") else shlex.quote(word) for word in map(str, words))


def _kv_bits(deployment: PlannedDeployment) -> bool:
    """Say it as the memory was predicted: what vLLM takes from a checkpoint, others are told."""
    return deployment.prediction.settings.serving.kv_cache_dtype in _EIGHT_BIT


def _kvplan(deployment: PlannedDeployment, model_id: str) -> str:
    """A sweep of exactly one setting: kvplan's engine measures a plan, it does not serve one."""
    settings = deployment.prediction.settings.serving
    words: list[object] = ["kvplan", "sweep", "--model", model_id]
    words += ["--gpu-memory-utilization", settings.gpu_memory_utilization, "--max-num-seqs", settings.max_num_seqs]
    words += ["--block-size", settings.block_size, "--max-model-len", settings.max_model_len]
    words += ["--max-num-batched-tokens", settings.max_num_batched_tokens, "--dtype", settings.dtype]
    if deployment.choice.kv_cache_dtype != "auto":
        words += ["--kv-cache-dtype", deployment.choice.kv_cache_dtype]
    return _line(words + _slots(settings))


def _slots(settings: ServingSettings) -> list[object]:
    """Room for adapters, in the words of vLLM and kvplan alike."""
    slots = settings.lora_slots
    return [] if slots is None else ["--max-loras", slots.number, "--max-lora-rank", slots.rank]


def vllm_command(deployment: PlannedDeployment, checkpoint: str) -> str:
    settings, choice = deployment.prediction.settings.serving, deployment.choice
    words: list[object] = ["vllm", "serve", checkpoint, "--max-model-len", settings.max_model_len]
    if choice.weights.spec.tokenizer is not None:
        words += ["--tokenizer", choice.weights.spec.tokenizer]
    words += ["--max-num-seqs", settings.max_num_seqs, "--max-num-batched-tokens", settings.max_num_batched_tokens]
    words += ["--gpu-memory-utilization", settings.gpu_memory_utilization]
    words += _vllm_sizes(choice.layout)
    spec, release = choice.weights.spec, vllm_release(deployment.prediction.version)
    if settings.dtype != serving_dtype(spec.dtype, "auto"):
        words += ["--dtype", settings.dtype]
    if settings.block_size != default_block_size(spec, choice.gpu, release, settings.kv_cache_dtype):
        words += ["--block-size", settings.block_size]
    if choice.weights.is_made_while_loading:
        words += ["--quantization", "fp8"]
    if choice.kv_cache_dtype != "auto":
        words += ["--kv-cache-dtype", choice.kv_cache_dtype]
    if settings.lora_slots is not None:
        words += ["--enable-lora", *_slots(settings)]
    if settings.moe_backend != "auto":
        words += ["--moe-backend", settings.moe_backend]
    if spec.drafter is not None:
        words += ["--speculative-config", speculative_config(spec.drafter)]
    return _line(words + _asked_of_vllm(settings))


def _asked_of_vllm(settings: ServingSettings) -> list[object]:
    """Settings that a plan takes as they are asked for, of engines vLLM's alone."""
    words: list[object] = []
    for name in _OF_VLLM:
        value, knob = getattr(settings, name), KNOBS[name]
        if value == knob.default:
            continue
        if knob.kind == "flag":
            words.append(knob.option if value else option_of(f"no_{name}"))
        else:
            words += [knob.option, f"{value:g}" if isinstance(value, float) else value]
    return words


def speculative_config(drafter: Drafter) -> str:
    """Write it as vLLM takes it."""
    config: dict[str, str | int] = {"method": drafter.method}
    if drafter.model is not None and drafter.method != "mtp":
        config["model"] = drafter.model.served_id if drafter.method == "draft_model" else drafter.name
    return json.dumps(config | {"num_speculative_tokens": drafter.num_tokens})


def _vllm_sizes(layout: ParallelLayout) -> list[object]:
    sizes = {
        "--tensor-parallel-size": layout.tensor_parallel_size,
        "--pipeline-parallel-size": layout.pipeline_parallel_size,
        "--data-parallel-size": layout.data_parallel_size,
    }
    words: list[object] = [word for option, size in sizes.items() if size > 1 for word in (option, size)]
    return [*words, "--enable-expert-parallel"] if layout.enable_expert_parallel else words


def _sglang(deployment: PlannedDeployment, checkpoint: str) -> str:
    """SGLang's fraction covers weights and KV pool; activations lie outside it, so it is smaller than vLLM's.

    Groups that attend beside each other share the requests and the prompt tokens of a step that it is given
    (max_running_requests of kv_cache_configurator.py, chunked_prefill_size of parallel_hook.py in 0.5.23).
    """
    settings, choice = deployment.prediction.settings.serving, deployment.choice
    rank = deployment.prediction.rank
    static = (rank.weight_bytes + max(rank.available_kv_bytes, 0)) / settings.device_memory_bytes
    words: list[object] = ["python", "-m", "sglang.launch_server", "--model-path", checkpoint]
    groups = choice.layout.data_parallel_size
    words += ["--context-length", settings.max_model_len, "--max-running-requests", groups * settings.max_num_seqs]
    words += ["--chunked-prefill-size", groups * settings.max_num_batched_tokens]
    words += ["--mem-fraction-static", f"{min(static, _MOST_STATIC):.2f}"]
    words += _sglang_sizes(choice.layout)
    if choice.weights.is_made_while_loading:
        words += ["--quantization", "fp8"]
    if _kv_bits(deployment):
        words += ["--kv-cache-dtype", "fp8_e4m3"]
    if settings.moe_backend != "auto":
        words += ["--moe-runner-backend", settings.moe_backend]
    return _line(words)


def _sglang_sizes(layout: ParallelLayout) -> list[object]:
    """SGLang counts all GPUs of a stage as tensor-parallel ranks, and data-parallel groups among them."""
    words: list[object] = []
    if layout.expert_ranks > 1:
        words += ["--tp", layout.expert_ranks]
    if layout.pipeline_parallel_size > 1:
        words += ["--pp-size", layout.pipeline_parallel_size]
    if layout.data_parallel_size > 1:
        groups = layout.data_parallel_size
        is_named = sglang_release().names_attention_groups
        words += ["--attn-dp-size", groups] if is_named else ["--dp-size", groups, "--enable-dp-attention"]
    return [*words, "--ep-size", layout.expert_ranks] if layout.enable_expert_parallel else words


def _tensorrt(deployment: PlannedDeployment, checkpoint: str) -> str:
    """TensorRT-LLM's fraction is of the memory that is free once weights and engine are loaded."""
    settings, choice = deployment.prediction.settings.serving, deployment.choice
    rank = deployment.prediction.rank
    free = settings.device_memory_bytes - rank.weight_bytes - rank.activation.warm_peak_bytes - rank.non_torch_bytes
    fraction = max(min(rank.available_kv_bytes / max(free, 1), 0.95), 0.05)
    words: list[object] = ["trtllm-serve", checkpoint, "--max_seq_len", settings.max_model_len]
    words += ["--max_batch_size", settings.max_num_seqs, "--max_num_tokens", settings.max_num_batched_tokens]
    words += ["--kv_cache_free_gpu_memory_fraction", f"{fraction:.2f}"]
    if choice.layout.expert_ranks > 1:
        words += ["--tp_size", choice.layout.expert_ranks]
    if choice.layout.pipeline_parallel_size > 1:
        words += ["--pp_size", choice.layout.pipeline_parallel_size]
    if choice.layout.enable_expert_parallel:
        words += ["--ep_size", choice.layout.expert_ranks]
    return _line(words)


def _tgi(deployment: PlannedDeployment, checkpoint: str) -> str:
    settings, choice = deployment.prediction.settings.serving, deployment.choice
    words: list[object] = ["text-generation-launcher", "--model-id", checkpoint]
    words += ["--max-total-tokens", settings.max_model_len, "--max-input-tokens", settings.max_model_len - 1]
    words += ["--max-concurrent-requests", settings.max_num_seqs]
    words += ["--max-batch-prefill-tokens", max(settings.max_num_batched_tokens, settings.max_model_len)]
    words += ["--cuda-memory-fraction", settings.gpu_memory_utilization]
    if choice.layout.tensor_parallel_size > 1:
        words += ["--num-shard", choice.layout.tensor_parallel_size]
    if choice.weights.is_made_while_loading:
        words += ["--quantize", "fp8"]
    if _kv_bits(deployment):
        words += ["--kv-cache-dtype", "fp8_e4m3fn"]
    return _line(words)


def _llama_cpp(deployment: PlannedDeployment, model_id: str) -> str:
    """llama.cpp shares one context between its slots: slots x average context, and at least one longest sequence.

    It counts tokens, whatever one takes: layers with windows and states have caches of their own beside it.
    """
    settings, choice = deployment.prediction.settings.serving, deployment.choice
    slots = max(int(deployment.served.num_running), 1)
    context = max(slots * deployment.capacity.planned_tokens, settings.max_model_len)
    form = _gguf_form(choice.weights.spec.quantization)
    is_file = choice.weights.spec.is_gguf
    file = model_id if is_file else f"{model_id.rsplit('/', 1)[-1]}-{form}.gguf"
    words: list[object] = ["llama-server", "--model", file]
    words += ["--ctx-size", context, "--parallel", slots, "--kv-unified", "--n-gpu-layers", 999]
    if _kv_bits(deployment):
        words += ["--cache-type-k", "q8_0", "--cache-type-v", "q8_0"]
    if choice.layout.tensor_parallel_size > 1:
        words += ["--split-mode", "row", "--tensor-split", ",".join(["1"] * choice.layout.tensor_parallel_size)]
    return _line(words)


def _gguf_form(quantization: QuantizationSpec | None) -> str:
    if quantization is None:
        return "F16"
    if quantization.method == "mxfp4":
        return "MXFP4"
    return "Q8_0" if quantization.bits >= 8 else "Q4_K_M"
