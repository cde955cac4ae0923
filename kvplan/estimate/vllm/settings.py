"""The settings as vLLM resolves them on a given GPU and release: what the user said, and its defaults for the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.catalog.devices.device_support import compute_capability
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import ModelSpec, StateMixer
from kvplan.catalog.vllm_refusals import drafter_refusal, vllm_refusal
from kvplan.caveats import Caveat
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.cache_entries import encoder_tokens_of
from kvplan.estimate.dtypes import serving_dtype
from kvplan.estimate.vllm.block_sizes import default_block_size
from kvplan.estimate.vllm.budget import UNIFIED_EXTRA_GIB, check_free, others_bytes, shared_utilization
from kvplan.estimate.vllm.cache_dtypes import kv_cache_dtype
from kvplan.estimate.vllm.modalities import NO_LIMIT, modality_limits
from kvplan.estimate.vllm.runners import in_second_runner
from kvplan.estimate.vllm.vision import has_uncounted_encoder, whole_item_tokens
from kvplan.settings import FilledSettings, ServingSettings
from kvplan.units import GIB, format_bytes

_LARGE_GPU_BYTES = 70 * GIB
_HUGE_GPU_BYTES = 160 * GIB
_CPU_STEP_TOKENS, _CPU_ROWS = 2048, 128
"""Of a server on one CPU; twice as many in Python (read in 0.32.0 and 0.33.0)."""
_GB10 = (12, 1)
_DELTA_KERNELS = (9, 10, 12)
_FLASH_KDA_HEAD = 128
_CHUNK_OF_MAMBA_1 = 2048
_V0_CHUNKS_ABOVE_TOKENS = 32768
_V0_DEFAULT_CONTEXT_TOKENS = 2048


_UNIFIED_NOTE = (
    f"{UNIFIED_EXTRA_GIB:g} GiB of the overhead are what vLLM's processes take of the memory that GPU and host share; "
    "page cache in use, compilers and other programs count as well, so that start-ups differ by several GiB."
)

_UNCOUNTED_NOTE = Caveat(
    "What the encoder takes while vLLM measures its peak is not counted for this model: where that is more than the "
    "decoder takes, the KV cache is smaller than predicted (--language-model-only leaves the encoder out)."
)


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """The settings vLLM runs with, what follows from them, and a sentence for each default that was taken.

    ``states_per_request``: recurrent states that a request holds in each layer of state; ``subtract_graphs``: the
    estimate of the CUDA graphs is part of the budget; ``second_runner``: vLLM's second model runner runs the model.
    """

    serving: FilledSettings
    states_per_request: int
    subtract_graphs: bool
    samples_with_flashinfer: bool
    second_runner: bool = False
    state_chunk: int | None = None
    """Where the state behind every block is kept for cached prefixes: blocks have whole chunks of so many tokens."""
    notes: tuple[str, ...] = ()


def runs_flashinfer(gpu: GpuProfile) -> bool:
    """Whether vLLM runs FlashInfer there (vllm/v1/attention/backends/flashinfer.py, supports_compute_capability)."""
    return (8, 0) <= compute_capability(gpu) <= (12, 1)


def resolve_settings(spec: ModelSpec, gpu: GpuProfile, asked: ServingSettings, release: VllmRelease) -> VllmSettings:
    """The settings vLLM would run with. UsageError for one out of range or that the release refuses.

    KvplanError without a maximum length.
    """
    asked.check()
    notes: list[str] = []
    max_model_len = asked.max_model_len or spec.longest_context
    if max_model_len is None:
        raise KvplanError(
            f"The config of {spec.served_id} gives no maximum length.", hint="give one: --max-model-len 4096"
        )
    if asked.max_model_len is None:
        notes.append(f"max_model_len {max_model_len}: the model's longest.")
    total = asked.device_memory_bytes or gpu.memory_bytes
    utilization = asked.gpu_memory_utilization
    if utilization is None:
        utilization, note = _default_utilization(total, asked, release)
        notes.append(note)
    tokens, rows = _batch_limits(spec, gpu, total, asked, release, max_model_len, notes)
    dtype = serving_dtype(spec.dtype, asked.dtype)
    refusal = vllm_refusal(replace(asked, max_num_batched_tokens=tokens, max_num_seqs=rows), release, dtype)
    if refusal is None and spec.drafter is not None:
        refusal = drafter_refusal(spec.drafter.method, release)
    if refusal is not None:
        raise UsageError(refusal.sentence, hint=refusal.hint)
    kv_dtype, own = kv_cache_dtype(spec, gpu, asked, release, dtype)
    notes += [own] if own else []
    if gpu.unified_memory and not gpu.is_cpu:
        notes.append(_UNIFIED_NOTE)
    chunk = _state_chunk(spec, asked, release)
    if chunk is not None:
        notes.append(
            f"vLLM {release.text} keeps the state behind every block of this model where it caches prefixes: "
            "--no-enable-prefix-caching leaves room for more tokens."
        )
    serving = FilledSettings.of(
        asked,
        gpu_memory_utilization=utilization,
        max_model_len=max_model_len,
        max_num_batched_tokens=tokens,
        max_num_seqs=rows,
        block_size=asked.block_size or default_block_size(spec, gpu, release, kv_dtype),
        device_memory_bytes=total,
        dtype=dtype,
        kv_cache_dtype=kv_dtype,
        encoder_tokens=encoder_tokens_of(spec, asked.encoder_tokens),
    )
    check_free(serving, release)
    # On a CPU the budget counts what the process holds, whichever runner it is, and nothing is captured.
    second_runner = not gpu.is_cpu and in_second_runner(spec, asked, release)
    notes += _draft_limit(spec, release, max_model_len) if second_runner else []
    if has_uncounted_encoder(spec, serving, release, second_runner=second_runner):
        notes.append(_UNCOUNTED_NOTE)
    return VllmSettings(
        serving=serving,
        states_per_request=_states_per_request(spec, gpu, asked, release),
        state_chunk=chunk,
        subtract_graphs=not gpu.is_cpu and _subtracts_graphs(asked, release, second_runner),
        samples_with_flashinfer=_samples_with_flashinfer(gpu, asked, release),
        second_runner=second_runner,
        notes=tuple(notes),
    )


def _draft_limit(spec: ModelSpec, release: VllmRelease, max_model_len: int) -> list[str]:
    """What is to be said of a draft model that takes shorter sequences than were asked for.

    Heads that draft are taken to have plain rotary positions, which vLLM makes as long as the model's.
    """
    drafter = spec.drafter
    if not release.second_runner_limits_length or drafter is None or drafter.method != "draft_model":
        return []
    longest = None if drafter.model is None else drafter.model.longest_context
    if longest is None or longest >= max_model_len:
        return []
    return [
        Caveat(
            f"vLLM {release.text} lowers max_model_len from {max_model_len:,} to {longest:,}, the longest of the draft "
            "model: longer sequences are refused."
        )
    ]


def _default_utilization(total: int, asked: ServingSettings, release: VllmRelease) -> tuple[float, str]:
    """The release's default, or as much of what others leave; with the sentence that says why."""
    default, others = release.gpu_memory_utilization, others_bytes(asked)
    if not 0 < others < total:
        return default, f"gpu_memory_utilization {default}: vLLM {release.text}'s default."
    share = shared_utilization(total, others, default, release)
    counted = f" + {others / GIB:.2f}" if release.counts_other_processes else ""
    rule = "what others hold counts as its own" if counted else "as much must be free when it starts"
    return share, Caveat(
        f"--reserve {format_bytes(others)}: gpu_memory_utilization {share:g} = ({default} x ({total / GIB:.2f} - "
        f"{others / GIB:.2f}){counted}) / {total / GIB:.2f} of this GPU, as vLLM {release.text}'s share is of the "
        f"whole memory and {rule}. Speeds are of a GPU that nobody else computes on."
    )


def caches_prefixes(spec: ModelSpec, asked: ServingSettings, release: VllmRelease) -> bool:
    """Whether prefixes are cached: by default in the V1 engine, of models with states in later releases of it.

    Models of states alone do not by themselves (vllm/config/model.py, is_prefix_caching_supported).
    """
    if asked.enable_prefix_caching is None:
        if not spec.states:
            return release.v1
        return release.caches_hybrid_prefixes and not spec.has_only_states
    return asked.enable_prefix_caching


def _state_chunk(spec: ModelSpec, asked: ServingSettings, release: VllmRelease) -> int | None:
    """Tokens of a chunk of Mamba's kernels where the state behind every block is kept, else None.

    As vllm/config/model.py, get_mamba_chunk_size, reads it; Mamba 1 has none, and is taken for 2048.
    """
    if spec.architecture not in release.keeps_every_state or not caches_prefixes(spec, asked, release):
        return None
    named = (spec.raw_config.get(key) for key in ("mamba_chunk_size", "chunk_size"))
    return next((value for value in named if isinstance(value, int) and value > 0), _CHUNK_OF_MAMBA_1)


def _states_per_request(spec: ModelSpec, gpu: GpuProfile, asked: ServingSettings, release: VllmRelease) -> int:
    if not caches_prefixes(spec, asked, release) or _state_chunk(spec, asked, release) is not None:
        return 1 + asked.num_speculative_tokens
    return 2 + checkpoint_blocks(spec, gpu, release) + asked.num_speculative_tokens


def checkpoint_blocks(spec: ModelSpec, gpu: GpuProfile, release: VllmRelease) -> int:
    """1 where every state can be kept in the middle of a prompt.

    Of a gated delta rule where FlashInfer computes it: on Hopper, and on Blackwell with CUDA 13, taken for given. Of
    Kimi Delta Attention where FlashKDA does: on the same GPUs, heads of 128 whose decays are bounded.
    """
    states = spec.states
    kinds = {mixer.kind for mixer in states}
    if kinds & {"gated_delta_net", "kimi_delta"} and compute_capability(gpu)[0] not in _DELTA_KERNELS:
        return 0
    if any(mixer.kind == "kimi_delta" and not _in_flash_kda(mixer) for mixer in states):
        return 0
    return int(bool(kinds) and kinds <= set(release.checkpointed_states))


def _in_flash_kda(mixer: StateMixer) -> bool:
    return mixer.bounded and mixer.recurrent_shape[-1] == _FLASH_KDA_HEAD


def _subtracts_graphs(asked: ServingSettings, release: VllmRelease, second_runner: bool) -> bool:
    if second_runner and not release.second_runner_graphs:
        return False
    subtracts = release.graphs_in_budget if asked.estimate_cudagraphs is None else asked.estimate_cudagraphs
    return subtracts and not asked.enforce_eager


def _samples_with_flashinfer(gpu: GpuProfile, asked: ServingSettings, release: VllmRelease) -> bool:
    is_there = asked.has_flashinfer or release.requires_flashinfer
    return is_there and release.samples_with_flashinfer and runs_flashinfer(gpu)


def _batch_limits(
    spec: ModelSpec,
    gpu: GpuProfile,
    total_bytes: int,
    asked: ServingSettings,
    release: VllmRelease,
    max_model_len: int,
    notes: list[str],
) -> tuple[int, int]:
    default_tokens, default_rows = batch_defaults(spec, gpu, total_bytes, asked, release, max_model_len)
    rows = asked.max_num_seqs or default_rows
    where = "on a CPU" if gpu.is_cpu else "on this GPU"
    tokens = asked.max_num_batched_tokens
    if tokens is None:
        tokens = min(default_tokens, rows * max_model_len) if release.v1 else default_tokens
        notes.append(f"max_num_batched_tokens {tokens}: the default {where}.")
    elif tokens < (least := whole_item_tokens(spec, asked, release)) and _takes_videos(asked):
        # vllm/v1/core/encoder_cache_manager.py, compute_mm_encoder_budget
        raise UsageError(
            f"vLLM {release.text} does not start this model with max_num_batched_tokens {tokens:,}: a video of "
            f"{least:,} tokens has to fit into one step.",
            hint=f"use --max-num-batched-tokens {least} or more, or --language-model-only",
        )
    if asked.max_num_seqs is None:
        rows = min(rows, tokens)
        notes.append(f"max_num_seqs {rows}: the default {where}.")
    return tokens, rows


def _takes_videos(asked: ServingSettings) -> bool:
    return modality_limits(asked.limit_mm_per_prompt).get("video", NO_LIMIT) > 0


def batch_defaults(
    spec: ModelSpec,
    gpu: GpuProfile,
    total_bytes: int,
    asked: ServingSettings,
    release: VllmRelease,
    max_model_len: int,
) -> tuple[int, int]:
    """(tokens, sequences) per step where the user gives none (vllm/engine/arg_utils.py).

    Steps hold the largest image or video of a model that reads each in one (_get_min_mm_batched_tokens).
    """
    tokens, rows = device_batch_defaults(gpu, total_bytes, asked.usage, release, max_model_len)
    return max(tokens, whole_item_tokens(spec, asked, release)), rows


def device_batch_defaults(
    gpu: GpuProfile, total_bytes: int, usage: str, release: VllmRelease, max_model_len: int
) -> tuple[int, int]:
    """The same by the device alone (get_batch_defaults).

    The first engine prefilled whole prompts, so one step had to hold the longest of them, unless prompts were so long
    that chunking was on by itself.
    """
    if not release.v1:
        chunk = release.first_engine_chunk_tokens
        if chunk is not None and max_model_len > _V0_CHUNKS_ABOVE_TOKENS:
            return chunk, 256
        return max(max_model_len, _V0_DEFAULT_CONTEXT_TOKENS), 256
    if gpu.is_cpu:
        return (_CPU_STEP_TOKENS, _CPU_ROWS) if usage == "server" else (2 * _CPU_STEP_TOKENS, 2 * _CPU_ROWS)
    # The driver does not report the memory of a GPU that shares its host's, so vLLM treats such a GPU as a small one.
    # Newer releases ask CUDA for it, and make an exception of the GB10 (12.1).
    is_small_gpu = compute_capability(gpu) in ((0, 0), _GB10)
    is_told = not gpu.unified_memory or (release.told_unified_memory and not is_small_gpu)
    # In a container with a MIG slice NVML refuses to tell the memory of its GPU, and vLLM takes it for a small one
    # (github.com/vllm-project/vllm/issues/55381).
    is_told = is_told and gpu.part_of is None
    is_meant = release.large_gpu_defaults and (release.a100_is_large or "a100" not in gpu.id)
    is_large = is_meant and is_told and total_bytes >= _LARGE_GPU_BYTES
    if release.huge_gpu_defaults and is_told and total_bytes >= _HUGE_GPU_BYTES:
        return 16384, 1024
    if is_large:
        return (8192 if usage == "server" else 16384), 1024
    return (2048 if usage == "server" else 8192), 256
