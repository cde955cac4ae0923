"""Engine releases and their defaults as data: what changed between versions of vLLM that decides memory.

Facts were read in the released sources (paths are vLLM's): vllm/config/cache.py (utilization), vllm/engine/arg_utils.py
(batch defaults), vllm/v1/core/kv_cache_utils.py (groups, printed tokens), vllm/v1/sample/ops (samplers),
vllm/v1/worker/{gpu_worker,gpu_model_runner,workspace}.py (profile run), vllm/envs.py (switches).
Versions between those that were read take the older one's facts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from kvplan.errors import UsageError
from kvplan.settings import ServingSettings

KVPLAN_DEFAULTS = ServingSettings(
    gpu_memory_utilization=0.9, max_num_batched_tokens=2048, max_num_seqs=256, block_size=16
)
"""What kvplan's own engine does where nothing is said (tests/agreement compares it with the engine's own record)."""

ENGINES = ("kvplan", "vllm")


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """``--engine``: one of ENGINES; ``version`` is vLLM's.

    Published results have other engines too, by their names here (sglang, trtllm), and a ``backend`` where one is named
    that is not the release's default: pytorch or tensorrt of TensorRT-LLM, in-process of vLLM without a server.
    """

    name: str
    version: str = "latest"
    backend: str = ""

    @classmethod
    def parse(cls, text: str, known: Sequence[str] = ENGINES) -> EngineChoice:
        """``vllm``, ``vllm@0.19`` or ``kvplan``, if ``known`` has that engine. UsageError otherwise."""
        name, _, version = text.strip().casefold().partition("@")
        if name not in known or (version and name == "kvplan"):
            others = "kvplan, " if "kvplan" in known else ""
            hint = f"{others}vllm, or vllm@VERSION such as vllm@0.19; `kvplan sweep --help` lists engines to measure"
            raise UsageError(f"Unknown --engine '{text}'.", hint=hint)
        return cls(name, version or "latest")


SamplerKind = Literal["sort", "triton"]
HybridPolicy = Literal["full", "min_layers", "balanced"]
SecondRunnerPolicy = Literal["none", "listed", "dense", "all"]
SecondSamplerKind = Literal["copy", "logits", "processed"]

_OLDEST_VLLM = (0, 2, 0)
LATEST: Final = (0, 33, 0)
LATEST_VLLM: Final = ".".join(map(str, LATEST))
"""The newest release whose sources were read."""
_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, slots=True)
class VllmRelease:
    """What one release of vLLM does by default. ``version`` is (major, minor, patch).

    ``gpu_memory_utilization``: share of the device's total that an instance may use.
    ``sampler``: how the dummy sampler of the profile run masks top-k and top-p: "sort" sorts the whole batch of logits
    in torch, "triton" masks in place with one row of scratch per multiprocessor.
    ``hybrid``: how layers of several kinds share blocks: "full" keeps every layer like full attention, "min_layers"
    forms groups of the rarest kind's size, "balanced" of the commonest kind's when that is less than 1.5 times it.
    ``graphs_in_budget``: the estimate of CUDA graph memory is subtracted before the KV cache is sized (its log line
    says "default since v0.21.0").
    ``prints_concurrency_tokens``: "GPU KV cache size" is max_concurrency x max_model_len, not blocks x block size.
    ``keeps_moe_workspace``: buffers of the fused experts outlive the forward pass and add to the sampler's peak.
    ``pads_odd_pages``, ``packs_odd_pages``: what becomes of layers whose pages cannot be made equally large.
    ``caches_hybrid_prefixes``: prefix caching is on for models with states, which then keep two states per request.
    ``samples_with_flashinfer``: samples with FlashInfer wherever it is installed, as it is in the official container;
    ``requires_flashinfer``: it always is (vllm/envs.py: VLLM_USE_FLASHINFER_SAMPLER is on from 0.21).
    ``keeps_reduced_tensors``: every tensor that was all-reduced stays allocated until the profile run ends
    (vllm-project/vllm issue 2150, ended by pull request 2151 after 0.2.6); before 0.2.5 the budget did not see it.
    ``awq_keeps_partial_sums``: see kvplan.estimate.vllm.first_awq.
    ``grows_attention_workspace``: FlashInfer's workspace grows with the batch instead of staying at 394 MiB.
    ``pads_wide_experts``: FlashInfer's MXFP4 experts are padded to 256 instead of 128 (seen in 0.25.1 and 0.27.1).
    ``block_size_multiple``: what ``--block-size`` must be a multiple of. FlashAttention, FlashInfer and Triton all take
    multiples of 16 (docs/design/attention_backends.md, "Block Sizes"; vllm/v1/attention/backends/flash_attn.py: "Block
    size must be a multiple of 16."). FlexAttention, which vLLM tries last, takes any size in some releases, far slower.
    The first engine had kernels for 8, 16 and 32 (vllm/engine/arg_utils.py).
    ``stated_cache``: checkpoints whose ``quant_method`` begins so decide the KV cache's dtype by what they were
    calibrated for, where nothing is said: ModelOpt's in vllm/utils/torch_utils.py (resolve_kv_cache_dtype_string, read
    in 0.14.0, not in 0.13.0), those of compressed-tensors in vllm/attention/layer.py, later
    vllm/model_executor/layers/attention/attention.py (read in 0.15.0, not in 0.14.1; latent attention is elsewhere and
    does not ask). ``stated_cache_wins``: the latter even where another dtype is asked for (read in 0.15.0 to 0.21.0;
    0.22.0 replaces "auto" alone).
    ``reserves_null_block``: a start that asks whether one request fits leaves out the block that is never given out
    (vllm/v1/core/kv_cache_utils.py, get_kv_cache_configs, in 0.29.0, not in 0.28.0).
    ``scaled_cache``: a KV cache in int8_per_token_head, read by Triton's attention alone
    (supported_kv_cache_dtypes in vllm/v1/attention/backends/triton_attn.py, in 0.20.0, not in 0.19.0).
    ``schedules_ahead``: asynchronous scheduling is on where nothing is said (pull request 27614 of vllm-project/vllm).
    ``parses_templates``: the server parses the chat template anew for each chat, to find the format of its contents
    (0.6.5 to 0.9.1) or the arguments that it takes (0.11.0 alone: vllm/entrypoints/chat_utils.py of these releases).
    ``server_per_group``: as many API servers as data-parallel groups (vllm/entrypoints/cli/serve.py, read in 0.14.1 and
    0.15.0), before it one.
    ``expert_chunk_tokens``: tokens that the fused experts take at once, None: all (vllm/envs.py:
    VLLM_FUSED_MOE_CHUNK_SIZE, read in 0.7.3, 0.11.0 and 0.13.0 to 0.15.0). 0.32.0 does not chunk (pull request 34086);
    the release that ended it is taken as 0.17.0, the earliest after main still did (pull request 35839, March 2026).
    ``in_flight_batches``: batches whose tokens a sliding window still holds at admission (2 with async scheduling).
    ``second_runner``: which models run in vLLM's second model runner ("Model Runner V2") where nothing is said:
    "listed" those of ``second_runner_models``, "dense" those and all others but mixtures and models with states, "all"
    whatever it supports (vllm/config/vllm.py, use_v2_model_runner and _is_default_v2_model_runner_model, read in 0.21.0
    to 0.33.0). ``second_runner_quantized``: quantized checkpoints among the listed too (not in 0.22 and 0.23).
    ``second_runner_drafters``: drafters that it runs, ``second_runner_eagle3_stages``: EAGLE 3 also over stages; with
    others the first runner takes the model (the same file, _get_v2_model_runner_unsupported_features).
    ``second_sampler``: what its profile run does to the logits: "copy" makes one float32 copy, "logits" chooses from
    them as they are (from 0.28.0), "processed" runs top-k, top-p and penalties as well (0.33.0: a second pass with
    SamplingParams.for_sampler_warmup; vllm/v1/worker/gpu/model_runner.py and sample/sampler.py, 0.22.0 to 0.33.0).
    ``second_runner_graphs``: its estimate of the CUDA graphs is one; through 0.28.0 profile_cudagraph_memory returns 0.
    ``second_runner_encoder``: its profile run has an encoder stage (not in 0.26.0, in 0.27.0).
    ``counts_runner_state``: the budget sees tensors that a runner makes beside the weights and keeps: from 0.27.0 on it
    counts all that is no longer free (vllm/utils/mem_utils.py, memory_profiling, compared with 0.26.0).
    ``blas_before_budget``: cuBLAS's handles and workspace are made before the memory is first looked at
    (vllm/v1/worker/gpu_worker.py, init_device, in 0.33.0, not in 0.32.0).
    ``reserves_latent_splits``: Triton's latent attention takes its workspace in the profile run
    (vllm/v1/attention/backends/mla/triton_mla.py, reserve_workspace, in 0.33.0); before, after it.
    ``told_unified_memory``: knows the memory of a GPU that shares its host's, where the driver does not tell it
    (vllm/platforms/cuda.py, get_device_total_memory, in 0.33.0, not in 0.32.0).
    ``keeps_float_cache``: refuses a KV cache in the other of float16 and bfloat16 than the model's
    (vllm/config/vllm.py, _reject_mismatched_float_kv_cache, in 0.33.0, not in 0.32.0).
    ``huge_graph_sizes``: graphs for up to 1024 tokens on Blackwell data-centre GPUs, 512 elsewhere and before
    (vllm/config/vllm.py, _set_cudagraph_sizes, in 0.28.0, not in 0.27.0).
    ``latent_state_alignment``: blocks of latent attention beside states are multiples of so many tokens
    (vllm/platforms/interface.py, 128 in 0.27.0, not in 0.26.0). That such blocks are also multiples of every backend's
    smallest (from 0.32.0) changes nothing: on NVIDIA GPUs these divide 128 beside latents and are 16 elsewhere, but for
    FlashAttention 4 with heads of 256 (128), which is not modelled. Nor is that 0.33.0 takes multiples of 64 where
    FlashInfer's gated delta rule keeps states in the middle of a prompt.
    ``checkpointed_states``: kinds of states that have one more block for each request where prefixes are cached, for
    the state in the middle of a prompt (num_prefill_checkpoint_blocks in vllm/v1/kv_cache_interface.py, MambaSpec, and
    vllm/model_executor/layers/mamba/: mamba_mixer2.py in 0.32.0, not in 0.31.0; gdn/qwen_gdn_linear_attn.py in 0.33.0,
    not in 0.32.0, where FlashInfer computes it; models/qwen4_exp/nvidia/ple_layer.py in 0.33.0; models/kimi_k3/nvidia/
    kda.py from 0.29.0 on, where FlashKDA does).
    ``keeps_grouped_keys``: serves Qwen 4, whose index has a key for each group of tokens, and whose tables of n-grams
    are in the host's memory where nothing is said (vllm/models/qwen4_exp, vllm/config/engram.py, in 0.32.0; releases
    before it were not read).
    ``needs_block_per_sequence``: refuses more sequences than blocks where a model has states and whole decode steps
    are captured: each takes a block of its own, of all in the pool whichever group they are for ("max_num_seqs (N)
    exceeds available Mamba cache blocks (M)"; resolve_cudagraph_mode_and_sizes in vllm/config/compilation.py, in
    0.20.0, 0.23.0 and 0.33.0, from vllm/v1/worker/gpu_model_runner.py; 0.19.0 and 0.19.1 capture fewer sizes instead).
    ``captures_flashinfer_drafts``: with a drafter FlashInfer's whole steps are captured outside Blackwell data-centre
    GPUs too (get_cudagraph_support in vllm/v1/attention/backends/flashinfer.py, in 0.33.0, not in 0.23.0).
    ``qwen3_positions``: as many times the model's positions have rotary tables of Qwen3-VL and Qwen 3.5
    (mrope_positions_factor in vllm/model_executor/models/qwen3_vl.py, 1 in 0.32.0, 4 as all others in 0.31.0).
    """

    version: tuple[int, int, int]
    v1: bool
    gpu_memory_utilization: float = 0.9
    sampler: SamplerKind = "sort"
    hybrid: HybridPolicy = "full"
    graphs_in_budget: bool = False
    prints_concurrency_tokens: bool = False
    keeps_moe_workspace: bool = False
    pads_odd_pages: bool = False
    packs_odd_pages: bool = False
    caches_hybrid_prefixes: bool = False
    stated_cache: tuple[str, ...] = ()
    stated_cache_wins: bool = False
    scaled_cache: bool = False
    expert_chunk_tokens: int | None = 32 * 1024
    in_flight_batches: int = 1
    schedules_ahead: bool = False
    parses_templates: bool = False
    server_per_group: bool = False
    counts_non_torch: bool = True
    latent_cache: bool = True
    large_gpu_defaults: bool = True
    a100_is_large: bool = False
    huge_gpu_defaults: bool = False
    samples_with_flashinfer: bool = False
    requires_flashinfer: bool = False
    keeps_reduced_tensors: bool = False
    grows_attention_workspace: bool = False
    awq_keeps_partial_sums: bool = False
    pads_wide_experts: bool = True
    block_size_multiple: int = 16
    reserves_null_block: bool = False
    second_runner: SecondRunnerPolicy = "none"
    second_runner_models: tuple[str, ...] = ()
    second_runner_quantized: bool = True
    second_runner_drafters: tuple[str, ...] = ()
    second_runner_eagle3_stages: bool = False
    second_sampler: SecondSamplerKind = "copy"
    second_runner_graphs: bool = False
    second_runner_encoder: bool = False
    counts_runner_state: bool = False
    blas_before_budget: bool = False
    reserves_latent_splits: bool = False
    told_unified_memory: bool = False
    keeps_float_cache: bool = False
    huge_graph_sizes: bool = False
    latent_state_alignment: int = 64
    checkpointed_states: tuple[str, ...] = ()
    keeps_grouped_keys: bool = False
    qwen3_positions: int = 4
    needs_block_per_sequence: bool = False
    captures_flashinfer_drafts: bool = False

    @property
    def text(self) -> str:
        return ".".join(str(part) for part in self.version)


_DENSE_IN_SECOND_RUNNER = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM")
_MIXTURES_IN_SECOND_RUNNER = ("DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM", "GraniteMoeForCausalLM")
_LATER_IN_SECOND_RUNNER = ("InklingForCausalLM", "InklingForConditionalGeneration", "LongcatFlashNgramForCausalLM")
_CHANGES: tuple[tuple[tuple[int, int, int], dict[str, object]], ...] = (
    ((0, 0, 0), {"v1": False, "counts_non_torch": False, "latent_cache": False, "large_gpu_defaults": False}),
    ((0, 0, 0), {"block_size_multiple": 8}),
    ((0, 2, 0), {"awq_keeps_partial_sums": True}),
    ((0, 2, 5), {"counts_non_torch": True, "keeps_reduced_tensors": True}),
    ((0, 2, 7), {"keeps_reduced_tensors": False}),
    ((0, 3, 0), {"awq_keeps_partial_sums": False}),
    ((0, 6, 5), {"parses_templates": True}),
    ((0, 7, 1), {"latent_cache": True}),
    ((0, 8, 0), {"v1": True, "samples_with_flashinfer": True, "block_size_multiple": 16}),
    ((0, 8, 3), {"large_gpu_defaults": True, "a100_is_large": True}),
    ((0, 9, 0), {"a100_is_large": False}),
    ((0, 9, 2), {"hybrid": "min_layers", "parses_templates": False}),
    ((0, 11, 0), {"parses_templates": True}),
    ((0, 11, 1), {"samples_with_flashinfer": False, "parses_templates": False}),
    ((0, 12, 0), {"hybrid": "balanced"}),
    ((0, 13, 0), {"expert_chunk_tokens": 16 * 1024}),
    ((0, 14, 0), {"keeps_moe_workspace": True, "schedules_ahead": True, "stated_cache": ("modelopt",)}),
    ((0, 15, 0), {"server_per_group": True}),
    ((0, 15, 0), {"stated_cache": ("modelopt", "compressed-tensors"), "stated_cache_wins": True}),
    ((0, 17, 0), {"sampler": "triton", "expert_chunk_tokens": None}),
    (
        (0, 20, 0),
        {"gpu_memory_utilization": 0.92, "prints_concurrency_tokens": True},
    ),
    ((0, 20, 0), {"scaled_cache": True, "needs_block_per_sequence": True}),
    ((0, 21, 0), {"graphs_in_budget": True, "samples_with_flashinfer": True, "requires_flashinfer": True}),
    ((0, 22, 0), {"stated_cache_wins": False}),
    (
        (0, 22, 0),
        {
            "second_runner": "listed",
            "second_runner_models": ("Qwen3ForCausalLM",),
            "second_runner_quantized": False,
            "second_runner_drafters": ("eagle", "eagle3", "mtp"),
        },
    ),
    ((0, 23, 0), {"second_runner_models": _DENSE_IN_SECOND_RUNNER}),
    (
        (0, 24, 0),
        {
            "second_runner_models": (*_DENSE_IN_SECOND_RUNNER, *_MIXTURES_IN_SECOND_RUNNER),
            "second_runner_quantized": True,
        },
    ),
    ((0, 25, 0), {"second_runner": "dense", "second_runner_models": _MIXTURES_IN_SECOND_RUNNER}),
    ((0, 25, 0), {"pads_odd_pages": True}),
    (
        (0, 26, 0),
        {
            "caches_hybrid_prefixes": True,
            "in_flight_batches": 2,
            "grows_attention_workspace": True,
            "pads_wide_experts": False,
        },
    ),
    ((0, 26, 0), {"second_runner_models": (*_MIXTURES_IN_SECOND_RUNNER, *_LATER_IN_SECOND_RUNNER)}),
    (
        (0, 27, 0),
        {
            "second_runner_models": (
                *_MIXTURES_IN_SECOND_RUNNER,
                *_LATER_IN_SECOND_RUNNER,
                "KimiK3ForConditionalGeneration",
            ),
            "second_runner_encoder": True,
            "counts_runner_state": True,
            "latent_state_alignment": 128,
        },
    ),
    ((0, 28, 0), {"huge_gpu_defaults": True, "packs_odd_pages": True}),
    (
        (0, 28, 0),
        {
            "second_runner_models": (
                *_MIXTURES_IN_SECOND_RUNNER,
                *_LATER_IN_SECOND_RUNNER,
                "KimiK3ForConditionalGeneration",
                "DeepseekV4ForCausalLM",
            ),
            "second_sampler": "logits",
            "huge_graph_sizes": True,
        },
    ),
    ((0, 29, 0), {"second_runner": "all", "second_runner_graphs": True, "reserves_null_block": True}),
    ((0, 29, 0), {"checkpointed_states": ("kimi_delta",)}),
    ((0, 30, 0), {"second_runner_eagle3_stages": True}),
    ((0, 31, 0), {"second_runner_drafters": ("eagle", "eagle3", "mtp", "draft_model")}),
    ((0, 32, 0), {"reserves_null_block": True}),
    ((0, 32, 0), {"second_runner_drafters": ("eagle", "eagle3", "mtp", "draft_model", "ngram")}),
    ((0, 32, 0), {"checkpointed_states": ("mamba2", "kimi_delta"), "keeps_grouped_keys": True, "qwen3_positions": 1}),
    (
        (0, 33, 0),
        {
            "second_runner_drafters": ("eagle", "eagle3", "mtp", "draft_model", "ngram", "medusa"),
            "second_sampler": "processed",
            "blas_before_budget": True,
            "reserves_latent_splits": True,
            "told_unified_memory": True,
            "keeps_float_cache": True,
            "captures_flashinfer_drafts": True,
            "checkpointed_states": ("mamba2", "gated_delta_net", "kimi_delta", "ngram_conv"),
        },
    ),
)


def vllm_release(version: str) -> VllmRelease:
    """The defaults of a version as printed: ``0.19.0``, ``v0.10.2``, ``0.19.2rc1.dev206+g9599``, ``latest``.

    Development builds without a release number (``0.1.dev18496+...``) are taken as the latest, and so are versions
    newer than that (``version_note`` says so). UsageError otherwise.
    """
    number = _version_number(version)
    return _release(LATEST if _is_unknown(number) else number)


def release_number(version: str) -> tuple[int, int, int] | None:
    """Of any engine: (0, 4, 3) of ``0.4.3.post2``. None of ``latest`` and of what is no number: the newest."""
    match = _VERSION.match(version.strip().lower())
    if match is None:
        return None
    major, minor, patch = (int(part or 0) for part in match.groups())
    return major, minor, patch


def version_note(version: str) -> str | None:
    """What a user has to know of a version whose own facts are not known here; None for one whose are."""
    number = _version_number(version)
    if _is_unknown(number):
        return f"vLLM {version} is newer than the newest release known here, and sized as {LATEST_VLLM}."
    if number < _OLDEST_VLLM:
        return (
            f"vLLM {version} is older than every release whose logs were compared (0.2.5 and later): unproven figures."
        )
    return None


@cache
def _version_number(version: str) -> tuple[int, int, int]:
    text = version.strip().lower()
    if text in ("", "latest") or text.startswith("0.1.dev"):
        text = LATEST_VLLM
    match = _VERSION.match(text)
    if match is None:
        raise UsageError(f"'{version}' is not a version of vLLM.", hint="write it like vllm@0.19 or vllm@latest")
    major, minor, patch = (int(part or 0) for part in match.groups())
    return major, minor, patch


def _is_unknown(number: tuple[int, int, int]) -> bool:
    return number[:2] > LATEST[:2]


_OWN_LABEL = re.compile(r"(g[0-9a-f]{7,}|d\d{8}|precompiled|empty|(cu|rocm|cpu|xpu|torch)\d*)$")


def is_modified_build(version: str) -> bool:
    """Whether ``version`` names a build that is neither a release nor a commit of vllm-project/vllm.

    After the ``+`` of its versions vLLM itself puts the commit (``g0eec856cc``), the date of an edited tree and the
    platform (``cu129``). Anything else marks a build of changed sources.
    """
    _, _, local = version.partition("+")
    return any(not _OWN_LABEL.match(part) for part in local.split(".") if part)


@cache
def _release(version: tuple[int, int, int]) -> VllmRelease:
    facts: dict[str, object] = {}
    for since, changed in _CHANGES:
        if version >= since:
            facts.update(changed)
    return VllmRelease(version=version, **facts)  # type: ignore[arg-type]
