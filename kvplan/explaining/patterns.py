"""What engines print when they start, as regular expressions. AMOUNT is a number of GiB.

A log may be anything: numbers have as many digits as one that counts something has, and what lies between two phrases
is bounded, so that a line of megabytes costs no more than many short ones.
"""

from __future__ import annotations

import re

DECIMAL = r"\d{1,9}(?:\.\d{1,20})?"
WHOLE = r"(\d{1,15})(?!\d)"
WITH_COMMAS = r"(\d[\d,]{0,18})(?![\d,])"
AMOUNT = rf"(?<![\d.])(-?{DECIMAL}) ?Gi?B"
_BETWEEN = r".{0,300}?"
_REST = r".{0,1500}"
MEMORY: tuple[tuple[str, str], ...] = (
    ("weight_bytes", rf"Model loading took {AMOUNT}"),
    ("weight_bytes", rf"Loading model weights took {AMOUNT}"),
    ("weight_bytes", rf"model weights take {AMOUNT}"),
    ("weight_bytes", rf"Actual usage is {AMOUNT} for weight"),
    ("weight_bytes", rf"Load weight end\.{_BETWEEN}mem usage={AMOUNT}"),
    ("activation_bytes", rf"PyTorch activation peak memory takes {AMOUNT}"),
    ("activation_bytes", rf"{AMOUNT} for peak activation"),
    ("non_torch_bytes", rf"non_torch_memory takes {AMOUNT}"),
    ("non_torch_bytes", rf"{AMOUNT} for non-torch memory"),
    ("graph_bytes", rf"Graph capturing finished in {_BETWEEN}took {AMOUNT}"),
    ("graph_bytes", rf"{AMOUNT} for CUDAGraph memory"),
    ("graph_bytes", rf"Estimated CUDA graph memory: {AMOUNT} total"),
    ("graph_bytes", rf"Capture cuda graph end\.{_BETWEEN}mem usage={AMOUNT}"),
    ("total_bytes", rf"total_gpu_memory ?[(=]{AMOUNT}"),
    ("total_bytes", rf"has a total capacity of {AMOUNT}"),
    ("total_bytes", rf"Free memory on device{_BETWEEN}\(-?{DECIMAL}/{AMOUNT}\)"),
    ("free_bytes", rf"Initial free memory {AMOUNT}"),
    ("free_bytes", rf"Load weight begin\. avail mem={AMOUNT}"),
    ("free_bytes", rf"Free memory on device{_BETWEEN}\((-?{DECIMAL})/{DECIMAL} GiB\)"),
    ("budget_bytes", rf"gpu_memory_utilization \({DECIMAL}\) = {AMOUNT}"),
    ("budget_bytes", rf"GPU memory utilization (?:is )?\({DECIMAL}, {AMOUNT}\)"),
    ("left_bytes", rf"available_gpu_mem={AMOUNT}"),
    ("left_bytes", rf"Capture (?:target )?(?:decode )?(?i:cuda) graph end\.{_BETWEEN}avail mem={AMOUNT}"),
    ("needed_kv_bytes", rf"{AMOUNT} KV cache is needed"),
)
CPU_MEMORY: tuple[tuple[str, str], ...] = (
    ("total_bytes", rf"(?:Explicitly|Auto) set \({DECIMAL}/({DECIMAL})\) GiB for KV cache"),
    ("total_bytes", rf"Available memory on node \d+ \(-?{DECIMAL}/{AMOUNT}\)"),
    ("free_bytes", rf"Available memory on node \d+ \((-?{DECIMAL})/"),
    ("budget_bytes", rf"with {AMOUNT} requested memory for the worker"),
    ("budget_bytes", rf"CPU memory utilization \({DECIMAL}, {AMOUNT}\)"),
    ("budget_bytes", rf"requested memory for kv \(-?{DECIMAL}/{AMOUNT}\)"),
    ("used_bytes", rf"{AMOUNT} memory was consumed by non-kv usages"),
    ("kv_pool_bytes", rf"(?:Explicitly|Auto) set \(({DECIMAL})/"),
    ("kv_pool_bytes", rf"larger than the available KV cache memory \({AMOUNT}\)"),
    ("kv_pool_bytes", rf"requested memory for kv \((-?{DECIMAL})(?:/| GiB)"),
    ("kv_pool_bytes", rf"VLLM_CPU_KVCACHE_SPACE {_BETWEEN}not set, using ({DECIMAL}) by default"),
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
CPU_BLOCKS = rf"# (?:cpu|CPU) blocks: {WHOLE}"
OUT_OF_MEMORY: tuple[tuple[str, str], ...] = (
    ("tried_bytes", rf"Tried to allocate ({DECIMAL} [KMG]iB)"),
    ("free_bytes", rf"of which ({DECIMAL} [KMG]iB) is free"),
    ("process_bytes", rf"(?:this process has|Process \d+ has) ({DECIMAL} [KMG]iB) memory in use"),
    ("unused_bytes", rf"and ({DECIMAL} [KMG]iB) is reserved by PyTorch but unallocated"),
)
"""torch's own account of a refused allocation."""
OUT_OF_MEMORY_BYTES: tuple[tuple[str, str], ...] = (
    ("tried_bytes", rf"trying to allocate {WHOLE} bytes"),
    ("free_bytes", rf"\(free: {WHOLE}, total: \d"),
    ("total_bytes", rf"\(free: \d{{1,15}}, total: {WHOLE}\)"),
)
"""The same in the words of an allocator that counts in bytes."""
POOL = (
    rf"Available KV cache memory: {AMOUNT}",
    rf"the rest of the memory reserved for KV Cache is {AMOUNT}",
    rf"larger than the available KV cache memory \({AMOUNT}\)",
    rf"kv_cache_size={AMOUNT}",
    rf"reserved {AMOUNT} memory for KV Cache as specified by kv_cache_memory_bytes",
)
GIVEN_POOL = "as specified by kv_cache_memory_bytes config"
"""vLLM, where --kv-cache-memory-bytes says how large the cache is: nothing is profiled."""
SGLANG_RANK = re.compile(r"\bTP(\d{1,9})\b.{0,200}?\]")
SGLANG_SIZE = re.compile(rf"(?:\b(?:K|V|KV) size|(?:conv|ssm)_state size|_cache size): ?({DECIMAL}) ?GB")
PEAK_WITH_WEIGHTS = re.compile(rf"peak_torch_memory={AMOUNT}")
COUNTS: tuple[tuple[str, str], ...] = (
    ("num_blocks", rf"(?:GPU|CUDA|cuda) blocks: {WHOLE}"),
    ("kv_cache_tokens", rf"[GC]PU KV cache size: {WITH_COMMAS} tokens"),
    ("kv_cache_tokens", rf"max_total_num_tokens={WHOLE}"),
    ("kv_cache_tokens", rf"#tokens: {WHOLE}, K size"),
    ("kv_cache_tokens", rf"that can be stored in KV cache \({WHOLE}\)"),
    ("largest_max_model_len", rf"estimated maximum model length is {WHOLE}"),
    ("num_state_blocks", rf"exceeds available Mamba cache blocks \({WHOLE}\)"),
)
CONCURRENCY = rf"Maximum concurrency for [\d,]{{1,20}} tokens per request: ({DECIMAL})x"
LEAST_STATIC_FRACTION = rf"Raise --mem-fraction-static above ({DECIMAL})"
NAMES: tuple[tuple[str, str], ...] = (
    ("version", r"(?:vLLM API server version|LLM engine \()\s*v?(\d[\w.+]{0,80})"),
    ("model", r"""(?:\bmodel|model_path)['"]?[=:]\s*['"]([^'"\n]{1,500})['"]"""),
    ("model", r"--model(?:-path)?[= ](\S{1,500})"),
    ("model", r"Starting to load model (\S{1,500}?)\.\.\."),
    ("dtype", r"""\bdtype['"]?[=:]\s*['"]?(?:torch\.)?(bfloat16|float16|float32)"""),
    ("quantization", r"""\bquantization['"]?[=:]\s*['"]?([\w-]{1,80})"""),
    ("kv_cache_dtype", r"""kv_cache_dtype['"]?[=:]\s*['"]?([\w-]{1,80})"""),
)
NUMBER_SETTINGS: tuple[tuple[str, str], ...] = (
    ("max_model_len", r"""(?:max_model_len|max_seq_len|context_len|context_length)['"]?[=:]\s*(\d{1,15})(?!\d)"""),
    ("max_model_len", rf"Maximum concurrency for {WITH_COMMAS} tokens"),
    ("max_num_batched_tokens", r"""(?:max_num_batched_tokens|chunked_prefill_size)['"]?[=:]\s*(\d{1,15})(?!\d)"""),
    ("max_num_seqs", r"""(?:max_num_seqs|max_running_requests)['"]?[=:]\s*(\d{1,15})(?!\d)"""),
    ("max_num_seqs", rf"max_num_seqs \({WHOLE}\) exceeds available"),
    ("tensor_parallel_size", r"""(?:tensor_parallel_size|tp_size)['"]?[=:]\s*(\d{1,15})(?!\d)"""),
    ("pipeline_parallel_size", r"""(?:pipeline_parallel_size|pp_size)['"]?[=:]\s*(\d{1,15})(?!\d)"""),
    ("num_speculative_tokens", r"""(?:num_speculative_tokens|num_spec_tokens)['"]?[=:]\s*(\d{1,15})(?!\d)"""),
    ("decode_context_parallel_size", r"""decode_context_parallel_size['"]?[=:]\s*(\d{1,15})(?!\d)"""),
)
SWITCHES = ("enforce_eager", "enable_prefix_caching")
TEXT_ONLY = ("running in text-only mode", "'language_model_only': True")
NO_GRAPH_ESTIMATE = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0)"
UTILIZATION = (
    r"""(?:gpu_memory_utilization|mem_fraction_static)['"]?[=:]\s*(0?\.\d{1,20}|1\.0)""",
    r"--mem-fraction-static[= ](0?\.\d{1,20})",
    r"gpu_memory_utilization \((\d\.\d{1,20})\)",
    r"[GC]PU memory utilization (?:is )?\((\d?\.\d{1,20}),",
)
WITHOUT_NVML = "NVML_SUCCESS == r INTERNAL ASSERT FAILED"
"""torch is out of memory and cannot ask the driver how much is left, as on a slice of a GPU (MIG)."""
FAILURES = (
    rf"(CUDA out of memory occurred when warming up{_REST})",
    rf"(Available memory on node \d+ {_BETWEEN}is less than {_REST})",
    rf"(To serve at least one request with the models?'s max seq len{_REST})",
    rf"(The model's max seq len \(\d+\) is larger than the maximum number of tokens{_REST})",
    rf"(max_num_seqs \(\d+\) exceeds available Mamba cache blocks{_REST})",
    rf"(No available memory for the cache blocks{_REST})",
    rf"(Loaded weights leave no GPU memory for the KV cache{_REST})",
    rf"((?:CUDA|HIP|XPU) out of memory\. Tried to allocate{_REST})",
    rf"(memory allocation failed with OOM on device{_REST})",
    rf"((?:CUDA|HIP) error: out of memory{_REST})",
    rf"({re.escape(WITHOUT_NVML)}{_REST})",
    rf"(Free memory on device{_BETWEEN}is less than desired{_REST})",
    rf"(Not enough memory\. Please try{_REST})",
)
"""Sentences that engines stop with for want of memory."""
OUT_OF_MEMORY_WORDS = ("out of memory", "failed with OOM", WITHOUT_NVML)
STOPPED = re.compile(
    r"(?:EngineCore|Engine process|WorkerProc) failed to start|Engine core initialization failed|EngineDeadError"
    r"|Scheduler hit an exception"
)
"""What says that the engine is gone, whatever ended it."""
RAISED = re.compile(r"\b(\w{1,80}(?:Error|Exception): .{1,500})")
SECONDHAND = ("EngineDeadError", "EngineCore", "Engine core", "WorkerProc")
"""How errors are told that only report another one."""
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
CAPTURING, CAPTURED = "Capturing CUDA graphs", "Graph capturing finished"
LOADED = r"Model loading took|Loading model weights took|model weights take|Load weight end"
