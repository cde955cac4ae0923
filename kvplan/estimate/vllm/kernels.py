"""Kernels that vLLM picks by GPU and release, where the choice decides memory.

Sources (vllm-project/vllm): vllm/platforms/cuda.py (_get_backend_priorities), vllm/v1/attention/backends/flashinfer.py
(_get_workspace_buffer, supports_sink), vllm/v1/attention/backends/fa_utils.py (8-bit caches and sinks),
vllm/envs.py (VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE), and for MXFP4 the padding rules of
vllm/model_executor/layers/quantization/mxfp4.py, later vllm/model_executor/layers/fused_moe/oracle/mxfp4.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvplan.catalog.devices.device_support import compute_capability
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import CompressedAttention, LatentAttention, LayerSpec, ModelSpec, SoftmaxAttention
from kvplan.errors import KvplanError
from kvplan.estimate.dtypes import head_scale_bytes
from kvplan.estimate.vllm.settings import runs_flashinfer
from kvplan.settings import FilledSettings
from kvplan.units import MIB

_FLASHINFER_WORKSPACE = 394 * MIB
_FLASHINFER_BYTES_PER_ELEMENT = 16
_COMPRESSED_WORKSPACE = 128 * MIB
_FLASHINFER_HEAD_SIZES = (64, 128, 256, 512)
_EIGHT_BIT_FLOATS = ("fp8", "fp8_e4m3", "fp8_e5m2")

_TOKENS_PER_SPLIT = 512
_PROMPTS_GATHERED = 4
_INDEXED_PROMPTS, _LONG_PROMPT = 5, 256 * 1024
_KEYS_PER_LATENT = 576 * 2 // 132
INDEXER_LOGIT_BYTES = 512 * MIB
"""What the profile run sets aside for the scores of a sparse indexer (VLLM_SPARSE_INDEXER_MAX_LOGITS_MB)."""

_EIGHT_BIT_FLOATS_FROM = (8, 9)
_SWIZZLED_MODELS = ("GptOssForCausalLM",)
_PADDED_HIDDEN_STEP = 256
_MARLIN_INNER_STEP, _WIDE_INNER_STEP = 128, 256


def attends_with_flashinfer(
    layers: Sequence[LayerSpec], gpu: GpuProfile, settings: FilledSettings, release: VllmRelease
) -> bool:
    """Whether FlashInfer serves the model's softmax attention: by default on Blackwell data-centre GPUs (10.x), and
    elsewhere where FlashAttention cannot read an 8-bit cache (it can on Hopper, but not the e5m2 kind). Integers with
    scales are read by Triton's attention alone, and so is what an index of groups chooses (Qwen 4)."""
    mixers = [layer.mixer for layer in layers if isinstance(layer.mixer, SoftmaxAttention)]
    if any(mixer.indexer is not None and mixer.indexer.key_format == "model" for mixer in mixers):
        return False
    capability = compute_capability(gpu)
    if not mixers or not release.v1 or not runs_flashinfer(gpu) or head_scale_bytes(settings.kv_cache_dtype):
        return False
    is_large_blackwell = capability[0] == 10
    if any(mixer.sinks for mixer in mixers) and not is_large_blackwell:
        return False
    if any(mixer.head_size_k not in _FLASHINFER_HEAD_SIZES for mixer in mixers):
        return False
    is_eight_bit = settings.kv_cache_dtype in _EIGHT_BIT_FLOATS
    read_by_flash_attention = capability[0] == 9 and settings.kv_cache_dtype != "fp8_e5m2"
    return is_large_blackwell or (is_eight_bit and not read_by_flash_attention)


_WINDOWED_STATES = ("stream_conv",)
"""Kinds of states that vLLM keeps as windows of tokens."""


def captures_whole_steps(spec: ModelSpec, gpu: GpuProfile, settings: FilledSettings, release: VllmRelease) -> bool:
    """Whether decode steps are captured whole, and not in pieces between attention layers.

    With a drafter they are not where a kernel takes one token of each sequence alone: linear attention
    (vllm/v1/attention/backends/linear_attn.py) and, on some GPUs by release, FlashInfer
    (vllm/config/compilation.py, resolve_cudagraph_mode_and_sizes).
    """
    if settings.enforce_eager or gpu.is_cpu:
        return False
    if not settings.num_speculative_tokens:
        return True
    if any(state.kind == "linear_attention" for state in spec.states):
        return False
    is_captured = compute_capability(gpu)[0] in release.flashinfer_drafts_on
    return is_captured or not attends_with_flashinfer(spec.layers, gpu, settings, release)


def needs_block_per_sequence(spec: ModelSpec, gpu: GpuProfile, settings: FilledSettings, release: VllmRelease) -> bool:
    """Whether vLLM refuses more sequences than blocks: with states, where whole decode steps are captured."""
    kinds = {state.kind for state in spec.states} - set(_WINDOWED_STATES)
    return bool(kinds) and release.needs_block_per_sequence and captures_whole_steps(spec, gpu, settings, release)


def attention_workspace_bytes(
    layers: Sequence[LayerSpec], gpu: GpuProfile, settings: FilledSettings, release: VllmRelease
) -> int:
    """FlashInfer's workspace, made when the first whole graph is captured and therefore part of the graphs' estimate.

    394 MiB; from 0.26 on at least 16 bytes for every batched token and element of a rank's queries. What vLLM issue
    50780 measured per batched token (128 KiB) is this for 32 heads of 256, and the 0.52 and 0.89 GiB of issue 52872
    differ by it.
    """
    if not attends_with_flashinfer(layers, gpu, settings, release):
        return 0
    if not release.grows_attention_workspace:
        return _FLASHINFER_WORKSPACE
    widths = (
        layer.mixer.num_heads // settings.tensor_parallel_size * layer.mixer.head_size_k
        for layer in layers
        if isinstance(layer.mixer, SoftmaxAttention)
    )
    needed = settings.max_num_batched_tokens * max(widths) * _FLASHINFER_BYTES_PER_ELEMENT
    return max(_FLASHINFER_WORKSPACE, needed)


def attends_with_triton(gpu: GpuProfile) -> bool:
    """Whether Triton serves latent attention: the other kernels are for Hopper and for Blackwell data-centre GPUs."""
    return compute_capability(gpu)[0] not in (0, 9, 10)


def check_pooled_keys(spec: ModelSpec, gpu: GpuProfile) -> None:
    """KvplanError for pooled index keys on a GPU for which their layout is not known: all but Hopper and B200 to B300.

    Consumer Blackwell keeps rows of 656 B there, AMD's kernels others (vllm/v1/attention/backends/mla, 0.33.0).
    """
    if spec.index_pool > 1 and compute_capability(gpu)[0] not in (9, 10):
        raise KvplanError(
            f"It is not known how vLLM keeps the index keys of {spec.served_id} on {gpu.id}.",
            hint="it is on Hopper and on B200, B300, GB200 and GB300",
        )


def latent_split_bytes(
    layers: Sequence[LayerSpec], gpu: GpuProfile, settings: FilledSettings, release: VllmRelease
) -> int:
    """Triton's workspace for latent attention, where the release takes it in the profile run.

    Float32 results of each split of the longest sequence, for every sequence, head and token that a step may decode,
    and one more number for the softmax. A split is 512 tokens; the number of splits is a power of two, and at most
    twice the multiprocessors (vllm/v1/attention/backends/mla/triton_mla.py, _compute_num_kv_splits and
    reserve_workspace, read in 0.33.0).
    """
    mixers = [layer.mixer for layer in layers if isinstance(layer.mixer, LatentAttention)]
    dense = [mixer for mixer in mixers if mixer.chosen_tokens is None]
    if not dense or not release.reserves_latent_splits or not attends_with_triton(gpu):
        return 0
    splits = 1 << (max(settings.max_model_len // _TOKENS_PER_SPLIT, 1) - 1).bit_length()
    if gpu.multiprocessors:
        splits = min(splits, 2 * gpu.multiprocessors)
    rows = settings.max_num_seqs * (1 + settings.num_speculative_tokens)
    heads = max(mixer.num_heads for mixer in dense) // settings.tensor_parallel_size
    widest = max(mixer.kv_lora_rank for mixer in dense) + 1
    return rows * heads * settings.decode_context_parallel_size * splits * widest * 4


def gathered_bytes(layers: Sequence[LayerSpec], gpu: GpuProfile, settings: FilledSettings) -> int:
    """FlashMLA's workspace for compressed attention, which the profile run takes: what 4 prompts read, in bfloat16.

    Their compressed vectors at ``max_model_len``, a window, and a batch of tokens; and which of them each token reads
    (vllm/models/deepseek_v4/nvidia/flashmla.py, forward_mqa, read in 0.32.0 and 0.33.0). Consumer Blackwell has
    another kernel.
    """
    mixers = [layer.mixer for layer in layers if isinstance(layer.mixer, CompressedAttention)]
    if not mixers or compute_capability(gpu)[0] not in (9, 10):
        return 0
    batch, window = settings.max_num_batched_tokens, max(mixer.window_tokens for mixer in mixers)
    compressed = max(-(-settings.max_model_len // mixer.ratio) if mixer.ratio else 0 for mixer in mixers)
    columns = window + max(mixer.indexer.topk if mixer.indexer else 0 for mixer in mixers)
    vectors = _PROMPTS_GATHERED * (compressed + window + batch)
    return vectors * mixers[0].head_size * 2 + batch * (-(-columns // 128) * 128 + 1) * 4


def compressed_workspace_bytes(layers: Sequence[LayerSpec], gpu: GpuProfile) -> int:
    """FlashInfer's workspace for compressed attention on consumer Blackwell, made in the profile run and kept
    (vllm/models/deepseek_v4/nvidia/flashinfer_sparse.py, read in 0.25.0 and 0.33.0)."""
    is_compressed = any(isinstance(layer.mixer, CompressedAttention) for layer in layers)
    return _COMPRESSED_WORKSPACE if is_compressed and compute_capability(gpu)[0] == 12 else 0


def index_workspace_bytes(layers: Sequence[LayerSpec], settings: FilledSettings, release: VllmRelease) -> int:
    """A sparse indexer's workspace, which the profile run takes: keys of prompts in 8 bits, each with its scale.

    As many as 5 prompts of ``max_model_len`` have in FlashMLA's workspace of 1,152 B each, where a key takes 132 B, and
    one of them for each pool of tokens; from 0.32 on of 2 prompts where they are longer than 256k
    (vllm/model_executor/layers/sparse_attn_indexer.py and get_max_prefill_buffer_size in
    vllm/v1/attention/backends/mla/indexer.py, read in 0.19.0 to 0.33.0).
    """
    mixers = (mixer for layer in layers for mixer in layer.mixers)
    found = [_indexed(mixer) for mixer in mixers if isinstance(mixer, (LatentAttention, CompressedAttention))]
    if not release.keeps_moe_workspace:  # no workspace is kept
        return 0
    is_long = settings.max_model_len > _LONG_PROMPT
    prompts = release.long_index_prompts if is_long else _INDEXED_PROMPTS
    keys = _KEYS_PER_LATENT * prompts * settings.max_model_len
    return max((keys // pool * (head_size + 4) for head_size, pool in found if pool), default=0)


def index_graph_bytes(layers: Sequence[LayerSpec], settings: FilledSettings, largest: int, *, whole: bool) -> int:
    """What a sparse indexer adds to the estimate of graphs, whose largest has ``largest`` tokens.

    Before pieces are captured a step runs without attention, for which the indexer sets its room for scores aside
    (``INDEXER_LOGIT_BYTES``); PyTorch's allocator keeps it, and the estimate is what is no longer free. Whole steps
    have the scores of each token that decodes against max_model_len (pooled) tokens, in float32, in their pool
    (sparse_attn_indexer.py and vllm/utils/deep_gemm.py, read in 0.25.0 and 0.33.0).
    """
    mixers = (mixer for layer in layers for mixer in layer.mixers)
    pools = [_indexed(mixer)[1] for mixer in mixers if isinstance(mixer, (LatentAttention, CompressedAttention))]
    found = [pool for pool in pools if pool]
    if not found:
        return 0
    rows = min(settings.max_num_seqs * (1 + settings.num_speculative_tokens), largest)
    scores = rows * (settings.max_model_len // min(found)) * 4 if whole else 0
    return max(INDEXER_LOGIT_BYTES, scores) + scores


def _indexed(mixer: LatentAttention | CompressedAttention) -> tuple[int, int]:
    """Elements of an index key, and of how many tokens each is; (0, 0) without an indexer."""
    if mixer.indexer is None:
        return 0, 0
    pool = mixer.ratio or 1 if isinstance(mixer, CompressedAttention) else mixer.indexer.pool
    return mixer.indexer.head_size, pool


RepeatedScales = Literal["none", "linear", "all"]
"""Whose blocks' scales Marlin repeats: nobody's, those of all layers but fused experts, or of all."""


def repeats_block_scales(gpu: GpuProfile, release: VllmRelease) -> RepeatedScales:
    """Which 8-bit floats with a scale for each block Marlin runs: all on NVIDIA GPUs without instructions for them.

    From 0.29.0 on those of linear layers on compute capability 8.9, too, for which CUTLASS has no kernel and Marlin now
    stands before Triton; of experts Triton's stays the first (fused_moe/oracle/fp8.py: _get_priority_backends).

    It takes a scale for each row and 128 inputs, so that each block's is repeated for its 128 rows, in the model's
    dtype (vllm/model_executor/layers/quantization/utils/marlin_utils_fp8.py: prepare_fp8_layer_for_marlin and
    prepare_fp8_moe_layer_for_marlin, read in 0.27.1 and 0.29.0). Q011 of tests/data/vllm_startups.csv, on an L20,
    names it.
    """
    capability = compute_capability(gpu)
    if (0, 0) < capability < _EIGHT_BIT_FLOATS_FROM:
        return "all"
    return "linear" if capability == _EIGHT_BIT_FLOATS_FROM and release.marlin_before_triton else "none"


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """How a kernel wants stacked MXFP4 experts: widths are padded to a multiple of the steps.

    Triton's kernels on Hopper take the hidden width as it is. Their scales are swizzled, with rows padded to 256 and
    groups to ``group_step`` (vllm/third_party/triton_kernels/tensor_details/layout_details/hopper_scale.py), and the
    biases are made float32 (convert_gpt_oss_weight_to_mxfp4_moe_kernel_format).

    keeps_scales: whether the checkpoint's scales stay beside the swizzled ones.
    """

    inner_step: int = 64
    hidden_step: int = _PADDED_HIDDEN_STEP
    is_swizzled: bool = False
    group_step: int = 1
    keeps_scales: bool = False


def expert_layout(spec: ModelSpec, gpu: GpuProfile, release: VllmRelease) -> ExpertLayout:
    """Triton's on Hopper, FlashInfer's on Blackwell data-centre GPUs, Marlin's on other NVIDIA GPUs, AITER's on AMD's.

    Triton takes gpt-oss alone (vllm/model_executor/layers/fused_moe/oracle/mxfp4.py, _get_priority_backends); what is
    padded for another model on Hopper was not read.
    """
    major = compute_capability(gpu)[0]
    if major == 9:
        if spec.architecture not in _SWIZZLED_MODELS:
            return ExpertLayout()
        return ExpertLayout(
            hidden_step=1,
            is_swizzled=True,
            group_step=release.swizzled_group_step,
            keeps_scales=release.keeps_swizzled_scales,
        )
    if major == 0 or (major == 10 and release.pads_wide_experts):
        return ExpertLayout(inner_step=_WIDE_INNER_STEP)
    return ExpertLayout(inner_step=_MARLIN_INNER_STEP)
