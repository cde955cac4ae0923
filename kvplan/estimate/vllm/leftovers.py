"""What PyTorch's allocator keeps over vLLM's profile run: memory that is free in it and cannot be given back.

From 0.27.0 on the budget counts all that the driver no longer has. Segments that loading left partly in use count, less
what the second runner's tensors take of them; and in 0.27.0 to 0.30 cuBLAS's workspace may keep a whole matrix:

1. Where Inductor is done with the decoder it runs its Triton kernels once on random tensors
   (torch/_inductor/codegen/wrapper.py, generate_and_run_autotune_block, read in PyTorch 2.13), the lookup of tokens
   first: the embedding's matrix and the two outputs, hidden states before and after their norm. All three are freed.
2. The first step then allocates these outputs again, the first product's result, and, as this is the first product of
   cuBLAS, its workspace, which stays (torch/aten: getCUDABlasLtWorkspace). Each takes the smallest piece that is large
   enough. Where that is the freed matrix, the workspace is split off it and keeps its segment.
3. The buffers of fused experts stay, too, and take what is left of the matrix.

Where the first layer has a gated delta rule, kernels that could be joined are timed, and behind them PyTorch gives the
matrix back (benchmark_combo_kernel of torch/_inductor/codegen/triton.py: empty_cache). The workspace takes the piece of
the output that the rule fills with zeros: 7.9 MiB of 16 stay of Qwen3.5-4B, 87.9 of 96 of Qwen3.5-27B with 8,192 tokens
a step. Where that is too small it takes the timing's buffer: 63.9 of 72 MiB for Qwen3.5-4B with 512 tokens. Mamba 2
makes its output before the hidden states, and is replayed as attention is: Nemotron 3 Nano 30B loses 538 of 672 MiB,
the 4B model none. All were run without a GPU.

From 0.29.0 on ranks that divide the embedding free a buffer as large as the L2 cache and no matrix
(``estimate.vllm.compilation``): two RTX 4090 lost 64 of its 72 MiB for gpt-oss-20b in 0.29.0, Qwen3-8B nothing.

From 0.31 on the profile run splits no piece of 20 MiB and more. The order was read off vLLM 0.29 and 0.33 that ran on
a CUDA runtime without a GPU (``tools/paper_gpu``): for Qwen2.5-1.5B on an Ada GPU 437.9 of 446 MiB stay.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import LayerSpec, ModelSpec, SoftmaxAttention, StateMixer
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.vllm.activation import cublas_bytes, moe_workspace_bytes
from kvplan.estimate.vllm.compilation import compiles, first_delta_rule, first_mixer, lookup_bytes, sees, zeroed_bytes
from kvplan.estimate.vllm.memo import RankParts
from kvplan.estimate.vllm.runners import large_state_bytes
from kvplan.estimate.vllm.settings import VllmSettings
from kvplan.estimate.vllm.torch_allocator import CachingAllocator, Piece
from kvplan.estimate.vllm.trials import inner_width
from kvplan.estimate.vllm.weights import NEVER_SPLIT_FROM, layer_input_width, stored_formats
from kvplan.settings import FilledSettings

_SCALES_LOOKUPS = "Gemma"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """``segment_bytes`` are free in segments of weights and requests' state, ``pinned_bytes`` in a freed matrix's."""

    segment_bytes: int = 0
    pinned_bytes: int = 0


def profile_leftovers(
    spec: ModelSpec,
    parts: RankParts,
    gpu: GpuProfile,
    resolved: VllmSettings,
    release: VllmRelease,
    *,
    embeds: bool = True,
    samples: bool = True,
) -> Leftovers:
    """Return what a rank with ``parts`` keeps; nothing where the release's budget counts tensors alone."""
    if not release.counts_runner_state or resolved.serving.expandable_segments or gpu.vendor != "nvidia":
        return Leftovers()
    memory = CachingAllocator.with_pieces(parts.free_pieces, NEVER_SPLIT_FROM)
    if samples and resolved.second_runner:
        for size in large_state_bytes(spec, resolved.serving):
            memory.allocate(size)
    segments = memory.reserved_bytes - memory.in_use_bytes
    if not embeds or not release.counts_split_pieces or not is_replayed(spec, gpu, resolved.serving, release):
        return Leftovers(segments)
    memory.max_split_bytes = None
    experts = moe_workspace_bytes(parts.layer_kinds, resolved.serving, release) if release.keeps_moe_workspace else 0
    return Leftovers(segments, _pinned_bytes(memory, spec, parts.cached[0], gpu, resolved.serving, release, experts))


def is_replayed(spec: ModelSpec, gpu: GpuProfile, settings: FilledSettings, release: VllmRelease) -> bool:
    """Whether the order of allocations is known: whole layers on an NVIDIA GPU with its own memory, softmax attention.

    So are a gated delta rule and Mamba 2 in the first layer, on one GPU. There are neither adapters nor a drafter. Of
    Gemma's lookups, which are scaled, two were seen. Before 0.29.0 ranks that divide the embedding are not replayed:
    with the matrix freed gpt-oss-20b on two RTX 4090 would lose 528 MiB in 0.28.0, and lost 66.
    """
    has_state = settings.tensor_parallel_size == 1 and _begins_with_state(spec)
    plain = all(
        isinstance(mixer, SoftmaxAttention) or (isinstance(mixer, StateMixer) and has_state)
        for layer in spec.layers
        for mixer in layer.mixers
    )
    beside = settings.enable_lora or spec.drafter is not None
    is_read = gpu.vendor == "nvidia" and not gpu.unified_memory
    is_known = not spec.architecture.startswith(_SCALES_LOOKUPS) or _keeps_nothing(spec)
    divides = settings.tensor_parallel_size > 1 and not release.looks_up_parts_itself
    return plain and is_read and is_known and not beside and not divides


def _pinned_bytes(
    memory: CachingAllocator,
    spec: ModelSpec,
    first: LayerSpec,
    gpu: GpuProfile,
    settings: FilledSettings,
    release: VllmRelease,
    experts_bytes: int,
) -> int:
    """Bytes of segments made for compiling that cuBLAS's workspace and the experts' buffers keep beside themselves."""
    matrix, output = lookup_bytes(spec, gpu, settings, release)
    hidden = settings.max_num_batched_tokens * spec.hidden_size * element_bytes(settings.dtype)
    mixer, delta_rule = first_mixer(spec), first_delta_rule(spec)
    if matrix and delta_rule is not None:
        pieces = (zeroed_bytes(delta_rule, settings), gpu.l2_cache_bytes)
        return next((piece - cublas_bytes(gpu) for piece in pieces if piece >= cublas_bytes(gpu)), 0)
    freed = [matrix, output, output] if matrix else []
    # an encoder runs first, so that the workspace is there before anything is compiled
    if settings.tensor_parallel_size > 1 and compiles(gpu, settings, release) and not sees(spec, settings):
        freed = [gpu.l2_cache_bytes, hidden, hidden]
    if not freed or not isinstance(mixer, SoftmaxAttention | StateMixer) or _keeps_nothing(spec):
        return 0
    reserved = memory.reserved_bytes
    memory.release(*[memory.allocate(size) for size in freed])
    step = [memory.allocate(size) for size in (*_made_first(mixer, settings), hidden, hidden)]
    if _is_plain(spec, first, settings.quantization):
        step.append(memory.allocate(_first_product_bytes(mixer, settings)))
    else:  # the first product of cuBLAS's is the head's: the step's other tensors are free again
        memory.release(step.pop())
        step.append(_logits(memory, spec, settings))
    kept = cublas_bytes(gpu)
    memory.allocate(kept)
    if experts_bytes:
        memory.allocate(experts_bytes)
    memory.release(*step)
    memory.release_segments()
    return max(memory.reserved_bytes - reserved - kept - experts_bytes, 0)


def _keeps_nothing(spec: ModelSpec) -> bool:
    """Gemma 3 1B's and Gemma 4 E2B's scaled lookups leave a piece of 16 and of 24 MiB, which the workspace takes.

    So of Gemma 3 as text alone, and of Gemma 4 with inputs for each layer. No other Gemma was rehearsed.
    """
    of_3, of_4 = (spec.architecture.startswith(f"Gemma{number}For") for number in (3, 4))
    return of_3 or (of_4 and layer_input_width(spec) > 0)


def _logits(memory: CachingAllocator, spec: ModelSpec, settings: FilledSettings) -> Piece:
    rows = min(settings.max_num_seqs, settings.max_num_batched_tokens)
    return memory.allocate(rows * spec.vocab_size * element_bytes(settings.dtype) // settings.tensor_parallel_size)


def _is_plain(spec: ModelSpec, layer: LayerSpec, quantization: str) -> bool:
    """Whether cuBLAS multiplies in the layer's first product: its matrix is quantized neither before nor in loading."""
    tensors = [tensor for mixer in layer.mixers for tensor in mixer.tensors if len(tensor.shape) > 1]
    return not tensors or stored_formats(spec, quantization).of(tensors[0], 0) is None


def _begins_with_state(spec: ModelSpec) -> bool:
    first = first_mixer(spec)
    return first_delta_rule(spec) is not None or (isinstance(first, StateMixer) and first.kind == "mamba2")


def _made_first(mixer: SoftmaxAttention | StateMixer, settings: FilledSettings) -> tuple[int, ...]:
    """Bytes of what a layer makes before its input: Mamba 2's output, which its kernels write into."""
    if isinstance(mixer, SoftmaxAttention):
        return ()
    return (settings.max_num_batched_tokens * inner_width(mixer) * element_bytes(settings.dtype),)


def _first_product_bytes(mixer: SoftmaxAttention | StateMixer, settings: FilledSettings) -> int:
    """Queries, keys and values of a step in the first layer, one tensor; Mamba 2's gate, input, B, C and time steps."""
    if isinstance(mixer, StateMixer):
        width = mixer.conv_channels + mixer.conv_group_channels + inner_width(mixer) + mixer.recurrent_shape[0]
        return settings.max_num_batched_tokens * width * element_bytes(settings.dtype)
    heads = mixer.num_heads // settings.tensor_parallel_size
    kv_heads = max(mixer.num_kv_heads // settings.tensor_parallel_size, 1)
    width = (heads + kv_heads) * mixer.head_size_k + kv_heads * mixer.head_size_v
    return settings.max_num_batched_tokens * width * element_bytes(settings.dtype)
