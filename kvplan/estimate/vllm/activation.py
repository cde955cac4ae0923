"""The peak of vLLM's profile run: what is alive at once when it runs one full step of dummy tokens and samples.

The run has stages, one after the other, and the largest decides:

1. the encoder (multimodal models) sees as many of the largest items as a step may hold;
2. the decoder runs ``max_num_batched_tokens`` tokens. In the middle of a layer there are alive: the residual stream,
   the layer's input and the attention's output (3 hidden widths), and either the inside of the feed-forward or qkv;
3. the sampler runs ``max_num_seqs`` rows of logits through top-k and top-p, with the decoder's output still alive.

The encoder's input and output stay alive through stages 2 and 3, the experts' workspace (from 0.14) through stage 3.
The second model runner (kvplan.estimate.vllm.runners) has another stage 3, before 0.27 no stage 1, and keeps only the
encoder's output (vllm/v1/worker/gpu/mm/encoder_runner.py, profile_encoder_cache).
A first start also compiles the decoder between stages 1 and 2 (kvplan.estimate.vllm.compilation).
Sources: vllm/v1/worker/gpu_model_runner.py (profile_run, _dummy_sampler_run), vllm/v1/worker/gpu/model_runner.py,
vllm/v1/sample, and vllm/model_executor/layers/fused_moe (workspace_shapes). Constants are for all models; none is
fitted to one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvplan.catalog.devices.device_support import compute_capability
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import (
    CompressedAttention,
    DenseFeedForward,
    FeedForward,
    LatentAttention,
    LayerSpec,
    ModelSpec,
    MoeFeedForward,
)
from kvplan.errors import KvplanError, unhandled_kind
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.mixers import activation_width
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.vllm.compilation import compiling_bytes, timed_kernel_bytes
from kvplan.estimate.vllm.first_awq import first_awq_bytes
from kvplan.estimate.vllm.kernels import (
    INDEXER_LOGIT_BYTES,
    compressed_workspace_bytes,
    gathered_bytes,
    index_workspace_bytes,
    latent_split_bytes,
)
from kvplan.estimate.vllm.settings import VllmSettings
from kvplan.estimate.vllm.trials import trial_bytes
from kvplan.estimate.vllm.vision import vision_profile
from kvplan.estimate.vllm.weights import layer_input_width
from kvplan.settings import FilledSettings
from kvplan.units import KIB, MIB

SORT_LOGIT_COPIES = 9
"""Float32-sized copies of the logits alive while torch sorts them on the GPU, beside the original.

One float32 copy, sorted values (1) and int64 indices (2), and the sort's own double buffers of both (5). The peaks that
vLLM 0.6 to 0.16 printed for ten models agree on 9.0 within 0.05.
"""
TRITON_LOGIT_COPIES = 3
"""Float32 copy, probabilities, and the exponential noise they are divided by (in place)."""
FLASHINFER_LOGIT_COPIES = 3
"""Float32 copy, the logits with all but the top k masked, and their probabilities."""
REJECTING_LOGIT_COPIES = 7
"""Copies in the first runner's rejection sampler, tried out on a drafted and a further token of every sequence.

Both tokens' logits (1, in the model's dtype, and a half for the further one's, which are the logits beside these here),
both in float32 (2), and of the drafted one a copy, probabilities, noise and its reciprocal (4). The further token is
sampled before with the first two and its float32 beside.
"""
_TRITON_MIN_ROWS = 8
_HOPPER_BLAS_WORKSPACE = 32 * MIB
_BLAS_WORKSPACE = 8320 * KIB
_RESIDUAL_WIDTHS = 3
_LATENT_CHUNK_TOKENS = 64 * KIB
_VOCAB_PADDING = 64


@dataclass(frozen=True, slots=True)
class ActivationPeak:
    """Bytes on one rank. ``peak_bytes`` is what vLLM prints as peak activation; ``decided_by`` names the stage.

    ``compiling_bytes``: what compiling takes, which a start that finds everything in its compile cache does not do.
    """

    encoder_bytes: int
    decoder_bytes: int
    sampler_bytes: int
    decided_by: str
    compiling_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """Return the peak of a first start."""
        return max(self.warm_peak_bytes, self.compiling_bytes)

    @property
    def warm_peak_bytes(self) -> int:
        """Return the peak of a start that finds its kernels compiled."""
        return max(self.encoder_bytes, self.decoder_bytes, self.sampler_bytes)


def activation_peak(
    spec: ModelSpec,
    layers: tuple[LayerSpec, ...],
    gpu: GpuProfile,
    resolved: VllmSettings,
    release: VllmRelease,
    *,
    num_layers: int,
    weight_bytes: int = 0,
    embeds: bool = True,
    samples: bool = True,
) -> ActivationPeak:
    """Return the peak on a rank with ``layers``, one of each kind of its ``num_layers``, and ``weight_bytes``.

    ``embeds`` where it has the embedding, ``samples`` where it has the head.
    """
    settings = resolved.serving
    workspace = blas_workspace_bytes(gpu, release)
    looks = release.second_runner_encoder or not resolved.second_runner
    vision = vision_profile(spec, settings, release, weight_bytes=weight_bytes) if looks else None
    encoder, kept = 0, 0
    if vision is not None:
        size = element_bytes(settings.dtype)
        encoder = (vision.pixels + vision.inside) * size
        kept = (vision.outputs + (0 if resolved.second_runner else vision.pixels)) * size
    kept += kept_reduction_bytes(spec, num_layers, settings, release) + compressed_workspace_bytes(layers, gpu)
    layers_bytes = max(decoder_bytes(spec, layers, settings, release), first_awq_bytes(spec, layers, settings, release))
    experts = moe_workspace_bytes(layers, settings, release)
    # Experts and attention have one workspace, as large as the larger of both needs it.
    attending = max(
        latent_split_bytes(layers, gpu, settings, release),
        gathered_bytes(layers, gpu, settings),
        index_workspace_bytes(layers, settings, release),
    )
    splits = max(attending - experts, 0)
    trials = trial_bytes(spec, layers, gpu, settings, release)
    decoder = workspace + kept + max(layers_bytes + splits, trials)
    sampler = 0
    if samples:
        sampler = workspace + kept + sampler_bytes(spec, gpu, resolved, release) + splits
        if release.keeps_moe_workspace:
            sampler += experts
    inside = max((_feed_forward_width(layer.feed_forward, ParallelLayout.of(settings)) for layer in layers), default=0)
    compiling = timed_kernel_bytes(spec, inside, gpu, settings, release)
    compiling = max(compiling, compiling_bytes(spec, gpu, settings, release)) if embeds else compiling
    stages = {"encoder": encoder + workspace, "decoder": decoder, "sampler": sampler, "compilation": compiling}
    if vision is None:
        stages["encoder"] = 0
    return ActivationPeak(
        encoder_bytes=stages["encoder"],
        decoder_bytes=decoder,
        sampler_bytes=sampler,
        decided_by=max(stages, key=lambda name: stages[name]),
        compiling_bytes=compiling,
    )


def blas_workspace_bytes(gpu: GpuProfile, release: VllmRelease) -> int:
    """cuBLAS's workspace as far as it is part of the peak, and not of what the release finds before its budget."""
    return 0 if release.blas_before_budget else cublas_bytes(gpu)


def cublas_bytes(gpu: GpuProfile) -> int:
    """cuBLAS's workspace, which PyTorch takes from its own allocator: 32 MiB from Hopper on, 8,320 KiB before."""
    return _HOPPER_BLAS_WORKSPACE if compute_capability(gpu)[0] >= 9 else _BLAS_WORKSPACE


def sampler_bytes(spec: ModelSpec, gpu: GpuProfile, resolved: VllmSettings, release: VllmRelease) -> int:
    """Logits of ``max_num_seqs`` rows, their float32 copies, and the decoder's output they were made from."""
    settings = resolved.serving
    size = element_bytes(settings.dtype)
    rows = min(settings.max_num_seqs, settings.max_num_batched_tokens)
    vocabulary = -(-spec.vocab_size // _VOCAB_PADDING) * _VOCAB_PADDING
    hidden = (settings.max_num_batched_tokens + 2 * rows) * spec.hidden_size * size
    logits = rows * vocabulary * size
    if resolved.second_runner:
        # A soft cap divides the logits into new ones before anything is chosen (LogitsProcessor, read in 0.30.0).
        capped = logits if _caps_logits(spec) else 0
        copies = _second_sampler_rows(rows, gpu, resolved, release) * vocabulary * 4
        copies = max(copies, capped, _gathered_logits(logits, settings.tensor_parallel_size))
    elif resolved.samples_with_flashinfer and not release.warms_native_sampler:
        copies = FLASHINFER_LOGIT_COPIES * rows * vocabulary * 4
    else:
        copies = _first_sampler_rows(rows, gpu, resolved, release) * vocabulary * 4
    if spec.drafter is not None and release.samples_drafts_first and not resolved.second_runner:
        copies = max(copies + 2 * rows * vocabulary * 4, REJECTING_LOGIT_COPIES * rows * vocabulary * 4)
    return hidden + logits + copies


def _gathered_logits(logits_bytes: int, tensor_parallel_size: int) -> int:
    """A rank's own logits and those of all ranks one after the other, beside the logits that are made of them.

    ``all_gather`` in vllm/distributed/device_communicators/cuda_communicator.py (0.29.0, 0.33.0), before that in
    base_device_communicator.py (0.25.1).
    """
    return logits_bytes + logits_bytes // tensor_parallel_size if tensor_parallel_size > 1 else 0


def _caps_logits(spec: ModelSpec) -> bool:
    text = spec.raw_config.get("text_config", spec.raw_config)
    return isinstance(text, Mapping) and bool(text.get("final_logit_softcapping"))


def _first_sampler_rows(rows: int, gpu: GpuProfile, resolved: VllmSettings, release: VllmRelease) -> int:
    """Rows of float32 logits in PyTorch's sampler, which some releases run after FlashInfer's."""
    if release.sampler == "triton" and rows >= _TRITON_MIN_ROWS:
        found = TRITON_LOGIT_COPIES * rows + min(gpu.multiprocessors or rows, rows)
    else:
        found = SORT_LOGIT_COPIES * rows
    return max(found, FLASHINFER_LOGIT_COPIES * rows) if resolved.samples_with_flashinfer else found


def _second_sampler_rows(rows: int, gpu: GpuProfile, resolved: VllmSettings, release: VllmRelease) -> int:
    """Rows of float32 logits in the second model runner's sampler, whose noise never is a tensor (gumbel_sample)."""
    if release.second_sampler == "logits":
        return 0
    if release.second_sampler == "copy":
        return rows
    if resolved.samples_with_flashinfer:
        return FLASHINFER_LOGIT_COPIES * rows
    # Masked in place, with scratch for a power of two of programs (vllm/v1/sample/ops/topk_topp_triton.py, 0.33.0).
    programs = 1 << (rows - 1).bit_length()
    return rows + min(gpu.multiprocessors or programs, programs)


def decoder_bytes(
    spec: ModelSpec, layers: tuple[LayerSpec, ...], settings: FilledSettings, release: VllmRelease
) -> int:
    """One step of ``max_num_batched_tokens`` tokens at the widest point of the widest layer."""
    tokens, size = settings.max_num_batched_tokens, element_bytes(settings.dtype)
    widths = _RESIDUAL_WIDTHS + spec.residual_streams - 1
    if settings.tensor_parallel_size > 1 and not release.v1:
        widths += 1  # the all-reduce's output, before its input is freed
    if settings.pipeline_parallel_size > 1:
        widths += 2  # hidden states and residual, handed from stage to stage
    inside = max((_inside_layer(layer, spec, settings, release) for layer in layers), default=0)
    inside += tokens * layer_input_width(spec)  # those of all layers, made before the first
    chunk = max((_latent_chunk_bytes(layer, settings) for layer in layers), default=0)
    return (tokens * widths * spec.hidden_size + inside) * size + chunk


def _inside_layer(layer: LayerSpec, spec: ModelSpec, settings: FilledSettings, release: VllmRelease) -> int:
    """Elements at the widest part of a layer on one rank, beside the residual stream.

    Data-parallel experts work on the tokens of all groups, which run a step together: each rank gathers them (vllm's
    default, allgather_reducescatter) and has them before and after. None of the collected start-ups has data-parallel
    experts; 0.29.0 on two A100 that are not there kept the buffers of both groups' tokens.
    """
    layout, part, tokens = ParallelLayout.of(settings), layer.feed_forward, settings.max_num_batched_tokens
    widths = [activation_width(mixer, layout.tensor_parallel_size) for mixer in layer.mixers]
    elements = [tokens * max([*widths, _feed_forward_width(part, layout)])]
    if isinstance(part, MoeFeedForward):
        gathered = tokens * layout.data_parallel_size if layout.exchanges_tokens else 0
        rows = _expert_rows(settings, release)
        outputs = max(gathered, tokens) if rows < max(gathered, tokens) else 0  # of all chunks
        elements.append(rows * _experts_width(part, layout) + (2 * gathered + outputs) * spec.hidden_size)
    return max(elements)


def _expert_rows(settings: FilledSettings, release: VllmRelease) -> int:
    """Tokens in the buffers of the fused experts: those of a step, of all groups, as far as they are taken at once."""
    layout = ParallelLayout.of(settings)
    groups = layout.data_parallel_size if layout.exchanges_tokens else 1
    tokens = groups * settings.max_num_batched_tokens
    return tokens if release.expert_chunk_tokens is None else min(tokens, release.expert_chunk_tokens)


def kept_reduction_bytes(spec: ModelSpec, num_layers: int, settings: FilledSettings, release: VllmRelease) -> int:
    """Outputs of every all-reduce of the profile run, where the release cannot reuse them before it ends.

    PyTorch marks a tensor that a collective read on NCCL's stream and its allocator does not hand it out again until
    the host has seen that stream pass it; the host is far ahead. One for the embedding and two for each layer.
    An upper bound: where the GPU keeps up with the host less stays (6.0 of 10.1 GiB for Llama 2 70B on 8 A100).
    Sources: vllm-project/vllm issue 2150 (found while the change of 0.2.5 was reviewed), pull request 2151 (the fix).
    """
    if not release.keeps_reduced_tensors or settings.tensor_parallel_size == 1:
        return 0
    tensor_bytes = settings.max_num_batched_tokens * spec.hidden_size * element_bytes(settings.dtype)
    return (1 + 2 * num_layers) * tensor_bytes


def _feed_forward_width(part: FeedForward | None, layout: ParallelLayout) -> int:
    """Elements per token, of a mixture those of its shared expert."""
    tp = layout.tensor_parallel_size
    if part is None:
        return 0
    if isinstance(part, DenseFeedForward):
        return (3 if part.gated else 2) * part.intermediate_size // tp
    if isinstance(part, MoeFeedForward):
        return (3 if part.gated else 2) * part.shared_intermediate_size // layout.shared_expert_slices
    raise unhandled_kind(part, "_feed_forward_width")


def _experts_width(part: MoeFeedForward, layout: ParallelLayout) -> int:
    """Elements per token of the experts' two buffers. Rows of experts elsewhere are allocated too, and stay unused."""
    hidden = _hidden_of(part)
    inner = part.expert_intermediate_size // layout.expert_slices
    up = (2 if part.gated else 1) * inner
    return part.experts_per_token * (max(inner, hidden) + max(up, hidden))


def _hidden_of(part: MoeFeedForward) -> int:
    """The hidden size as the experts' own matrices say it: the input width of the gate, up or down projection."""
    routers = [tensor.shape[-1] for tensor in part.tensors if tensor.role == "router" and len(tensor.shape) > 1]
    if not routers:
        raise KvplanError(
            "A mixture without a router's matrix has no width here: its buffers are not sized.",
            hint="this is a gap in kvplan: please report it with the model's name",
        )
    return routers[0]


def moe_workspace_bytes(layers: tuple[LayerSpec, ...], settings: FilledSettings, release: VllmRelease) -> int:
    """The two buffers of the fused experts: tokens x experts per token rows, one inner or hidden wide, one 2 inner."""
    width = 0
    for layer in layers:
        if isinstance(layer.feed_forward, MoeFeedForward):
            width = max(width, _experts_width(layer.feed_forward, ParallelLayout.of(settings)))
    return _expert_rows(settings, release) * width * element_bytes(settings.dtype)


def _latent_chunk_bytes(layer: LayerSpec, settings: FilledSettings) -> int:
    """Latent attention expands cached prefixes chunk by chunk; the profile run allocates one expanded chunk.

    The chunk is 8 times the longest sequence or 4 blocks for each sequence, at most 64k tokens. With an indexer there
    is no expansion, but room for the indexer's scores.
    """
    mixer = layer.mixer
    if isinstance(mixer, CompressedAttention) and mixer.indexer is not None:
        return INDEXER_LOGIT_BYTES
    if not isinstance(mixer, LatentAttention):
        return 0
    if mixer.chosen_tokens is not None:
        return INDEXER_LOGIT_BYTES
    rows = max(8 * settings.max_model_len, 4 * settings.max_num_seqs * settings.block_size)
    tokens = max(min(rows, _LATENT_CHUNK_TOKENS), settings.max_num_seqs * settings.block_size)
    heads = mixer.num_heads // settings.tensor_parallel_size
    size = element_bytes(settings.dtype)
    return tokens * (heads * (mixer.qk_nope_head_size + mixer.v_head_size) + mixer.cache_elements_per_token) * size
