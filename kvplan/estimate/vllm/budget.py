"""The rest of vLLM's budget: memory that torch does not see, and CUDA graphs.

These depend on driver, CUDA and NCCL versions and cannot be derived; the constants are medians of what published logs
print, per generation of vLLM, not per model. They are small beside weights and KV cache on large GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from kvplan.catalog.devices.device_support import compute_capability
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import LayerSpec, ModelSpec, MoeFeedForward, StateMixer
from kvplan.errors import UsageError
from kvplan.settings import FilledSettings, ServingSettings
from kvplan.units import GIB, MIB, format_bytes

UNIFIED_EXTRA_GIB = 2.5
"""On a GPU that shares its host's memory, what the engine's processes take of the host counts as well.

vLLM takes psutil's available memory for what is free there (vllm/utils/mem_utils.py, MemorySnapshot.measure, read in
0.12.0 to 0.33.0): the heap of its processes, compilers and the rest of the host count as memory that torch does not
see. On a GB10 vLLM 0.28 took 5.4 to 6.7 GiB of MemAvailable beside weights and pool, of which 2.6 to 2.7 were gone when
it first looked (llamastash/llamastash, src/launch/admission.rs and pull request 81). Without the graphs, which come
after the pool (about 0.5), and what is outside torch on any GPU (0.25), 2.0 to 3.3 are left. Not fitted to start-ups:
two sources lie a GiB below it and five 2 to 10 above. 30 GiB are possible while it compiles
(eugr/spark-vllm-docker, pull request 286).
"""
CONTEXT_BYTES = GIB // 2
"""What a process's CUDA context takes before anything is loaded: 0.4 to 0.6 GiB on data-centre GPUs."""
_CPU_EXTRA_GIB = 1.0
"""On a CPU, what the build for CPUs takes of the host beside the weights."""
_HOPPER = 9
_LARGEST_GRAPH, _LARGEST_GRAPH_ON_BLACKWELL = 512, 1024
_LARGE_GRAPH_MODELS = ("GptOssForCausalLM",)
_BLACKWELL = 10
_CONSUMER_BLACKWELL = 12
_FIRST_CAPTURE_GIB = 0.04
_TENSOR_MAP_MIB = 22
"""What the driver keeps for each multiprocessor of a GPU of capability 10 and later once a Triton kernel with tensor
descriptors ran there: 3,728 MiB on the 170 of an RTX 5090, 1,077 on the 48 of a GB10 (pull request 37088 of
vllm-project/vllm, which measured them before and after the first launch)."""
_PIECES_LAYER_MIB = 0.3
"""What a batch size takes in a layer where pieces between attention layers are captured: 0.28 to 0.37 in the median of
eleven start-ups of 0.8 to 0.10, which capture nothing else."""
_MEASURED_PIECES_LAYER_MIB = 0.17
"""The same as the second runner estimates it on other GPUs than Hopper: it captures all sizes and measures what they
take, where the first one takes the second largest for each (profile_cudagraph_memory in
vllm/v1/worker/gpu/cudagraph_utils.py, read in 0.32). Three start-ups of 0.29 to 0.31 print peaks with 0.16 to 0.2 in
them; one on an H100 prints what the first runner would."""
_WHOLE_LAYER_MIB, _WHOLE_LAYER_MIB_ON_HOPPER = 0.1, 0.2
"""The same of whole decode steps: what estimates of vLLM 0.18 to 0.29 have beyond pieces and the first capture, on
A100, A6000, RTX 3090 Ti, 4090, 5090 and L40 (0.05 to 0.2), and on H100 (0.2 and 0.3)."""
_OWN_REDUCTION_RANKS = (2, 4, 6, 8)
_REDUCTIONS_PER_LAYER, _REDUCTION_MIB = 2, 0.1
"""What a captured all-reduce takes where NCCL runs it, which puts further nodes into a graph for each.

Pull request 2192 of vllm-project/vllm, which measured memory with NCCL and with vLLM's own kernel, has 0.18 to 0.24 on
A100, A30 and T4. That was NCCL 2.18, which made a buffer of its own for each captured operation (src/enqueue.cc,
uploadWork); since 2.22 its work fits the kernel's arguments (finishPlan, ncclDevWorkStorageTypeArgs) and only the
driver's nodes are left, whose size nobody states. So this is the median of start-ups under 0.19 to 0.28, which have
0.09, 0.10, 0.11, 0.11 and 0.16 beyond what one GPU has: P026, T020, P025, P032 and R010 of
tests/data/vllm_startups.csv, on L40S, RTX 3090 and 4090. Without any one of their four sources it is 0.10 to 0.11.
"""


def non_torch_bytes(
    gpu: GpuProfile,
    settings: FilledSettings,
    release: VllmRelease,
    layers: Iterable[LayerSpec] = (),
    *,
    exchanges_tokens: bool = False,
) -> int:
    """CUDA context growth, cuBLAS handles, JIT-compiled modules, and with several GPUs the communicators' buffers.

    From 0.33 on the handles are made before the budget begins. What share of the constants they were is not known, so
    that it stays in them: a few tens of MiB at most.

    ``layers``: those of the rank, one of each kind. ``exchanges_tokens``: data-parallel groups send tokens to each
    other's experts.
    """
    if not release.counts_non_torch:
        return 0
    layers = tuple(layers)
    total = release.non_torch_gib_on_hopper if _loads_more_modules(gpu, release, layers) else release.non_torch_gib
    if settings.tensor_parallel_size > 1 or exchanges_tokens:
        total += _parallel_extra_gib(gpu, settings.tensor_parallel_size, release)
    if gpu.unified_memory:
        total += _CPU_EXTRA_GIB if gpu.is_cpu else UNIFIED_EXTRA_GIB
    return int(total * GIB) + tensor_map_bytes(gpu, release, layers)


def _loads_more_modules(gpu: GpuProfile, release: VllmRelease, layers: tuple[LayerSpec, ...]) -> bool:
    """Whether kernels take what they do on Hopper: dense models on consumer Blackwell take no more than on Ada.

    So from 0.27 on, whose logs tell it; with memory that is the host's it cannot be told.
    """
    is_told = compute_capability(gpu)[0] >= _CONSUMER_BLACKWELL and release.counts_runner_state
    if not is_told or gpu.unified_memory:
        return _is_hopper_or_later(gpu)
    parts = (part for layer in layers for part in (layer.feed_forward, *layer.mixers))
    return any(isinstance(part, MoeFeedForward | StateMixer) for part in parts)


def tensor_map_bytes(gpu: GpuProfile, release: VllmRelease, layers: Iterable[LayerSpec]) -> int:
    """What the driver keeps where the profile run starts the gated delta rule's kernel with tensor descriptors.

    Hopper runs FlashInfer's kernel instead (vllm/model_executor/models/qwen3_next.py, _warmup_prefill_kernels).
    """
    if not release.warms_tensor_descriptors or compute_capability(gpu)[0] < _BLACKWELL:
        return 0
    mixers = (mixer for layer in layers for mixer in layer.mixers)
    has_delta_rule = any(isinstance(mixer, StateMixer) and mixer.kind == "gated_delta_net" for mixer in mixers)
    return gpu.multiprocessors * _TENSOR_MAP_MIB * MIB if has_delta_rule else 0


def _parallel_extra_gib(gpu: GpuProfile, tensor_parallel_size: int, release: VllmRelease) -> float:
    has_fabric = gpu.joins_by_nvlink(tensor_parallel_size) and _is_hopper_or_later(gpu)
    if has_fabric and release.nvlink_parallel_gib is not None:
        return release.nvlink_parallel_gib
    return release.neighbour_gib * min(tensor_parallel_size - 1, 2) + release.parallel_gib


def _is_hopper_or_later(gpu: GpuProfile) -> bool:
    return compute_capability(gpu)[0] >= _HOPPER


def largest_graph(spec: ModelSpec, gpu: GpuProfile, settings: FilledSettings, release: VllmRelease) -> int:
    """Tokens of the largest batch that is captured (vllm/config/vllm.py, _set_cudagraph_sizes).

    Two steps of all sequences, with their draft tokens, up to a limit that gpt-oss has of its own
    (vllm/model_executor/models/config.py), and no more than a step may have.
    """
    is_huge = release.huge_graph_sizes and compute_capability(gpu)[0] == _BLACKWELL
    is_huge = is_huge or spec.architecture in _LARGE_GRAPH_MODELS
    most = _LARGEST_GRAPH_ON_BLACKWELL if is_huge else _LARGEST_GRAPH
    step = settings.max_num_seqs * (1 + settings.num_speculative_tokens)
    return min(2 * step, most, settings.max_num_batched_tokens)


def capture_sizes(largest: int, step: int = 1) -> tuple[int, ...]:
    """Return the batch sizes that are captured: 1, 2, 4, every 8 to 256, every 16 to the largest.

    step: tokens of one sequence. With a drafter sizes are multiples of it (vllm/config/compilation.py,
    adjust_cudagraph_sizes_for_spec_decode).
    """
    sizes = [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)) if size <= largest]
    whole_steps = {-(-size // step) * step for size in sizes}
    return tuple(sorted(size for size in whole_steps if size <= largest))


def cudagraph_bytes(
    num_layers: int, gpu: GpuProfile, settings: FilledSettings, largest: int, *, whole: bool, measured: bool = False
) -> int:
    """Memory of the captured graphs, which is also what vLLM estimates of them before they are captured.

    The estimate is the first capture and, for each further size, what the second took
    (vllm/v1/worker/gpu_model_runner.py, profile_cudagraph_memory; vllm/v1/worker/gpu/cudagraph_utils.py for the second
    runner): in pieces for all sizes up to ``largest`` (``largest_graph``), and as whole steps for those that all
    sequences can fill. Each takes memory for every layer.

    whole: whether decode steps are captured whole, too. measured: whether the second runner estimates.
    """
    reductions = _REDUCTIONS_PER_LAYER * _REDUCTION_MIB if _reduces_with_nccl(gpu, settings) else 0.0
    step = 1 + settings.num_speculative_tokens if whole else 1
    sizes = capture_sizes(largest, step)
    whole_sizes = sum(step <= size <= settings.max_num_seqs * step for size in sizes) if whole else 0
    on_hopper = compute_capability(gpu)[0] == _HOPPER
    whole_mib = _WHOLE_LAYER_MIB_ON_HOPPER if on_hopper else _WHOLE_LAYER_MIB
    pieces_mib = _MEASURED_PIECES_LAYER_MIB if measured and not on_hopper else _PIECES_LAYER_MIB
    further = max(len(sizes) - 1, 0) * (pieces_mib + reductions) + max(whole_sizes - 1, 0) * (whole_mib + reductions)
    return int(_FIRST_CAPTURE_GIB * GIB + num_layers * further * MIB)


def _reduces_with_nccl(gpu: GpuProfile, settings: FilledSettings) -> bool:
    """Whether vLLM leaves its own all-reduce off: over several nodes, and for numbers of GPUs that it is not made for.

    Also for more than two GPUs without NVLink, and for two that cannot read each other's memory
    (vllm/distributed/device_communicators/custom_all_reduce.py: _SUPPORTED_WORLD_SIZES, CustomAllreduce.__init__).
    """
    ranks = settings.tensor_parallel_size
    if ranks == 1 or gpu.vendor != "nvidia":
        return False
    if ranks > gpu.max_gpus_per_node or ranks not in _OWN_REDUCTION_RANKS:
        return True
    return not gpu.joins_by_nvlink(ranks) and (ranks > 2 or not gpu.peer_access)


def requested_bytes(settings: FilledSettings, release: VllmRelease) -> int:
    """What the instance may use of one GPU; in some releases what others hold of it counts as its own."""
    requested = math.ceil(settings.device_memory_bytes * settings.gpu_memory_utilization)
    return requested - (others_bytes(settings) if release.counts_other_processes else 0)


def others_bytes(settings: ServingSettings) -> int:
    """What other programs hold of a GPU."""
    return settings.reserved_bytes or 0


def shared_utilization(total_bytes: int, others: int, own_share: float, release: VllmRelease) -> float:
    """The gpu_memory_utilization that takes ``own_share`` of what others leave of a GPU, rounded down.

    vLLM's share is of the whole memory (vllm/v1/worker/utils.py, request_memory).
    """
    own = own_share * (total_bytes - others)
    share = (own + (others if release.counts_other_processes else 0)) / total_bytes
    return math.floor(share * 1000 + 1e-6) / 1000


def check_free(settings: FilledSettings, release: VllmRelease) -> None:
    """UsageError where others leave less than the release wants to be free, or nothing."""
    total, others = settings.device_memory_bytes, others_bytes(settings)
    if not others:
        return
    if others >= total:
        raise UsageError(
            f"--reserve {format_bytes(others)} leaves nothing of {format_bytes(total)}.", hint="reserve less"
        )
    free = total - others - CONTEXT_BYTES
    needed = math.ceil(total * settings.gpu_memory_utilization)
    if release.checks_free_memory and needed > free:
        most = math.floor(1000 * max(free, 0) / total) / 1000
        raise UsageError(
            f"vLLM {release.text} does not start beside {format_bytes(others)} of others: its "
            f"gpu_memory_utilization {settings.gpu_memory_utilization:g} wants {format_bytes(needed)} free, and about "
            f"{format_bytes(free)} are.",
            hint=f"use --gpu-memory-utilization {most:g} or less, or leave it out",
        )
