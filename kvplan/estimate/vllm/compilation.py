"""What vLLM's first start of a deployment takes while torch.compile makes its kernels.

The decoder is compiled within the profile run, whose peak counts it. From 0.11.1 on Inductor runs each Triton kernel of
a graph once it is written, to choose its blocks (torch/_inductor/codegen/wrapper.py, generate_and_run_autotune_block),
on random tensors as large as its arguments.

The largest argument is the embedding's matrix: looking tokens up is a kernel with the norm behind it, and its arguments
are the rank's whole matrix and two outputs for a step of ``max_num_batched_tokens`` tokens, before and after the norm.
So it was in vLLM 0.25.1, 0.29.0 and 0.33.0 (PyTorch 2.11, 2.13, 2.14) run without a GPU (``tools/paper_gpu``); kernels
that are timed with a buffer as large as the L2 cache between runs (speedup_by_combo_kernel) come before it and are
smaller, but where adapters correct the embedding: their slots are looked up in one kernel with the matrix, so timed
(Qwen3-4B with 8 slots, 0.25.1 and 0.29.0 run that way).

Models that take images or sounds look tokens up before their compiled decoder (vllm/v1/worker/gpu_model_runner.py,
_dummy_run: inputs_embeds), and have no such kernel unless they are served as language models alone. Then Gemma 4's E
models look up a second table, of inputs for every layer, which is several times as large
(vllm/model_executor/models/gemma4.py, get_per_layer_inputs, read in 0.30; Gemma 3n's is looked up before, in
gemma3n_mm.py). A Gemma 4 E2B with that table in 4 bits had 1.07 GiB less at its
first start on a T4 (xbill9/gemma4-dev): 1.06 by this account, the table with its scales.

A later start with the same settings finds its kernels in the compile cache (~/.cache/vllm, which a container loses) and
takes nothing of this. Issue 54383 of vllm-project/vllm measured both for Qwen3-32B-AWQ on two RTX 4090: 0.47 GiB less
for each GPU's cache at the first start (0.43 by this account), and issue 54122 tens of GiB for a model with large
lookup tables.

In 0.27.0 to 0.30 a first start may lose the matrix again (``estimate.vllm.leftovers``).
"""

from __future__ import annotations

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.adapters import corrects_embedding
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.vllm.modalities import taken_modalities
from kvplan.estimate.weights import format_of, quantized_bytes
from kvplan.settings import FilledSettings

_VOCAB_PADDING = 64


def compiling_bytes(spec: ModelSpec, gpu: GpuProfile, settings: FilledSettings, release: VllmRelease) -> int:
    """Return the peak of compiling on a rank that has the embedding; 0 where nothing of its size is run."""
    matrix, output = lookup_bytes(spec, gpu, settings, release)
    if matrix and settings.lora_slots is not None and corrects_embedding(spec):
        slots = settings.lora_slots.number * settings.lora_slots.rank * spec.vocab_size * element_bytes(settings.dtype)
        return matrix + slots + output + gpu.l2_cache_bytes
    return matrix + 2 * output


def lookup_bytes(spec: ModelSpec, gpu: GpuProfile, settings: FilledSettings, release: VllmRelease) -> tuple[int, int]:
    """Return bytes of the matrix's copy and of each of the lookup's two outputs; 0 and 0 where none is run."""
    if not _runs_lookup(spec, gpu, settings, release):
        return 0, 0
    matrix, width = _largest_lookup(spec, settings)
    return matrix, settings.max_num_batched_tokens * width * element_bytes(settings.dtype)


def _largest_lookup(spec: ModelSpec, settings: FilledSettings) -> tuple[int, int]:
    """(bytes on a rank, width of a row) of the largest table that tokens are looked up in."""
    tp, size = settings.tensor_parallel_size, element_bytes(settings.dtype)
    rows = -(-spec.vocab_size // _VOCAB_PADDING) * _VOCAB_PADDING // tp
    found = [(rows * spec.hidden_size * size, spec.hidden_size)]
    looks_twice = spec.architecture.startswith("Gemma4")
    for table in (each for each in spec.tensors if looks_twice and each.name == "embed_tokens_per_layer"):
        stored = format_of(spec.quantization, table, None)
        whole = table.num_elements * size if stored is None else quantized_bytes(table.shape, stored)
        found.append((whole // tp, table.shape[1]))
    return max(found)


def _runs_lookup(spec: ModelSpec, gpu: GpuProfile, settings: FilledSettings, release: VllmRelease) -> bool:
    """Whether the lookup of tokens is one of the kernels that are run; vLLM's own kernel reads GGUF's matrix."""
    if settings.enforce_eager or settings.warm_start or gpu.is_cpu or not release.times_compiled_kernels:
        return False
    if spec.quantization is not None and spec.quantization.method == "gguf":
        return False
    # Some configs do not say it where others do (Qwen3-Omni, copies of Llama 4), but have a tower.
    takes_items = taken_modalities(spec) or any(extra.kind in ("vision", "audio") for extra in spec.extras)
    return settings.language_model_only or not takes_items
