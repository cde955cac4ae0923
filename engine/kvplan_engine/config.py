"""The engine's settings, under vLLM's names: each is declared once, in ``EngineConfig``. No torch."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, TypeVar

from kvplan_engine.errors import SettingsError
from kvplan_engine.knob import Knob, Range
from kvplan_engine.rank_account import RankAccount, read_accounts
from kvplan_engine.speculative_config import SpeculativeConfig, read_speculative_config

DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = {
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "int8_per_token_head": "int8",
} | {name: name for name in DTYPES}
SCALED_DTYPES = ("int8",)
"""Of KV_CACHE_DTYPES' torch dtypes those that are kept with a scale for each token and KV head."""
LOAD_FORMATS = ("auto", "dummy", "none", "safetensors", "gguf")
QUANTIZATIONS = ("none", "fp8", "fp8-block", "int8", "awq", "gptq", "int4", "mxfp4", "nvfp4", "bitsandbytes")
GROUPED_QUANTIZATIONS = ("awq", "gptq", "int4")
"""Those whose groups may have another size than the usual one."""
GROUP_SIZES = (-1, 32, 64, 128)
EVEN_QUANTIZATIONS = ("int8", "awq", "gptq", "int4")
"""Those whose codes are integers with a scale, which integers can be multiplied with."""
ACTIVATION_QUANTIZATIONS = ("none", "int8")
DUMMY_LAYERS = ("full", "shared")
MODEL_IMPLS = ("auto", "native", "transformers")
DEVICES = ("auto", "cpu", "cuda")
PREEMPTION_MODES = ("auto", "recompute", "swap")
SCHEDULINGS = ("continuous", "static")
KV_RESERVATIONS = ("paged", "contiguous")
KV_LOAD_POLICIES = ("auto", "always")
LINEAR_BACKENDS = ("auto", "torch", "cuda_skinny")
CUDAGRAPH_MODES = ("full", "full_decode_only")

T = TypeVar("T")


_SHARE = Range("in (0, 1]", lambda value: 0 < value <= 1)
_AT_LEAST_1 = Range("at least 1", lambda value: value >= 1)
_AT_LEAST_2 = Range("at least 2", lambda value: value >= 2)
_GROUP = Range(f"one of {', '.join(map(str, GROUP_SIZES))}", lambda value: value in GROUP_SIZES)
_AMOUNT = Range("0 or more bytes", lambda value: value >= 0)


def _knob(default: T, help: str, **declaration: Any) -> T:
    return field(default=default, metadata={"knob": Knob(help, **declaration)})


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that decides how an engine starts. ``print(describe_knobs())`` explains every setting.

    Values are checked here: SettingsError names the one that is wrong, or the two that contradict each other.
    """

    model: Any = field(
        metadata={
            "knob": Knob(
                "a directory, a config.json, a .gguf file, a shipped short name, a Hugging Face id, or a config dict"
            )
        }
    )
    device: str = _knob(
        "auto", "where to run; auto: a GPU if there is a usable one, otherwise the CPU", choices=DEVICES, in_vllm=False
    )
    dtype: str = _knob("auto", "dtype to compute in; auto: what suits the model and the device", choices=DTYPES)
    load_format: str = _knob(
        "auto",
        "format of the weights; auto: what is there; dummy: random weights; none: no tensors at all, blocks and bytes "
        "are counted and tokens are random",
        choices=LOAD_FORMATS,
    )
    model_impl: str = _knob(
        "auto",
        "what computes the model; native: the engine's own decoder; transformers: the model's class there, over the "
        "same pool; auto: native wherever it can",
        choices=MODEL_IMPLS,
    )
    quantization: str | None = _knob(
        None,
        "format of the weights of products; None: as they are stored; none: all in dtype; a name: dense or dummy "
        "weights are rounded to it when they are loaded",
        choices=QUANTIZATIONS,
    )
    group_size: int | None = _knob(
        None,
        "weights that share a scale, with quantization awq, gptq or int4; -1: all that make one output; None: 128",
        unit="weights",
        range=_GROUP,
        in_vllm=False,
    )
    activation_quantization: str = _knob(
        "none",
        "int8: what weights in few bits are multiplied with is rounded to 8 bits, each row anew, with a scale for each "
        "group that has one in the weight; faster on a CPU, and changes results",
        choices=ACTIVATION_QUANTIZATIONS,
        in_vllm=False,
    )
    weight_bytes: int | None = _knob(
        None,
        "size of the weights to account for with load_format none; None: parameters times dtype",
        unit="bytes",
        range=_AMOUNT,
        in_vllm=False,
    )
    rank_accounts: tuple[RankAccount, ...] | None = _knob(
        None,
        "what a rank of each stage takes beside the pool, to account for with load_format none; None: as this engine "
        "would take it",
        in_vllm=False,
    )
    dummy_layers: str = _knob(
        "full",
        "with load_format dummy; shared: equal layers use one copy of their weights, and count as if each had its own",
        choices=DUMMY_LAYERS,
        in_vllm=False,
    )
    gpu_memory_utilization: float = _knob(
        0.9, "share of the device's total memory that the engine may use", range=_SHARE, reconfigurable=True
    )
    max_model_len: int | None = _knob(
        None,
        "longest sequence, prompt and answer together; None: the model's own limit",
        unit="tokens",
        range=_AT_LEAST_2,
        reconfigurable=True,
    )
    max_num_seqs: int = _knob(
        256, "most sequences in one step", unit="sequences", range=_AT_LEAST_1, reconfigurable=True
    )
    max_num_batched_tokens: int = _knob(
        2048, "most tokens computed in one step", unit="tokens", range=_AT_LEAST_1, reconfigurable=True
    )
    block_size: int = _knob(16, "token slots of a KV block", unit="tokens", range=_AT_LEAST_1, reconfigurable=True)
    kv_cache_dtype: str = _knob(
        "auto",
        "how K and V are stored; auto: in the dtype of the model; fp8: one byte, no scale, saturating at 448; "
        "int8_per_token_head: one byte, with a scale for each token and KV head",
        choices=tuple(KV_CACHE_DTYPES),
    )
    enable_prefix_caching: bool = _knob(True, "reuse the KV of prompts that begin alike", reconfigurable=True)
    swap_space: int = _knob(
        0,
        "host memory for the KV of preempted sequences; 0: they are recomputed",
        unit="bytes",
        range=_AMOUNT,
        reconfigurable=True,
    )
    device_memory: int | None = _knob(
        None,
        "total memory of the device; None: all of a GPU's; on a CPU 4 GiB, or half of what is free if that is less",
        unit="bytes",
        range=_AT_LEAST_1,
        in_vllm=False,
    )
    seed: int = _knob(0, "seed of dummy weights, and of sampling for requests without a seed of their own")
    enable_lora: bool = _knob(False, "serve LoRA adapters, a different one for each request")
    max_loras: int = _knob(
        1, "most different adapters in one step; each has a slot of its own", unit="adapters", range=_AT_LEAST_1
    )
    max_lora_rank: int = _knob(16, "largest rank of an adapter", range=_AT_LEAST_1)
    max_cpu_loras: int | None = _knob(
        None, "most adapters in host memory; None: as many as max_loras", unit="adapters", range=_AT_LEAST_1
    )
    tensor_parallel_size: int = _knob(
        1,
        "ranks that share every layer, a process each: a GPU each, or a share of the CPU's threads; device_memory and "
        "its share in use are of each rank",
        unit="ranks",
        range=_AT_LEAST_1,
    )
    pipeline_parallel_size: int = _knob(
        1,
        "stages that share the stack of layers, each of tensor_parallel_size ranks; a step passes through all of them",
        unit="stages",
        range=_AT_LEAST_1,
    )
    enable_expert_parallel: bool = _knob(
        False,
        "the ranks that share a layer divide a mixture's experts among them, whole ones each, instead of the inner "
        "elements of every expert",
    )
    disable_custom_all_reduce: bool = _knob(
        False,
        "leave sums over GPUs to NCCL; otherwise small ones are a kernel of ours, in memory that the GPUs share, where "
        "that passes a comparison and a timing at the start",
    )
    attention_backend: str = _knob(
        "auto",
        "attention kernels: cpu, cuda, reference (plain torch), or auto; cuda_wgmma: cuda, and prompts by warp groups "
        "(compute capability 9.0) where the model has what that kernel needs; cuda_cascade: cuda, and sequences that "
        "decode behind the same cached blocks read these once; auto on a GPU: cuda, and either of them where it passes "
        "a check and a timing at the first start",
    )
    linear_backend: str = _knob(
        "auto",
        "products with dense weights on a GPU; torch: cuBLAS; cuda_skinny: up to 16 rows of 16-bit weights by a kernel "
        "of ours, activation and residual included (compute capability 8.0 and newer); auto: the latter where it "
        "passes a check and a timing at the first start",
        choices=LINEAR_BACKENDS,
    )
    preemption_mode: str = _knob(
        "auto",
        "what becomes of a preempted sequence's KV; auto: swap while swap_space has room and copying is cheaper "
        "than recomputing",
        choices=PREEMPTION_MODES,
        in_vllm=False,
        reconfigurable=True,
    )
    kv_host_cache_bytes: int = _knob(
        0,
        "host memory for blocks that the prefix cache evicts",
        unit="bytes",
        range=_AMOUNT,
        in_vllm=False,
        reconfigurable=True,
    )
    kv_disk_cache_dir: str | None = _knob(
        None,
        "directory for blocks that host memory evicts; they outlive the engine",
        in_vllm=False,
        reconfigurable=True,
    )
    kv_disk_cache_bytes: int = _knob(
        0, "most bytes kept there per model", unit="bytes", range=_AMOUNT, in_vllm=False, reconfigurable=True
    )
    kv_load_policy: str = _knob(
        "auto",
        "when evicted blocks are loaded back; auto: when that is cheaper than computing them",
        choices=KV_LOAD_POLICIES,
        in_vllm=False,
        reconfigurable=True,
    )
    scheduling: str = _knob(
        "continuous",
        "static: a batch starts when the last one has finished entirely (a baseline to compare with)",
        choices=SCHEDULINGS,
        in_vllm=False,
        reconfigurable=True,
    )
    kv_reservation: str = _knob(
        "paged",
        "contiguous: a sequence holds max_model_len tokens from its start and shares nothing (a baseline to compare "
        "with)",
        choices=KV_RESERVATIONS,
        in_vllm=False,
        reconfigurable=True,
    )
    enforce_eager: bool = _knob(
        False, "launch kernels one by one; otherwise a GPU replays steps as graphs", reconfigurable=True
    )
    cudagraph_mode: str = _knob(
        "full",
        "steps that a GPU replays as graphs; full: decode steps and those with prompts of up to 512 tokens in all; "
        "full_decode_only: decode steps",
        choices=CUDAGRAPH_MODES,
        in_vllm=False,
        reconfigurable=True,
    )
    enable_pdl: bool | None = _knob(
        None,
        "programmatic dependent launch: each kernel of ours is set up while the one before it ends, on GPUs of compute "
        "capability 9.0 and newer; None: where that passes a check and a timing at the first start",
        in_vllm=False,
        reconfigurable=True,
    )
    async_scheduling: bool | None = _knob(
        None,
        "start a step before the last one's tokens are read; None: on a GPU, without speculation",
        reconfigurable=True,
    )
    speculative_config: SpeculativeConfig | None = field(
        default=None,
        metadata={
            "knob": Knob(
                "what proposes tokens that the next step verifies, as vLLM takes it: {'method': 'ngram', "
                "'num_speculative_tokens': 4}, with prompt_lookup_min and prompt_lookup_max, a 'draft_model', or the "
                "model's own layer for multi-token prediction, 'mtp'; None: nothing",
                reconfigurable=True,
            )
        },
    )

    def __post_init__(self) -> None:
        for name, knob in knobs().items():
            knob.check(name, getattr(self, name))
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise SettingsError(
                f"max_cpu_loras {self.max_cpu_loras} is less than max_loras {self.max_loras}.",
                hint="adapters go to the device by way of host memory",
            )
        if self.group_size is not None and self.quantization not in GROUPED_QUANTIZATIONS:
            raise SettingsError(
                f"group_size {self.group_size} is for weights in groups, and quantization is '{self.quantization}'.",
                hint="set quantization to one of " + ", ".join(GROUPED_QUANTIZATIONS) + ", or leave group_size out",
            )
        self._check_speculation()
        self._check_activations()
        self._check_load_format()
        self._check_offload()
        self._check_ranks()

    def _check_speculation(self) -> None:
        object.__setattr__(self, "speculative_config", read_speculative_config(self.speculative_config))
        if self.speculative_config is not None and self.async_scheduling:
            raise SettingsError(
                "async_scheduling does not go with speculative_config: what a step computes follows from the last "
                "one's tokens.",
                hint="leave async_scheduling out",
            )
        is_divided = self.pipeline_parallel_size > 1 or (self.num_ranks > 1 and self.rank_accounts is None)
        if self.drafts_with_model and is_divided:
            raise SettingsError(
                f"{self._drafter_name} runs in one process.",
                hint="leave out tensor_parallel_size and pipeline_parallel_size, or use 'ngram'",
            )

    def _check_ranks(self) -> None:
        """Refuses what no rank has a part of yet; where ranks' memory is given, nothing has to be divided."""
        accounts = read_accounts(self.rank_accounts, self.pipeline_parallel_size)
        object.__setattr__(self, "rank_accounts", accounts)
        if accounts is not None:
            return
        undivided = {
            "enable_lora": self.enable_lora,
            f"quantization '{self.quantization}'": self.quantization not in (None, "none"),
            "kv_disk_cache_dir": self.kv_disk_cache_dir is not None,
            "weight_bytes": self.weight_bytes is not None,
            "model_impl 'transformers'": self.model_impl == "transformers",
        }
        found = next((name for name, is_on in undivided.items() if is_on), None)
        if self.num_ranks > 1 and found is not None:
            name = "tensor_parallel_size" if self.tensor_parallel_size > 1 else "pipeline_parallel_size"
            raise SettingsError(
                f"{name} {getattr(self, name)} does not go with {found} yet.", hint="leave one of them out"
            )

    def _check_activations(self) -> None:
        if self.rounds_activations and self.quantization not in (None, *EVEN_QUANTIZATIONS):
            raise SettingsError(
                f"activation_quantization 'int8' is for codes that count evenly, and quantization is "
                f"'{self.quantization}'.",
                hint="set quantization to one of " + ", ".join(EVEN_QUANTIZATIONS) + ", or leave one of them out",
            )

    def _check_load_format(self) -> None:
        if self.weight_bytes is not None and not self.is_counted:
            raise SettingsError(
                f"weight_bytes is for load_format 'none', and load_format is '{self.load_format}'.",
                hint="leave weight_bytes out: weights that are loaded are measured",
            )
        if self.rank_accounts is not None and not self.is_counted:
            raise SettingsError(
                f"rank_accounts is for load_format 'none', and load_format is '{self.load_format}'.",
                hint="leave rank_accounts out: what is allocated is measured",
            )
        if self.shares_layers and self.load_format != "dummy":
            raise SettingsError(
                f"dummy_layers 'shared' is for load_format 'dummy', and load_format is '{self.load_format}'.",
                hint="set load_format='dummy', or leave dummy_layers out",
            )
        if self.model_impl == "transformers" and self.needs_decoder is not None:
            raise SettingsError(
                f"{self.needs_decoder} is for the engine's own decoder, and model_impl is 'transformers'.",
                hint=f"leave one of them out; model_impl 'auto' takes the decoder with {self.needs_decoder}",
            )
        if self.is_counted and self.kv_disk_cache_dir is not None:
            raise SettingsError(
                "load_format 'none' has no KV that could be written to disk.",
                hint="leave kv_disk_cache_dir out; kv_host_cache_bytes and swap_space are counted",
            )

    def _check_offload(self) -> None:
        if self.preemption_mode == "swap" and not self.swap_space:
            raise SettingsError("preemption_mode 'swap' needs host memory.", hint="set swap_space, such as '1GiB'")
        if (self.kv_disk_cache_dir is None) != (self.kv_disk_cache_bytes == 0):
            raise SettingsError(
                "a KV cache on disk needs a directory and a size.", hint="set kv_disk_cache_dir and kv_disk_cache_bytes"
            )
        if (self.kv_host_cache_bytes or self.kv_disk_cache_bytes) and not self.caches_prefixes:
            raise SettingsError(
                "KV cache tiers hold what the prefix cache evicts, and the prefix cache is off.",
                hint="set enable_prefix_caching=True and kv_reservation='paged'",
            )

    def kv_dtype(self, model_dtype: str) -> str:
        """How K and V of a model in ``model_dtype`` are stored: the name of a torch dtype."""
        return model_dtype if self.kv_cache_dtype == "auto" else KV_CACHE_DTYPES[self.kv_cache_dtype]

    @property
    def _drafter_name(self) -> str:
        """Who proposes tokens, as a setting."""
        return "" if self.speculative_config is None else f"speculative_config '{self.speculative_config.method}'"

    @property
    def drafts_with_model(self) -> bool:
        """Whether layers beside the model's own propose tokens: a second model's, or for multi-token prediction."""
        return self.speculative_config is not None and self.speculative_config.method != "ngram"

    @property
    def drafts_with_own_layer(self) -> bool:
        """Whether the model's own layer for multi-token prediction proposes tokens."""
        return self.speculative_config is not None and self.speculative_config.method == "mtp"

    @property
    def most_drafts(self) -> int:
        """Most tokens of a sequence that a step verifies."""
        return 0 if self.speculative_config is None else self.speculative_config.num_speculative_tokens

    @property
    def most_sampled_rows(self) -> int:
        """Most rows of a step that tokens are drawn behind: one of each sequence, and one of each of its drafts."""
        return min(self.max_num_seqs * (1 + self.most_drafts), self.max_num_batched_tokens)

    @property
    def num_ranks(self) -> int:
        """Processes that compute the model together."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def is_counted(self) -> bool:
        """Whether memory is only counted: no weights, no KV, no workspace."""
        return self.load_format == "none"

    @property
    def most_held_adapters(self) -> int:
        """Adapters in host memory."""
        return self.max_cpu_loras or self.max_loras

    @property
    def needs_decoder(self) -> str | None:
        """A setting that only the engine's own decoder has, None where none is in use."""
        in_use = {
            "load_format 'none'": self.is_counted,
            "dummy_layers 'shared'": self.shares_layers,
            "enable_lora": self.enable_lora,
            "quantization": self.quantization is not None,
            "activation_quantization": self.rounds_activations,
            "linear_backend": self.linear_backend != "auto",
            self._drafter_name: self.drafts_with_model,
        }
        return next((name for name, is_on in in_use.items() if is_on), None)

    @property
    def rounds_activations(self) -> bool:
        """Whether weights in few bits are multiplied with rounded activations."""
        return self.activation_quantization != "none"

    @property
    def shares_layers(self) -> bool:
        """Whether equal layers use the same dummy weights."""
        return self.dummy_layers == "shared"

    @property
    def caches_prefixes(self) -> bool:
        return self.enable_prefix_caching and not self.reserves_all

    @property
    def reserves_all(self) -> bool:
        """Whether a sequence holds room for the longest sequence from its start."""
        return self.kv_reservation == "contiguous"


@cache
def knobs() -> dict[str, Knob]:
    """Every setting's declaration, by name, in the order of ``EngineConfig``."""
    return {setting.name: setting.metadata["knob"] for setting in fields(EngineConfig)}


def describe_knobs() -> str:
    """Every setting in two lines: its name and default, the values it may have; what it does."""
    return "\n".join(
        _describe(setting.name, setting.default, setting.metadata["knob"]) for setting in fields(EngineConfig)
    )


def _describe(name: str, default: Any, knob: Knob) -> str:
    allowed = knob.range.text if knob.range is not None else " | ".join(knob.choices)
    unit = knob.unit if knob.unit is not None and knob.unit not in allowed else ""
    fixed = "" if knob.reconfigurable else "fixed once the model is loaded"
    notes = "; ".join(filter(None, [allowed, unit, fixed]))
    heading = name if default is MISSING else f"{name} = {default!r}"
    return heading + (f"   ({notes})" if notes else "") + f"\n    {knob.help}"
