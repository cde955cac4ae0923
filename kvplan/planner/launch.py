"""Command lines to paste: one deployment in each engine's own options.

Option names are those of the engines' current documentation. Where an engine counts something else (llama.cpp's context
is that of all slots together) the number is converted, never just renamed.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from kvplan.planner.candidate import Deployment

ENGINES = ("kvplan", "vllm", "sglang", "tensorrt-llm", "tgi", "llama.cpp")
_EIGHT_BIT = ("fp8", "fp8_e4m3", "fp8_e5m2")


def launch_commands(deployment: Deployment, model_id: str) -> dict[str, str]:
    """The command of each engine for one replica of ``deployment``."""
    checkpoint = checkpoint_name(deployment, model_id)
    return {
        "kvplan": _kvplan(deployment, model_id),
        "vllm": _vllm(deployment, checkpoint),
        "sglang": _sglang(deployment, checkpoint),
        "tensorrt-llm": _tensorrt(deployment, checkpoint),
        "tgi": _tgi(deployment, checkpoint),
        "llama.cpp": _llama_cpp(deployment, model_id),
    }


def checkpoint_name(deployment: Deployment, model_id: str) -> str:
    """What to load: the model itself, or a placeholder for a checkpoint that must be quantized beforehand."""
    weights = deployment.choice.weights
    if weights.is_published or weights.name == "fp8":
        return model_id
    return f"<a {weights.name} build of {model_id}>"


def _line(words: Sequence[object]) -> str:
    return " ".join(word if word.startswith("'<") else shlex.quote(word) for word in map(str, words))


def _kv_bits(deployment: Deployment) -> bool:
    return deployment.choice.kv_cache_dtype in _EIGHT_BIT


def _kvplan(deployment: Deployment, model_id: str) -> str:
    """A sweep of exactly one setting: kvplan's engine measures a plan, it does not serve one."""
    settings = deployment.prediction.settings.serving
    words: list[object] = ["kvplan", "sweep", "--model", model_id]
    words += ["--gpu-memory-utilization", settings.gpu_memory_utilization, "--max-num-seqs", settings.max_num_seqs]
    words += ["--block-size", settings.block_size, "--max-model-len", settings.max_model_len]
    line = _line(words)
    if deployment.choice.tensor_parallel_size > 1:
        line += "  # on one device: kvplan's engine does not split a model"
    return line


def _vllm(deployment: Deployment, checkpoint: str) -> str:
    settings, choice = deployment.prediction.settings.serving, deployment.choice
    words: list[object] = ["vllm", "serve", checkpoint, "--max-model-len", settings.max_model_len]
    words += ["--max-num-seqs", settings.max_num_seqs, "--max-num-batched-tokens", settings.max_num_batched_tokens]
    words += ["--gpu-memory-utilization", settings.gpu_memory_utilization]
    if choice.tensor_parallel_size > 1:
        words += ["--tensor-parallel-size", choice.tensor_parallel_size]
    if choice.weights.name == "fp8" and not choice.weights.is_published:
        words += ["--quantization", "fp8"]
    if choice.kv_cache_dtype != "auto":
        words += ["--kv-cache-dtype", choice.kv_cache_dtype]
    return _line(words)


def _sglang(deployment: Deployment, checkpoint: str) -> str:
    """SGLang's fraction covers weights and KV pool; activations lie outside it, so it is smaller than vLLM's."""
    settings, choice = deployment.prediction.settings.serving, deployment.choice
    rank = deployment.prediction.rank
    static = (rank.weight_bytes + max(rank.available_kv_bytes, 0)) / settings.device_memory_bytes
    words: list[object] = ["python", "-m", "sglang.launch_server", "--model-path", checkpoint]
    words += ["--context-length", settings.max_model_len, "--max-running-requests", settings.max_num_seqs]
    words += ["--chunked-prefill-size", settings.max_num_batched_tokens, "--mem-fraction-static", f"{static:.2f}"]
    if choice.tensor_parallel_size > 1:
        words += ["--tp", choice.tensor_parallel_size]
    if choice.weights.name == "fp8" and not choice.weights.is_published:
        words += ["--quantization", "fp8"]
    if _kv_bits(deployment):
        words += ["--kv-cache-dtype", "fp8_e4m3"]
    return _line(words)


def _tensorrt(deployment: Deployment, checkpoint: str) -> str:
    """TensorRT-LLM's fraction is of the memory that is free once weights and engine are loaded."""
    settings, choice = deployment.prediction.settings.serving, deployment.choice
    rank = deployment.prediction.rank
    free = settings.device_memory_bytes - rank.weight_bytes - rank.activation.peak_bytes - rank.non_torch_bytes
    fraction = max(min(rank.available_kv_bytes / max(free, 1), 0.95), 0.05)
    words: list[object] = ["trtllm-serve", checkpoint, "--max_seq_len", settings.max_model_len]
    words += ["--max_batch_size", settings.max_num_seqs, "--max_num_tokens", settings.max_num_batched_tokens]
    words += ["--kv_cache_free_gpu_memory_fraction", f"{fraction:.2f}"]
    if choice.tensor_parallel_size > 1:
        words += ["--tp_size", choice.tensor_parallel_size]
    return _line(words)


def _tgi(deployment: Deployment, checkpoint: str) -> str:
    settings, choice = deployment.prediction.settings.serving, deployment.choice
    words: list[object] = ["text-generation-launcher", "--model-id", checkpoint]
    words += ["--max-total-tokens", settings.max_model_len, "--max-input-tokens", settings.max_model_len - 1]
    words += ["--max-concurrent-requests", settings.max_num_seqs]
    words += ["--max-batch-prefill-tokens", max(settings.max_num_batched_tokens, settings.max_model_len)]
    words += ["--cuda-memory-fraction", settings.gpu_memory_utilization]
    if choice.tensor_parallel_size > 1:
        words += ["--num-shard", choice.tensor_parallel_size]
    if choice.weights.name == "fp8" and not choice.weights.is_published:
        words += ["--quantize", "fp8"]
    if _kv_bits(deployment):
        words += ["--kv-cache-dtype", "fp8_e4m3fn"]
    return _line(words)


def _llama_cpp(deployment: Deployment, model_id: str) -> str:
    """llama.cpp shares one context between its slots: slots x average context, and at least one longest sequence."""
    settings, choice = deployment.prediction.settings.serving, deployment.choice
    slots = max(int(deployment.users_per_replica), 1)
    average = deployment.capacity.average_bytes / max(deployment.capacity.worst_bytes, 1) * settings.max_model_len
    context = max(int(slots * average), settings.max_model_len)
    quantization = choice.weights.spec.quantization
    form = "F16" if quantization is None else "Q8_0" if quantization.bits >= 8 else "Q4_K_M"
    words: list[object] = ["llama-server", "--model", f"{model_id.rsplit('/', 1)[-1]}-{form}.gguf"]
    words += ["--ctx-size", context, "--parallel", slots, "--kv-unified", "--n-gpu-layers", 999]
    if _kv_bits(deployment):
        words += ["--cache-type-k", "q8_0", "--cache-type-v", "q8_0"]
    if choice.tensor_parallel_size > 1:
        words += ["--split-mode", "row", "--tensor-split", ",".join(["1"] * choice.tensor_parallel_size)]
    return _line(words)
