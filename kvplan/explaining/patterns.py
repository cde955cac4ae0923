"""What engines print when they start, as regular expressions. AMOUNT is a number of GiB.

A log may be anything: numbers have as many digits as one that counts something has, and what lies between two phrases
is bounded, so that a line of megabytes costs no more than many short ones.
"""

from __future__ import annotations

import re

COLOURS = re.compile(r"\x1b\[[0-9;]{0,12}m")
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
    ("consumed_bytes", rf"{AMOUNT} for consumed memory"),
    ("graph_bytes", rf"Graph capturing finished in {_BETWEEN}took {AMOUNT}"),
    ("graph_bytes", rf"{AMOUNT} for CUDAGraph memory"),
    ("graph_bytes", rf"CUDA graph pool memory: {AMOUNT} \(actual\)"),
    ("graph_bytes", rf"Estimated CUDA graph memory: {AMOUNT} total"),
    ("graph_estimate_bytes", rf"Estimated CUDA graph memory: {AMOUNT} total"),
    ("graph_estimate_bytes", rf"CUDA graph pool memory: {_BETWEEN}{AMOUNT} \(estimated\)"),
    ("graph_bytes", rf"Capture cuda graph end\.{_BETWEEN}mem usage={AMOUNT}"),
    ("total_bytes", rf"total_gpu_memory ?[(=]{AMOUNT}"),
    ("total_bytes", rf"has a total capaci?ty of {AMOUNT}"),
    ("total_bytes", rf"\(GPU \d{{1,2}}; {AMOUNT} total capacity"),
    ("total_bytes", rf"Free memory on device{_BETWEEN}\(-?{DECIMAL}/{AMOUNT}\)"),
    ("total_bytes", rf"Externally held weights on device {_BETWEEN}\(-?{DECIMAL}/{AMOUNT}\)"),
    ("free_bytes", rf"Initial free memory:? {AMOUNT}"),
    ("free_bytes", rf"Load weight begin\. avail mem={AMOUNT}"),
    ("free_bytes", rf"Free memory on device{_BETWEEN}\((-?{DECIMAL})/{DECIMAL} GiB\)"),
    ("budget_bytes", rf"gpu_memory_utilization \({DECIMAL}\) = {AMOUNT}"),
    ("budget_bytes", rf"GPU memory utilization (?:is )?\({DECIMAL}, {AMOUNT}\)"),
    ("budget_bytes", rf"Requested memory: {DECIMAL} \(util\), {AMOUNT}"),
    ("budget_bytes", rf"worker requested memory: ?{AMOUNT}"),
    ("left_bytes", rf"available_gpu_mem={AMOUNT}"),
    ("left_bytes", rf"Capture (?:target )?(?:decode )?(?i:cuda) graph end\.{_BETWEEN}avail mem={AMOUNT}"),
    ("needed_kv_bytes", rf"{AMOUNT} KV cache is needed"),
)
SHARES = (
    rf"current --gpu-memory-utilization=({DECIMAL}) is equivalent to --gpu-memory-utilization=({DECIMAL})",
    rf"increasing --gpu-memory-utilization from ({DECIMAL}) to ({DECIMAL})",
)
"""Two shares that differ by the graphs' estimate as a share of the GPU (vllm/v1/worker/gpu_worker.py)."""
CPU_MEMORY: tuple[tuple[str, str], ...] = (
    ("total_bytes", rf"(?:Explicitly|Auto) set \({DECIMAL}/({DECIMAL})\) GiB for KV cache"),
    ("total_bytes", rf"Available memory on node \d+ \(-?{DECIMAL}/{AMOUNT}\)"),
    ("free_bytes", rf"Available memory on node \d+ \((-?{DECIMAL})/"),
    ("budget_bytes", rf"with {AMOUNT} requested memory for the worker"),
    ("budget_bytes", rf"CPU memory utilization \({DECIMAL}, {AMOUNT}\)"),
    ("budget_bytes", rf"requested memory for kv \(-?{DECIMAL}/{AMOUNT}\)"),
    ("budget_bytes", rf"more than the {AMOUNT} of CPU memory reserved for it"),
    ("used_bytes", rf"The worker already uses {AMOUNT}"),
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
    "of CPU memory reserved for it",
)
SGLANG_SIGNS = (
    "ServerArgs(",
    "Cache is allocated.",
    "Load weight begin.",
    "Load weight end.",
    "KV cache allocated",
    "SWAKVPool",
    "DSV4 pool sizes",
    "max_total_num_tokens",
    "SWA pool cap",
    "memory capacity is unbalanced",
    "mem-fraction-static",
    "mem_fraction_static",
)
CPU_BLOCKS = rf"# (?:cpu|CPU) blocks: {WHOLE}"
OUT_OF_MEMORY: tuple[tuple[str, str], ...] = (
    ("tried_bytes", rf"Tried to allocate ({DECIMAL} [KMG]iB)"),
    ("free_bytes", rf"of which ({DECIMAL} [KMG]iB) is free"),
    ("free_bytes", rf"already allocated; ({DECIMAL} [KMG]iB) free"),
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
    rf"KV cache memory reduced to {AMOUNT}",
    rf"reserved {AMOUNT} memory for KV Cache as specified by kv_cache_memory_bytes",
    rf"Applying persisted startup plan{_BETWEEN}\({AMOUNT}\)",
)
GIVEN_POOL = ("as specified by kv_cache_memory_bytes config", "Applying persisted startup plan")
"""vLLM, where --kv-cache-memory-bytes or the plan of an earlier start says how large the cache is."""
SGLANG_RANK = re.compile(r"\bTP(\d{1,9})\b.{0,200}?\]")
SGLANG_POOL = re.compile(
    r"Cache is allocated\.|KV cache allocated\.|int8 mamba checkpoint pool: |ring buffers allocated"
)
"""What SGLang sets aside, each with its sizes on the line (srt/mem_cache/memory_pool.py)."""
SGLANG_WHOLE_POOL = (
    rf"DSV4 memory calculation: {_BETWEEN}available_bytes={AMOUNT}",
    rf"UnifiedKVPool {_BETWEEN}total_bytes={AMOUNT}",
)
SGLANG_WINDOW_POOL = rf"SWAKVPool mem usage: {AMOUNT}"
"""Its parts are printed like other caches where they are on lines of their own."""
SGLANG_SIZE = re.compile(rf"(?:\b(?:K|V|KV) size|(?:conv|ssm)_state size|_cache size): ?({DECIMAL}) ?GB")
PEAK_WITH_WEIGHTS = re.compile(rf"peak_torch_memory={AMOUNT}")
COUNTS: tuple[tuple[str, str], ...] = (
    ("num_blocks", rf"(?:GPU|CUDA|cuda) blocks: {WHOLE}"),
    ("kv_cache_tokens", rf"[GC]PU KV cache size: {WITH_COMMAS} tokens"),
    ("kv_cache_tokens", rf"max_total_num_tokens={WHOLE}"),
    ("kv_cache_tokens", rf"(?:is allocated|KV cache allocated)\..{{0,80}}#tokens: {WHOLE}, KV? size"),
    ("kv_cache_tokens", rf"DSV4 pool sizes: full={WHOLE}"),
    ("kv_cache_tokens", rf"full_layer_tokens={WHOLE}"),
    ("kv_cache_tokens", rf"SWAKVPool mem usage: {_BETWEEN}full size: {WHOLE}"),
    ("kv_cache_tokens", rf"that can be stored in KV cache \({WHOLE}\)"),
    ("largest_max_model_len", rf"estimated maximum model length is {WHOLE}"),
    ("num_state_blocks", rf"exceeds available Mamba cache blocks \({WHOLE}\)"),
)
CONCURRENCY = rf"Maximum concurrency for [\d,]{{1,20}} tokens per request: ({DECIMAL})x"
LEAST_STATIC_FRACTION = rf"Raise --mem-fraction-static above ({DECIMAL})"
LEAST_CPU_SHARE = rf"increase `--gpu-memory-utilization` to more than ({DECIMAL})"
NAMES: tuple[tuple[str, str], ...] = (
    ("model", r"""(?:\bmodel|model_path)['"]?[=:]\s*['"]([^'"\n]{1,500})['"]"""),
    ("model", r"with config: model=([\w./-]{1,300}),"),
    ("model", r"Starting to load model (\S{1,500}?)\.\.\."),
    ("dtype", r"""\bdtype['"]?[=:]\s*['"]?(?:torch\.)?(bfloat16|float16|float32)"""),
    ("quantization", r"""\bquantization['"]?[=:]\s*['"]?([\w-]{1,80})"""),
    ("kv_cache_dtype", r"""kv_cache_dtype['"]?[=:]\s*['"]?([\w-]{1,80})"""),
)
NUMBER_SETTINGS: tuple[tuple[str, str], ...] = (
    ("max_model_len", r"""(?:max_model_len|max_seq_len|context_len|context_length)['"]?[=:]\s*(\d{1,15})(?!\d)"""),
    ("max_model_len", rf"Maximum concurrency for {WITH_COMMAS} tokens"),
    ("max_model_len", rf"models?'s max seq len \({WHOLE}\)"),
    ("max_num_batched_tokens", r"""(?:max_num_batched_tokens|chunked_prefill_size)['"]?[=:]\s*(\d{1,15})(?!\d)"""),
    ("max_num_seqs", r"""(?:max_num_seqs|max_running_requests)['"]?[=:]\s*(\d{1,15})(?!\d)"""),
    ("max_num_seqs", rf"max_num_seqs \({WHOLE}\) exceeds available"),
    ("max_num_seqs", rf"max_running_requests was reduced from the requested {WHOLE}"),
    ("kv_cache_memory_bytes", r"""kv_cache_memory_bytes['"]?[=:]\s*(\d{7,15})(?!\d)"""),
    ("data_parallel_size", r"""(?:data_parallel_size|\bdp_size)['"]?[=:]\s*(\d{1,15})(?!\d)"""),
    ("tensor_parallel_size", r"""(?:tensor_parallel_size|tp_size)['"]?[=:]\s*(\d{1,15})(?!\d)"""),
    ("pipeline_parallel_size", r"""(?:pipeline_parallel_size|pp_size)['"]?[=:]\s*(\d{1,15})(?!\d)"""),
    ("num_speculative_tokens", r"""(?:num_speculative_tokens|num_spec_tokens)['"]?[=:]\s*(\d{1,15})(?!\d)"""),
    ("decode_context_parallel_size", r"""decode_context_parallel_size['"]?[=:]\s*(\d{1,15})(?!\d)"""),
)
EXPANDABLE = re.compile(
    r"(?<!setting )(?<!with )PYTORCH_(?:CUDA_)?ALLOC_CONF['\"]?\s{0,3}[=:]\s{0,3}['\"]?[\w:,.]{0,80}?"
    r"expandable_segments:True"
)
"""The variable as a command or a file of services sets it; PyTorch and vLLM advise it, or warn of it, in sentences."""
SERVER_BEGINS = "vLLM API server version"
DEFAULT_STEP = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=\d+")
"""Before the server begins, vLLM 0.11 prints it of the defaults, which it makes to list its options."""
SWITCHES = ("enforce_eager", "enable_prefix_caching")
EAGER = ("Enforce eager set, disabling torch.compile", "Cudagraph is disabled under eager mode")
WORKER_RANK = re.compile(r"\bWorker(?:_[A-SU-Z]{2}\d{1,5}){0,3}_TP(\d{1,5})|, TP rank (\d{1,5})\b")
"""The tensor-parallel rank of a process, in the name before its lines and where its groups are assigned."""
COMMENTED_OUT = re.compile(r"^[ \t]{0,40}#[ \t]{0,4}[-'\"{].{0,3000}$", re.MULTILINE)
"""An argument of a pasted command that its author took out."""
DRAFTER = re.compile(r"""\{[^{}\n]{0,500}['"]method['"][^{}\n]{0,500}\}""")
"""A speculative configuration, whose model is not the one that is served."""
TEXT_ONLY = ("running in text-only mode", "'language_model_only': True")
FOUND_COMPILED = re.compile(r"Directly load (?:AOT compilation|the compiled graph)")
COMPILED = re.compile(r"Compiling a graph for|Cache the graph (?:of|for)")
NO_GRAPH_ESTIMATE = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0)"
UTILIZATION = (
    r"""(?:gpu_memory_utilization|mem_fraction_static)['"]?[=:]\s*(0?\.\d{1,20}|1\.0)""",
    r"--mem-fraction-static[= ](0?\.\d{1,20})",
    r"gpu_memory_utilization \((\d\.\d{1,20})\)",
    r"[GC]PU memory utilization (?:is )?\((\d?\.\d{1,20}),",
    r"The current --gpu-memory-utilization=(\d?\.\d{1,20}) is equivalent",
    r"increasing --gpu-memory-utilization from (\d?\.\d{1,20}) to",
    r"Requested memory: (\d?\.\d{1,20}) \(util\)",
)
FITTED_LENGTH = r"Auto-fit max_model_len: (?:reduced from \d+ to|full model context length) (\d{1,15})"
"""vLLM, where --max-model-len is -1 or auto."""
COMPILED_UP_TO = r"""compile_ranges_(?:endpoints|split_points)['"]?[=:] ?\[(?:\d{1,9}, ){0,20}(\d{1,9})\]"""
ASKED_GRAPHS = re.compile(
    r"--compilation[-_]config|(?<!\S)-cc\b|--(?:max-)?cudagraph-capture-size"
    r"|non-default args:[^\n]{0,3000}cudagraph_capture"
)
"""Where a user says which graphs are captured, and nothing follows from them."""
CAPTURED_UP_TO = r"""max_cudagraph_capture_size['"]?[=:] ?(\d{1,9})"""
_RELEASE = r"v?(\d{1,2}\.\d{1,3}[\w.+]{0,80})"
VLLM_VERSIONS = (
    rf"(?:vLLM API server version|LLM engine \()\s*{_RELEASE}",
    rf"[▀-▟][^\n]{{0,40}}\bversion {_RELEASE}",
    rf"(?i:\bvllm[ _]?version)['\"]?\s?[:=]?\s{{0,20}}['\"]?{_RELEASE}",
    r"(?i:\bvllm)(?:==|[: \t`'\"*]{0,20})v?(0\.\d{1,3}[\w.+]{0,80})",
    r"\bvllm-(0\.\d{1,3}\.\d[\w.+]{0,80})",
    r"[\w./-]{0,100}vllm[\w./-]{0,100}:v?(0\.\d{1,3}[\w.+]{0,80})",
    r"rocm/vllm[\w.:/-]{0,100}?vllm_(0\.\d{1,3}(?:\.\d{1,3})?)",
)
"""The engine's own line, its banner, people's words, packages, and tags of images."""
SGLANG_VERSIONS = (
    rf"(?i:\bsglang[ _]?version)['\"]?\s?[:=]?\s{{0,20}}['\"]?{_RELEASE}",
    r"(?i:\bsglang)(?:==|[: \t`'\"*]{0,20})v?(0\.\d{1,3}[\w.+]{0,80})",
    r"\bsglang-(0\.\d{1,3}\.\d[\w.+]{0,80})",
    r"[\w./-]{0,100}sglang[\w./-]{0,100}:v?(0\.\d{1,3}[\w.+]{0,80})",
)
GPU_NAMES = (
    r"device_name=([\w-]{2,80}?)(?=,|\.json|['\"\]\s])",
    r"(?:\bGPU |(?m:^ {0,8}))\d{1,2}: ((?:NVIDIA|AMD|Tesla)[\w .-]{2,60}?)(?=\s*(?:\(|,|$|\n|\d{3,6} ?MiB))",
    r"\| +\d{1,2} +((?:NVIDIA|Tesla)[\w .-]{2,40}?) {2,}(?:On|Off) ",
    r"(?i:device name|gpu name|gpu model)\s*[:=]\s*['\"]?((?:NVIDIA|AMD|Tesla)[\w .-]{2,60})",
)
"""Names that drivers give devices: in a kernel's file, in what torch or nvidia-smi lists."""
GPUS_IN_WORDS = re.compile(
    r"\b(GB10|DGX Spark|H100 (?:PCIe|NVL)|H[12]00|H20|B[23]00|GB200|GH200|A100[ -](?:PCIe|40GB|80GB)|A100|A10G"
    r"|L40S|L40|L20|RTX PRO 6000|RTX [AP]?\d{4}(?: Ti)?(?: SUPER)?|MI\d{3}X|A6000)\b"
)
"""GPUs as people name them, where no driver does."""
OF_AN_ENGINE = re.compile(r"\[\w{1,60}\.py:\d{1,6}\]|\bpid=\d|_name=")
FLASH_ATTENTION = r"Using FlashAttention version (\d)"
CAPABILITY = re.compile(
    r"SymmMemCommunicator: Device capability (\d{1,2})\.(\d) not supported"
    r"|/flashinfer_autotune_cache/[\w.+]{1,40}/(\d{1,2})(\d)a?/"
)
"""vLLM names it where ranks reduce together and no kernel is for it, and FlashInfer in the path of its cache (``89``,
``121a``; ``120f`` is a family's)."""
PLATFORMS: tuple[tuple[str, str], ...] = (
    (
        "rocm",
        r"HIP out of memory|HIP error|\bhipError|detected platform rocm|rocm/vllm|vllm-openai-rocm|\+rocm\d"
        r"|\bgfx(?:9|10|11|12)\w{1,2}\b|AMD Instinct|AMD Radeon|HSA_STATUS_ERROR",
    ),
    ("xpu", r"XPU out of memory|detected platform xpu|device_config=xpu|UR_RESULT_ERROR_OUT_OF|Intel\(R\) Arc"),
)
"""What tells that the GPU is not NVIDIA's."""
REFUSED_BY_DRIVER = (
    r"(?:(?:CUDA|HIP) error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory"
    r"|CUBLAS_STATUS_ALLOC_FAILED|HSA_STATUS_ERROR_OUT_OF_RESOURCES|UR_RESULT_ERROR_OUT_OF_(?:DEVICE_)?(?:MEMORY|RESOURCES)"
    r"|Triton Error \[(?:CUDA|HIP)\]: out of memory|cuMem\w{1,30}[^\n]{0,80}out of memory)"
)
"""How drivers, and libraries that ask them for memory, say that there is none left."""
KILLED = re.compile(
    r"(?:exit ?code|exited with code|exitcode)[ :=]{1,3}(?:137|-9)\b[^\n]{0,200}|by signal 9"
    r"|Out of memory: Killed process|OOMKilled\W{1,6}(?i:true)|Reason: {1,20}OOMKilled"
)
"""How the operating system's end of a process for want of host memory is told."""
WITHOUT_NVML = "NVML_SUCCESS == r INTERNAL ASSERT FAILED"
"""torch is out of memory and cannot ask the driver how much is left, as on a slice of a GPU (MIG)."""
FAILURES = (
    rf"(CUDA out of memory occurred when warming up{_REST})",
    rf"(Available memory on node \d+ {_BETWEEN}is less than {_REST})",
    rf"(The worker already uses {DECIMAL} GiB \(model weights{_REST})",
    rf"(To serve at least one request with the models?'s max seq len{_REST})",
    rf"(The model's max seq len \(\d+\) is larger than the maximum number of tokens{_REST})",
    rf"(Cannot auto-fit max_model_len{_REST})",
    rf"((?:max_num_seqs \(\d+\) )?exceeds available Mamba cache blocks{_REST})",
    rf"(No available memory for the cache blocks{_REST})",
    rf"(Loaded weights leave no GPU memory for the KV cache{_REST})",
    rf"(Not enough GPU memory for hybrid \(mamba/linear-attention\) state cache{_REST})",
    rf"(Hybrid \(mamba/linear-attention\) state cache is too small{_REST})",
    rf"((?:The DSV4 )?SWA pool cap \({_BETWEEN}leaves no room{_REST})",
    rf"(byte budget \d+ cannot fit ONE worst-case request{_REST})",
    rf"(The memory capacity is unbalanced{_REST})",
    rf"((?:CUDA|HIP|XPU|NPU) out of memory\. Tried to allocate{_REST})",
    rf"(memory allocation failed with OOM on device{_REST})",
    rf"({re.escape(WITHOUT_NVML)}{_REST})",
    rf"({REFUSED_BY_DRIVER}{_REST})",
    rf"(Failed to load model - not enough GPU memory{_REST})",
    rf"(Free memory on device{_BETWEEN}is less than {_REST})",
    rf"(Externally held weights on device {_BETWEEN}exceed {_REST})",
    rf"(frontend multimodal GPU decoding reserves {_REST})",
    rf"(Error in memory profiling\. {_REST})",
    rf"(Not enough memory\. Please try{_REST})",
)
"""Sentences that engines stop with for want of memory."""
OUT_OF_MEMORY_WORDS = re.compile(
    rf"out of memory|failed with OOM|{re.escape(WITHOUT_NVML)}|Failed to load model - not|{REFUSED_BY_DRIVER}"
)
STOPPED = re.compile(
    r"(?:EngineCore|Engine process|WorkerProc) (?:failed to start|initialization failed|hit an exception)"
    r"|Engine core initialization failed|EngineDeadError|Scheduler hit an exception"
    r"|Received sigquit from a child process|Worker failed with error|died unexpectedly"
)
"""What says that the engine is gone, whatever ended it."""
TOLD_TO_STOP = re.compile(r"\[shutdown\] (?:EngineCore: trigger received signal|API server: shutdown triggered)")
"""What vLLM says, from 0.23 on, when it is stopped from outside; that the engine is gone then follows from it."""
RAISED = re.compile(r"(?<![\w.])((?:\w{1,40}\.){0,6}\w{0,80}(?:Error|Exception): .{1,500})")
ENDED_BY = re.compile(
    r"^(?:\W{0,4}\w{1,20} ?\|)?(?:\([^)\n]{1,60}\) ?)?(?:ERROR [^\[\n]{1,40}\[[^\]\n]{1,80}\] ?|\W{0,6})"
    r"((?:\w{1,40}\.){0,6}\w{0,80}(?:Error|Exception): .{1,500})",
    re.MULTILINE,
)
"""An error that stands where a traceback ends."""
UP = re.compile(r"Application startup complete|fired up and ready to roll|Uvicorn running|Avg (?:prompt|generation) th")
"""What an engine says when it serves."""
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
    ("capturing", r"capture_model|capture_cudagraphs|Capture cuda graph begin|Capture [Cc][Uu][Dd][Aa] graph failed"),
    ("carving", r"initialize_kv_cache|_allocate_kv_cache"),
    (
        "vision",
        r"embed_multimodal|get_multimodal_embeddings|_process_(?:image|video)_input|dummy_encoder_outputs"
        r"|_execute_mm_encoder|get_(?:image|video)_features|vit_attn_wrappers|profile run for multi-modal"
        r"|models/(?:clip|siglip\d?|pixtral|\w{0,30}vit)\.py",
    ),
    ("profiling", r"determine_available_memory|profile_run|determine_num_available_blocks"),
    ("loading", r"in load_model|load_weights|Starting to load model|Failed to load model"),
)
"""What vLLM and SGLang were doing, by the functions in a traceback; the later ones call the earlier ones."""
WRAPS = re.compile(
    r"CUDA graph memory profiling is|Free memory on device|Initial free memory|To serve at least one|max_num_seqs \(\d"
    r"|larger than the maximum number|memory allocation failed|out of memory\.|Loaded weights leave"
    r"|Cache is allocated|KV cache allocated|No available memory|Actual usage is|Not enough GPU memory"
)
"""Sentences that are long enough to be broken where they are pasted."""
NEW_LINE = re.compile(
    r"^[^\w(\[]{0,6}(?:\(\w{1,40} |\[|INFO\b|WARN|ERROR\b|DEBUG\b|Traceback|File \"|\d{4}-\d\d"
    r"|\w{0,80}(?:Error|Exception)\b"
    r"|(?:Mamba|KV) Cache |KV cache |Load weight|Capture |Capturing |max_total_num|Model loading|Available KV|GPU KV"
    r"|Maximum conc|Graph capt|Initializ|vllm |docker |The server|Memory pool|SWAKVPool|DSV4|--?[a-z])|^\W*$"
)
"""What begins an entry of its own."""
RUNNING = r"Application startup complete|GPU KV cache size|execute_model|Avg generation throughput"
CAPTURING, CAPTURED = "Capturing CUDA graphs", "Graph capturing finished"
LOADED = r"Model loading took|Loading model weights took|model weights take|Load weight end"
