"""What vLLM's first start of a deployment takes while torch.compile makes its kernels.

The decoder is compiled within the profile run, whose peak counts it. From 0.11.1 on Inductor runs each Triton kernel of
a graph once it is written, to choose its blocks (torch/_inductor/codegen/wrapper.py, generate_and_run_autotune_block),
on random tensors as large as its arguments.

The largest argument is the embedding's matrix: looking tokens up is a kernel with the norm behind it, and its arguments
are the rank's whole matrix and two outputs for a step of ``max_num_batched_tokens`` tokens, before and after the norm.
So it was in vLLM 0.25.1, 0.29.0 and 0.33.0 (PyTorch 2.11, 2.13, 2.14) run without a GPU (``tools/paper_gpu``).

A kernel that may run in more ways than one is timed, and a buffer as large as the L2 cache is written between its runs
(torch/_inductor/runtime/benchmarking.py, InductorBenchmarker.benchmark_gpu). Without a lookup
this decides the peak: the feed-forward's activation has its input and output, hidden states and the residual stream of
a step beside that buffer, and the norm before it five times the hidden states. A kernel that could be joined with
another of its graph is timed, too (speedup_by_combo_kernel). The lookup is one where the first layer has the gated
delta rule, which fills its output with zeros (vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py).
Where adapters correct the embedding their slots are looked up in one kernel with the matrix, so timed (Qwen3-4B with 8
slots, 0.25.1 and 0.29.0 run that way).

Models that take images or sounds look tokens up before their compiled decoder (vllm/v1/worker/gpu_model_runner.py,
_dummy_run: inputs_embeds), and have no such kernel unless they are served as language models alone. Then Gemma 4's E
models look up a second table, of inputs for every layer, which is several times as large
(vllm/model_executor/models/gemma4.py, get_per_layer_inputs, read in 0.30; Gemma 3n's is looked up before, in
gemma3n_mm.py). A Gemma 4 E2B with that table in 4 bits had 1.07 GiB less at its
first start on a T4 (xbill9/gemma4-dev): 1.06 by this account, the table with its scales.

A later start with the same settings finds its kernels in the compile cache (~/.cache/vllm, which a container loses) and
takes nothing of this. Issue 54383 of vllm-project/vllm measured both for Qwen3-32B-AWQ on two RTX 4090: 0.47 GiB less
for each GPU's cache at the first start (0.47 by this account), and issue 54122 tens of GiB for a model with large
lookup tables.

From 0.29.0 on a CUDA kernel of vLLM's own looks tokens up where the matrix is divided over ranks and not quantized
(csrc: vocab_parallel_embedding), and Inductor has no kernel with the matrix.

In 0.27.0 to 0.30 a first start may lose the matrix again (``estimate.vllm.leftovers``).
"""

from __future__ import annotations

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import Mixer, ModelSpec, StateMixer
from kvplan.estimate.adapters import corrects_embedding
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.vllm.modalities import taken_modalities
from kvplan.estimate.vllm.trials import inner_width, is_qwens
from kvplan.estimate.weights import format_of, quantized_bytes
from kvplan.settings import FilledSettings

_VOCAB_PADDING = 64


def compiling_bytes(spec: ModelSpec, gpu: GpuProfile, settings: FilledSettings, release: VllmRelease) -> int:
    """Return the peak of compiling on a rank that has the embedding; 0 where nothing of its size is run."""
    matrix, output = lookup_bytes(spec, gpu, settings, release)
    if output and settings.lora_slots is not None and corrects_embedding(spec):
        slots = settings.lora_slots.number * settings.lora_slots.rank * spec.vocab_size * element_bytes(settings.dtype)
        return matrix + slots + output + gpu.l2_cache_bytes
    if matrix and settings.tensor_parallel_size > 1:  # the sum over ranks parts the lookup from the norm
        return matrix + output + gpu.l2_cache_bytes
    is_timed = matrix and release.flushes_lookup and first_delta_rule(spec) is not None
    return matrix + 2 * output + (gpu.l2_cache_bytes if is_timed else 0)


def timed_kernel_bytes(
    spec: ModelSpec, inside_width: int, gpu: GpuProfile, settings: FilledSettings, release: VllmRelease
) -> int:
    """Return the peak of timing the decoder's kernels; 0 where nothing is compiled, or the L2 cache is not known.

    inside_width: the elements of a token before and behind the widest activation of a feed-forward on the rank.
    """
    if not gpu.l2_cache_bytes or not compiles(gpu, settings, release):
        return 0
    width = max(5 * spec.hidden_size, 2 * spec.hidden_size + inside_width)
    return settings.max_num_batched_tokens * width * element_bytes(settings.dtype) + gpu.l2_cache_bytes


def first_delta_rule(spec: ModelSpec) -> StateMixer | None:
    """Return the gated delta rule of the first layer, if it has one."""
    first = first_mixer(spec)
    if isinstance(first, StateMixer) and first.kind == "gated_delta_net" and is_qwens(spec):
        return first
    return None


def first_mixer(spec: ModelSpec) -> Mixer | None:
    """Return what the first layer mixes tokens with; None where it only has a feed-forward (Nemotron-H's patterns)."""
    return next(iter(spec.layers[0].mixers), None)


def zeroed_bytes(mixer: StateMixer, settings: FilledSettings) -> int:
    """Return bytes of the output of a gated delta rule for a step, which is filled with zeros."""
    width = inner_width(mixer) // settings.tensor_parallel_size
    return settings.max_num_batched_tokens * width * element_bytes(settings.dtype)


def lookup_bytes(spec: ModelSpec, gpu: GpuProfile, settings: FilledSettings, release: VllmRelease) -> tuple[int, int]:
    """Return bytes of the matrix's copy and of each of the lookup's two outputs; 0 and 0 where none is run."""
    if not _runs_lookup(spec, gpu, settings, release):
        return 0, 0
    is_own = settings.tensor_parallel_size > 1 and gpu.vendor == "nvidia" and release.looks_up_parts_itself
    matrix, width = _largest_lookup(spec, settings, plain=not is_own)
    return matrix, settings.max_num_batched_tokens * width * element_bytes(settings.dtype)


def _largest_lookup(spec: ModelSpec, settings: FilledSettings, *, plain: bool) -> tuple[int, int]:
    """(bytes on a rank, width of a row) of the largest table that tokens are looked up in; ``plain``: also in 16 bits.

    (0, 0) where there is none.
    """
    tp, size = settings.tensor_parallel_size, element_bytes(settings.dtype)
    rows = -(-spec.vocab_size // _VOCAB_PADDING) * _VOCAB_PADDING // tp
    found = [(rows * spec.hidden_size * size, spec.hidden_size)] if plain else [(0, 0)]
    looks_twice = spec.architecture.startswith("Gemma4")
    for table in (each for each in spec.tensors if looks_twice and each.name == "embed_tokens_per_layer"):
        stored = format_of(spec.quantization, table, None)
        if stored is None and not plain:
            continue
        whole = table.num_elements * size if stored is None else quantized_bytes(table.shape, stored)
        found.append((whole // tp, table.shape[1]))
    return max(found)


def _runs_lookup(spec: ModelSpec, gpu: GpuProfile, settings: FilledSettings, release: VllmRelease) -> bool:
    """Whether the lookup of tokens is one of the kernels that are run; vLLM's own kernel reads GGUF's matrix."""
    if not compiles(gpu, settings, release):
        return False
    if spec.quantization is not None and spec.quantization.method == "gguf":
        return False
    return not sees(spec, settings)


def sees(spec: ModelSpec, settings: FilledSettings) -> bool:
    """Whether images or sounds are served, so that tokens are looked up before the compiled decoder.

    Some configs do not say it where others do (Qwen3-Omni, copies of Llama 4), but have a tower.
    """
    takes_items = taken_modalities(spec) or any(extra.kind in ("vision", "audio") for extra in spec.extras)
    return bool(takes_items) and not settings.language_model_only


def compiles(gpu: GpuProfile, settings: FilledSettings, release: VllmRelease) -> bool:
    """Whether a first start times kernels within its profile run."""
    return release.times_compiled_kernels and not (settings.enforce_eager or settings.warm_start or gpu.is_cpu)
