"""What engines print when they start, as regular expressions. AMOUNT is a number of GiB."""

from __future__ import annotations

import re

AMOUNT = r"(-?\d+(?:\.\d+)?) ?Gi?B"
MEMORY: tuple[tuple[str, str], ...] = (
    ("weight_bytes", rf"Model loading took {AMOUNT}"),
    ("weight_bytes", rf"Loading model weights took {AMOUNT}"),
    ("weight_bytes", rf"model weights take {AMOUNT}"),
    ("weight_bytes", rf"Actual usage is {AMOUNT} for weight"),
    ("weight_bytes", rf"Load weight end\..*mem usage={AMOUNT}"),
    ("activation_bytes", rf"PyTorch activation peak memory takes {AMOUNT}"),
    ("activation_bytes", rf"{AMOUNT} for peak activation"),
    ("non_torch_bytes", rf"non_torch_memory takes {AMOUNT}"),
    ("non_torch_bytes", rf"{AMOUNT} for non-torch memory"),
    ("graph_bytes", rf"Graph capturing finished in .*took {AMOUNT}"),
    ("graph_bytes", rf"{AMOUNT} for CUDAGraph memory"),
    ("graph_bytes", rf"Estimated CUDA graph memory: {AMOUNT} total"),
    ("graph_bytes", rf"Capture cuda graph end\..*mem usage={AMOUNT}"),
    ("total_bytes", rf"total_gpu_memory ?[(=]{AMOUNT}"),
    ("total_bytes", rf"has a total capacity of {AMOUNT}"),
    ("total_bytes", rf"Free memory on device.*?\(-?[\d.]+/{AMOUNT}\)"),
    ("free_bytes", rf"Load weight begin\. avail mem={AMOUNT}"),
    ("free_bytes", r"Free memory on device.*?\((-?[\d.]+)/[\d.]+ GiB\)"),
    ("budget_bytes", rf"gpu_memory_utilization \([\d.]+\) = {AMOUNT}"),
    ("budget_bytes", rf"GPU memory utilization (?:is )?\([\d.]+, {AMOUNT}\)"),
    ("left_bytes", rf"available_gpu_mem={AMOUNT}"),
    ("left_bytes", rf"Capture (?:target )?(?:decode )?(?i:cuda) graph end\..*avail mem={AMOUNT}"),
    ("needed_kv_bytes", rf"\(?{AMOUNT} KV cache is needed"),
)
CPU_MEMORY: tuple[tuple[str, str], ...] = (
    ("total_bytes", r"(?:Explicitly|Auto) set \([\d.]+/([\d.]+)\) GiB for KV cache"),
    ("total_bytes", rf"Available memory on node \d+ \(-?[\d.]+/{AMOUNT}\)"),
    ("free_bytes", r"Available memory on node \d+ \((-?[\d.]+)/"),
    ("budget_bytes", rf"with {AMOUNT} requested memory for the worker"),
    ("budget_bytes", rf"CPU memory utilization \([\d.]+, {AMOUNT}\)"),
    ("budget_bytes", rf"requested memory for kv \(-?[\d.]+/{AMOUNT}\)"),
    ("used_bytes", rf"{AMOUNT} memory was consumed by non-kv usages"),
    ("kv_pool_bytes", r"(?:Explicitly|Auto) set \(([\d.]+)/"),
    ("kv_pool_bytes", rf"larger than the available KV cache memory \({AMOUNT}\)"),
    ("kv_pool_bytes", r"requested memory for kv \((-?[\d.]+)(?:/| GiB)"),
    ("kv_pool_bytes", r"VLLM_CPU_KVCACHE_SPACE .*not set, using ([\d.]+) by default"),
    ("kv_pool_bytes", rf"VLLM_CPU_KVCACHE_SPACE not set\. Using {AMOUNT} for KV cache"),
)
"""vLLM on a CPU (vllm/v1/worker/cpu_worker.py, vllm/platforms/cpu.py): what stands under which name, in GiB."""
CPU_SIGNS = (
    "device_config=cpu",
    "detected platform cpu",
    "[cpu_worker.py",
    "[cpu_model_runner.py",
    "Available memory on node",
)
SGLANG_SIGNS = ("ServerArgs(", "KV Cache is allocated", "mem-fraction-static", "mem_fraction_static")
CPU_BLOCKS = r"# (?:cpu|CPU) blocks: (\d+)"
OUT_OF_MEMORY: tuple[tuple[str, str], ...] = (
    ("tried_bytes", r"Tried to allocate ([\d.]+ [KMG]iB)"),
    ("free_bytes", r"of which ([\d.]+ [KMG]iB) is free"),
    ("process_bytes", r"(?:this process has|Process \d+ has) ([\d.]+ [KMG]iB) memory in use"),
    ("unused_bytes", r"and ([\d.]+ [KMG]iB) is reserved by PyTorch but unallocated"),
)
"""torch's own account of a refused allocation."""
POOL = (
    rf"Available KV cache memory: {AMOUNT}",
    rf"the rest of the memory reserved for KV Cache is {AMOUNT}",
    rf"larger than the available KV cache memory \({AMOUNT}\)",
    rf"kv_cache_size={AMOUNT}",
)
SGLANG_RANK = re.compile(r"\bTP(\d+)\b.*?\]")
SGLANG_SIZE = re.compile(r"(?:\b(?:K|V|KV) size|(?:conv|ssm)_state size|_cache size): ?([\d.]+) ?GB")
PEAK_WITH_WEIGHTS = re.compile(rf"peak_torch_memory={AMOUNT}")
COUNTS: tuple[tuple[str, str], ...] = (
    ("num_blocks", r"(?:# )?(?:GPU|CUDA|cuda) blocks: (\d+)"),
    ("kv_cache_tokens", r"[GC]PU KV cache size: ([\d,]+) tokens"),
    ("kv_cache_tokens", r"max_total_num_tokens=(\d+)"),
    ("kv_cache_tokens", r"#tokens: (\d+), K size"),
    ("kv_cache_tokens", r"that can be stored in KV cache \((\d+)\)"),
    ("largest_max_model_len", r"estimated maximum model length is (\d+)"),
)
NAMES: tuple[tuple[str, str], ...] = (
    ("version", r"(?:vLLM API server version|LLM engine \()\s*v?(\d[\w.+]*)"),
    ("model", r"""(?:\bmodel|model_path)['"]?[=:]\s*['"]([^'"]+)['"]"""),
    ("model", r"--model(?:-path)?[= ](\S+)"),
    ("model", r"Starting to load model (\S+?)\.\.\."),
    ("dtype", r"""\bdtype['"]?[=:]\s*['"]?(?:torch\.)?(bfloat16|float16|float32)"""),
    ("quantization", r"""\bquantization['"]?[=:]\s*['"]?([\w-]+)"""),
    ("kv_cache_dtype", r"""kv_cache_dtype['"]?[=:]\s*['"]?([\w-]+)"""),
)
NUMBER_SETTINGS: tuple[tuple[str, str], ...] = (
    ("max_model_len", r"""(?:max_model_len|max_seq_len|context_len|context_length)['"]?[=:]\s*(\d+)"""),
    ("max_model_len", r"Maximum concurrency for ([\d,]+) tokens"),
    ("max_num_batched_tokens", r"""(?:max_num_batched_tokens|chunked_prefill_size)['"]?[=:]\s*(\d+)"""),
    ("max_num_seqs", r"""(?:max_num_seqs|max_running_requests)['"]?[=:]\s*(\d+)"""),
    ("tensor_parallel_size", r"""(?:tensor_parallel_size|tp_size)['"]?[=:]\s*(\d+)"""),
    ("pipeline_parallel_size", r"""(?:pipeline_parallel_size|pp_size)['"]?[=:]\s*(\d+)"""),
    ("num_speculative_tokens", r"""(?:num_speculative_tokens|num_spec_tokens)['"]?[=:]\s*(\d+)"""),
    ("decode_context_parallel_size", r"""decode_context_parallel_size['"]?[=:]\s*(\d+)"""),
)
SWITCHES = ("enforce_eager", "enable_prefix_caching")
TEXT_ONLY = ("running in text-only mode", "'language_model_only': True")
NO_GRAPH_ESTIMATE = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0)"
UTILIZATION = (
    r"""(?:gpu_memory_utilization|mem_fraction_static)['"]?[=:]\s*(0?\.\d+|1\.0)""",
    r"--mem-fraction-static[= ](0?\.\d+)",
    r"gpu_memory_utilization \((\d\.\d+)\)",
    r"[GC]PU memory utilization (?:is )?\((\d?\.\d+),",
)
FAILURES = (
    r"(CUDA out of memory occurred when warming up.*)",
    r"(Available memory on node \d+ .*is less than .*)",
    r"(To serve at least one request with the models?'s max seq len.*)",
    r"(The model's max seq len \(\d+\) is larger than the maximum number of tokens.*)",
    r"(No available memory for the cache blocks.*)",
    r"((?:CUDA|HIP) out of memory\. Tried to allocate.*)",
    r"(Free memory on device.*is less than desired.*)",
    r"(Not enough memory\. Please try.*)",
)
WORDINGS = (
    ("Memory profiling results: ", "0.6.4"),
    ("the current vLLM instance can use", "0.7.3"),
    ("the rest of the memory reserved for KV Cache", "0.7.3"),
    ("# GPU blocks: ", "0.5.4"),
)
"""What releases of the first engine printed; the newer ones print their version."""
NOTHING = ("None", "none", "null")
PHASES: tuple[tuple[str, str], ...] = (
    ("warming up", r"occurred when warming up|_dummy_sampler_run|_dummy_pooler_run"),
    ("capturing", r"capture_model|capture_cudagraphs|Capture cuda graph begin"),
    ("carving", r"initialize_kv_cache|_allocate_kv_cache"),
    ("vision", r"embed_multimodal|get_multimodal_embeddings|_process_(?:image|video)_input"),
    ("profiling", r"determine_available_memory|profile_run|determine_num_available_blocks"),
    ("loading", r"in load_model|load_weights|Starting to load model"),
)
"""What vLLM and SGLang were doing, by the functions in a traceback; the later ones call the earlier ones."""
RUNNING = r"Application startup complete|GPU KV cache size|execute_model|Avg generation throughput"
LOADED = r"Model loading took|Loading model weights took|model weights take|Load weight end"
