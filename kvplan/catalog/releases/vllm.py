"""vLLM's releases: what each does by default, as far as that decides memory or speed.

``profiles/releases/vllm.json`` says what a fact means, where it stands in vLLM's source and where it was read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from kvplan.catalog.releases.facts import Number, ReleaseTable, load_releases, release_number, release_text
from kvplan.errors import UsageError

SamplerKind = Literal["sort", "triton"]
HybridPolicy = Literal["full", "min_layers", "balanced"]
SecondRunnerPolicy = Literal["none", "listed", "dense", "all"]
SecondSamplerKind = Literal["copy", "logits", "processed"]
LatentKernel = Literal["triton", "cutlass", "flashinfer"]
CompressedLayout = Literal["none", "tuples", "slots", "packed", "kinds"]
HopperMxfp4 = Literal["marlin", "older_triton_kernels", "triton_kernels"]
ExpertKernel = Literal["triton", "flashinfer_trtllm"]


@dataclass(frozen=True, slots=True, eq=False)  # one object for each release
class VllmRelease:
    """One release of vLLM: a field for each fact of the table. No field has a default: the table has every value."""

    version: Number
    v1: bool
    # what it takes of a GPU, and what it does where nothing is said
    gpu_memory_utilization: float
    large_gpu_defaults: bool
    a100_is_large: bool
    huge_gpu_defaults: bool
    steps_hold_largest_item: bool
    told_unified_memory: bool
    first_engine_chunk_tokens: int | None
    block_size_multiple: int
    cpu_block_multiple: int
    # what is in the budget beside the weights
    counts_non_torch: bool
    counts_other_processes: bool
    checks_free_memory: bool
    non_torch_gib: float
    non_torch_gib_on_hopper: float
    parallel_gib: float
    nvlink_parallel_gib: float | None
    neighbour_gib: float
    graphs_in_budget: bool
    peak_activation_has_graphs: bool
    huge_graph_sizes: bool
    counts_runner_state: bool
    counts_split_pieces: bool
    blas_before_budget: bool
    splits_large_weights: bool
    # the profile run
    sampler: SamplerKind
    samples_with_flashinfer: bool
    requires_flashinfer: bool
    warms_native_sampler: bool
    flushes_lookup: bool
    tries_delta_rule: bool
    tries_mamba2: bool
    flashinfer_delta_rule: str
    triton: str
    warms_tensor_descriptors: bool
    times_compiled_kernels: bool
    looks_up_parts_itself: bool
    samples_drafts_first: bool
    float_vision_rotary: bool
    profiles_long_videos: bool
    encodes_frames_in_batches: bool
    reads_video_processor: bool
    fuses_pair_bias: bool
    masks_image_pairs: bool
    norms_out_of_place: bool
    keeps_reduced_tensors: bool
    awq_keeps_partial_sums: bool
    keeps_moe_workspace: bool
    marlin_before_triton: bool
    grows_attention_workspace: bool
    reserves_latent_splits: bool
    long_index_prompts: int
    pads_wide_experts: bool
    keeps_swizzled_scales: bool
    swizzled_group_step: int
    expert_chunk_tokens: int | None
    projects_shared_keys: bool
    qwen3_positions: int
    heads_as_embeddings: tuple[str, ...]
    # the second model runner
    second_runner: SecondRunnerPolicy
    second_runner_models: tuple[str, ...]
    second_runner_quantized: bool
    second_runner_drafters: tuple[str, ...]
    removed_drafters: tuple[str, ...]
    second_runner_limits_length: bool
    second_runner_eagle3_stages: bool
    second_sampler: SecondSamplerKind
    second_runner_graphs: bool
    second_runner_encoder: bool
    # how the KV cache is laid out
    divides_latent_contexts: bool
    divides_contexts: bool
    hybrid: HybridPolicy
    pads_odd_pages: bool
    packs_odd_pages: bool
    compressed_layout: CompressedLayout
    prints_compressed_bytes: bool
    prints_concurrency_tokens: bool
    reserves_null_block: bool
    in_flight_batches: int
    caches_hybrid_prefixes: bool
    pins_shared_prefixes: bool
    keeps_resumed_places_only: bool
    keeps_every_state: tuple[str, ...]
    checkpointed_states: tuple[str, ...]
    needs_block_per_sequence: bool
    flashinfer_drafts_on: tuple[int, ...]
    keeps_grouped_keys: bool
    grouped_keys_in_fp8: bool
    latent_cache: bool
    latent_state_alignment: int
    latent_blocks_by_kernel: bool
    latent_kernel_on_10: LatentKernel
    latent_flashinfer_heads: tuple[int, ...]
    small_sparse_blocks_on_amd: bool
    # what the KV cache is in
    stated_cache: tuple[str, ...]
    stated_cache_wins: bool
    scaled_cache: bool
    keeps_float_cache: bool
    packs_sparse_by_default: bool
    packs_sparse_on_12: bool
    plain_sparse_on_9: bool
    sparse_flashinfer_heads: tuple[int, ...]
    sparse_flashinfer_most_heads: int | None
    sparse_cache_on_10: Mapping[str, str]
    # what it runs on which GPU
    falls_back_to_float16: bool
    fp8_on_turing: bool
    oldest_capability: tuple[int, ...]
    sparse_latents_on: tuple[int, ...]
    # speed
    schedules_ahead: bool
    parses_templates: bool
    server_per_group: bool
    async_outputs: bool
    own_server_process: bool
    captures_whole_steps: bool
    narrow_tiles: bool
    better_expert_tiles: bool
    blackwell_experts: ExpertKernel
    block_products_share: float
    latent_layer_seconds: float
    latent_layers_measured: bool
    routing_seconds: Mapping[str, float]
    norm_seconds: Mapping[str, float]
    norm_all_reduces: Mapping[str, int]
    hopper_mxfp4: HopperMxfp4
    forked_on_cpu: bool

    @property
    def text(self) -> str:
        """The release as it is printed."""
        return release_text(self.version)

    def is_within(self, last: str | None) -> bool:
        """Return whether it is no newer than the release ``last``; True where that is None."""
        return last is None or self.version <= _version_number(last)

    def is_before(self, first: str) -> bool:
        """Return whether it is older than the release ``first``."""
        return self.version < _version_number(first)


@cache
def _table() -> ReleaseTable[VllmRelease]:
    return load_releases("vllm", VllmRelease)


def latest_vllm() -> str:
    """Return the newest release whose sources were read."""
    return release_text(_table().newest)


def vllm_release(version: str) -> VllmRelease:
    """Return the facts of a version as printed: ``0.19.0``, ``v0.10.2``, ``0.19.2rc1.dev206+g9599``, ``latest``.

    Development builds without a release number (``0.1.dev18496+...``) are taken as the latest, and so are versions
    newer than that (``version_note`` says so). UsageError otherwise.
    """
    number = _version_number(version)
    return _table().at(None if _is_unknown(number) else number)


def last_release_with_kernels(capability: tuple[int, int]) -> str | None:
    """Return the last minor release whose wheels hold kernels for ``capability``: ``0.19``; None where none was read.

    The newest release, where that is one.
    """
    table = _table()
    floors = next(fact for fact in table.facts if fact.name == "oldest_capability").values
    last: str | None = None
    for position, (_, oldest) in enumerate(floors):
        if tuple(oldest) <= capability:
            is_newest = position + 1 == len(floors)
            last = release_text(table.newest) if is_newest else _release_before(floors[position + 1][0])
    return last


def _release_before(number: Number) -> str:
    """``0.19`` for 0.20.0: patches of it may have followed."""
    major, minor, _ = number
    return f"{major}.{minor - 1}"


def version_note(version: str) -> str | None:
    """Return what a user has to know of a version whose own facts are not known here; None for one whose are."""
    number = _version_number(version)
    if _is_unknown(number):
        return f"vLLM {version} is newer than the newest release known here, and sized as {latest_vllm()}."
    if number < _table().oldest:
        return (
            f"vLLM {version} is older than every release whose logs were compared (0.2.5 and later): unproven figures."
        )
    return None


@cache
def _version_number(version: str) -> Number:
    text = version.strip().lower()
    if text in ("", "latest") or text.startswith("0.1.dev"):
        return _table().newest
    number = release_number(text)
    if number is None:
        raise UsageError(f"'{version}' is not a version of vLLM.", hint="write it like vllm@0.19 or vllm@latest")
    return number


def _is_unknown(number: Number) -> bool:
    return number[:2] > _table().newest[:2]


_OWN_LABEL: Final = re.compile(r"(g[0-9a-f]{7,}|d\d{8}|precompiled|empty|(cu|rocm|cpu|xpu|torch)\d*)$")


def is_modified_build(version: str) -> bool:
    """Return whether ``version`` names a build that is neither a release nor a commit of vllm-project/vllm.

    After the ``+`` of its versions vLLM itself puts the commit (``g0eec856cc``), the date of an edited tree and the
    platform (``cu129``). Anything else marks a build of changed sources.
    """
    _, _, local = version.partition("+")
    return any(not _OWN_LABEL.match(part) for part in local.split(".") if part)
