"""The settings of a deployment, each declared once: its vLLM name, default, help, unit, range and command-line option.

``ServingSettings`` is passed whole from the command line to the engine models, which fill in what was left open
(``FilledSettings``). None and "auto" mean that the engine decides: vLLM by the release asked for, kvplan's engine by
its own defaults (profiles/releases, kvplan/catalog/engines.py). ``KNOBS`` describes the fields; command-line options
and sweep axes are made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final, Literal

from kvplan.errors import UsageError
from kvplan.units import LARGEST

KnobKind = Literal["share", "count", "number", "tokens", "bytes", "rate", "name", "text", "flag"]
"""What a value is: a share (above 0, at most 1), a count, a number (with a fraction or without), tokens (``32k``),
bytes (``80GiB``), a rate (``400Gb/s``, in bytes per second), a name (in any case), a text (as it is), yes or no."""

FLAG_ON: Final = "true"
FLAG_WORDS: Final = {"false": False, FLAG_ON: True}
"""How yes and no are written in lists."""

SERVING_DTYPES: Final = ("auto", "bfloat16", "float16", "float32")
KV_CACHE_DTYPES: Final = (*SERVING_DTYPES, "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla", "int8", "int8_per_token_head")
MOE_BACKENDS: Final = (
    "auto",
    "triton",
    "deep_gemm",
    "cutlass",
    "flashinfer_trtllm",
    "flashinfer_cutlass",
    "flashinfer_cutedsl",
    "marlin",
)
"""Those of vLLM's ``--moe-backend`` (vllm/config/kernel.py) for NVIDIA's GPUs; SGLang's ``--moe-runner-backend`` has
the same names, and TensorRT-LLM's ``moe_config`` those among the synonyms."""
_SYNONYMS: Final = {
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "float": "float32",
    "trtllm": "flashinfer_trtllm",
    "deepgemm": "deep_gemm",
    "cutedsl": "flashinfer_cutedsl",
}

MODEL_PANEL: Final = "Model"
GPU_PANEL: Final = "GPUs"
MEMORY_PANEL: Final = "Memory"
BATCH_PANEL: Final = "Batch"
SPECULATION_PANEL: Final = "Speculative decoding"

WEIGHT_FORMATS: Final = ("fp8", "fp8-block", "int8", "awq", "gptq", "int4", "mxfp4", "nvfp4", "bitsandbytes")
"""What --quantization makes of weights that are published plain; the recipes are in kvplan/estimate/weights.py."""
MADE_WHILE_LOADING: Final = ("fp8", "bitsandbytes")
"""Formats that vLLM makes itself from weights that are published plain; for any other it needs a checkpoint."""
GROUPED_FORMATS: Final = ("awq", "gptq", "int4")
"""Those whose group may have another size: MXFP4's, NVFP4's and bitsandbytes' are fixed."""
GROUP_SIZES: Final = (-1, 32, 64, 128)
"""What vLLM's Marlin kernels take: MARLIN_SUPPORTED_GROUP_SIZES of vLLM 0.32, in
vllm/model_executor/layers/quantization/utils/marlin_utils.py. estimate/vllm/division.py: which widths they divide."""

_OWN_OPTIONS: Final = {
    "device_memory_bytes": "--device-memory",
    "network_bytes_per_second": "--network",
    "reserved_bytes": "--reserve",
}
"""Settings that vLLM has no option for, where the option is not the name: the unit stands in the value."""
DEFAULT_LORA_RANK: Final = 16
"""vLLM's ``max_lora_rank``."""


def option_of(name: str) -> str:
    """``--max-num-seqs`` for ``max_num_seqs``."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True, slots=True)
class SweepAxis:
    """How a sweep takes a setting: its smallest value and, for names, the ones that kvplan's own engine knows.

    example: of numbers, a list or a range. of_others: only other engines have it.
    """

    minimum: int = 1
    choices: tuple[str, ...] = ()
    of_others: bool = False
    example: str = ""


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting. ``name``: the field of ServingSettings, which is vLLM's argument wherever vLLM has one.

    ``unit``: of the value, "" for names and flags; ``example``: a usual value. ``minimum`` is inclusive, and None for
    shares, names and flags; ``choices``: the names that are allowed, empty where any is. ``aliases``: further spellings
    of the option. ``sweep_axis`` is None where a sweep cannot vary the setting. ``panel``: where ``--help`` lists it.
    """

    name: str
    kind: KnobKind
    default: Any
    help: str
    unit: str
    example: str
    panel: str
    minimum: int | None
    choices: tuple[str, ...]
    aliases: tuple[str, ...]
    sweep_axis: SweepAxis | None

    @property
    def option(self) -> str:
        """``--max-num-seqs``: vLLM's option wherever vLLM has one."""
        return _OWN_OPTIONS.get(self.name) or option_of(self.name)

    @property
    def is_axis(self) -> bool:
        return self.sweep_axis is not None

    def canonical_name(self, text: str, *, label: str | None = None) -> str:
        """``bf16`` -> ``bfloat16``. UsageError, naming the setting ``label``, where the name is not in ``choices``."""
        folded = _SYNONYMS.get(text.casefold(), text.casefold())
        if self.choices and folded not in self.choices:
            hint = "one of " + ", ".join(self.choices)
            raise UsageError(f"Unknown {label or self.option} '{text}'.", hint=hint)
        return folded

    def check(self, value: Any, *, label: str | None = None) -> None:
        """UsageError where ``value`` is out of range. None (the engine decides) is always allowed.

        ``label``: what the message calls the setting, the field's name by default.
        """
        if value is None:
            return
        called = label or self.name
        hint = f"for example {called} {self.example}"
        if self.kind == "name":
            self.canonical_name(value, label=called)
        elif self.kind == "share" and not 0 < value <= 1:
            raise UsageError(f"{called} must be above 0 and at most 1, got {value:g}.", hint=hint)
        elif self.minimum is not None and value < self.minimum:
            raise UsageError(f"{called} must be at least {self.minimum}, got {value:,}.", hint=hint)
        elif self.minimum is not None and value > LARGEST:
            raise UsageError(f"{called} must be at most {LARGEST:,}, got {value:,}.", hint=hint)


def _knob(
    default: Any,
    help: str,
    *,
    kind: KnobKind,
    panel: str,
    unit: str = "",
    example: str = "",
    minimum: int = 1,
    choices: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    sweep_axis: SweepAxis | None = None,
) -> Any:
    """A field of ServingSettings: its default, and in its metadata everything else but the name."""
    facts = {"kind": kind, "default": default, "help": help, "unit": unit, "example": example, "panel": panel}
    facts |= {"minimum": None if kind in ("share", "name", "text", "flag") else minimum}
    facts |= {"choices": choices, "aliases": aliases, "sweep_axis": sweep_axis}
    return field(default=default, metadata=facts)


@dataclass(frozen=True, slots=True)
class LoraSlots:
    """Room for ``number`` LoRA adapters of up to ``rank``."""

    number: int
    rank: int


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """What a user says of a deployment, or leaves to the engine (None, "auto"). Names are vLLM's.

    Fields without a default of their own come first, so that FilledSettings can require them.
    """

    gpu_memory_utilization: float | None = _knob(
        None,
        "Share of the GPU's memory that the engine may use. Default: the engine's.",
        kind="share",
        unit="share of the device's memory",
        example="0.9",
        panel=MEMORY_PANEL,
        sweep_axis=SweepAxis(example="0.3,0.6,0.9 or 0.3..0.9+0.1"),
    )
    max_num_seqs: int | None = _knob(
        None,
        "Sequences per step. Default: the engine's.",
        kind="count",
        unit="sequences",
        example="256",
        panel=BATCH_PANEL,
        sweep_axis=SweepAxis(example="4,16,64 or 1..64*2"),
    )
    block_size: int | None = _knob(
        None,
        "Tokens per KV cache block. Default: the engine's.",
        kind="tokens",
        unit="tokens",
        example="16",
        panel=MEMORY_PANEL,
        sweep_axis=SweepAxis(example="8,16,32 or 8..64*2"),
    )
    max_model_len: int | None = _knob(
        None,
        "Longest sequence, prompt and output together. Default: the model's longest.",
        kind="tokens",
        unit="tokens",
        example="32768",
        panel=MODEL_PANEL,
        sweep_axis=SweepAxis(minimum=2, example="4k,16k or 4k..32k*2"),
    )
    max_num_batched_tokens: int | None = _knob(
        None,
        "Tokens per step. Default: the engine's.",
        kind="tokens",
        unit="tokens",
        example="2048",
        panel=BATCH_PANEL,
        sweep_axis=SweepAxis(example="512,2048 or 512..8k*2"),
    )
    device_memory_bytes: int | None = _knob(
        None,
        "Memory per GPU, such as 79.19GiB. Default: the GPU profile's.",
        kind="bytes",
        unit="bytes",
        example="80GiB",
        panel=GPU_PANEL,
    )
    reserved_bytes: int | None = _knob(
        None,
        "Memory of each GPU that other programs hold, such as 6GiB. Default: none.",
        kind="bytes",
        unit="bytes",
        example="6GiB",
        panel=GPU_PANEL,
    )
    kv_cache_memory_bytes: int | None = _knob(
        None,
        "KV cache per GPU, such as 2GiB, instead of what gpu_memory_utilization leaves. Default: that.",
        kind="bytes",
        unit="bytes",
        example="2GiB",
        panel=MEMORY_PANEL,
        sweep_axis=SweepAxis(of_others=True, example="512MiB,2GiB or 1GiB..8GiB*2"),
    )
    dtype: str = _knob(
        "auto",
        "Weights and activations.",
        kind="name",
        choices=SERVING_DTYPES,
        panel=MODEL_PANEL,
        sweep_axis=SweepAxis(choices=("auto", "float32", "bfloat16", "float16")),
    )
    kv_cache_dtype: str = _knob(
        "auto",
        "KV cache; auto is that of the activations, or what a checkpoint states where the engine takes that.",
        kind="name",
        choices=KV_CACHE_DTYPES,
        panel=MEMORY_PANEL,
        sweep_axis=SweepAxis(
            choices=("auto", "float32", "bfloat16", "float16", "fp8", "fp8_e4m3", "int8_per_token_head")
        ),
    )
    quantization: str = _knob(
        "auto",
        "Weight format; auto is as published.",
        kind="name",
        panel=MODEL_PANEL,
        sweep_axis=SweepAxis(choices=("auto", "none", *WEIGHT_FORMATS)),
    )
    group_size: int | None = _knob(
        None,
        "Weights that share a scale, for --quantization awq, gptq and int4: "
        f"{', '.join(map(str, GROUP_SIZES[1:]))}, or -1 for all that make one output. Default: 128.",
        kind="count",
        unit="weights",
        example="64",
        minimum=-1,
        panel=MODEL_PANEL,
        sweep_axis=SweepAxis(minimum=-1, example="32,128 or 32..128*2"),
    )
    tensor_parallel_size: int = _knob(
        1,
        "GPUs that share every layer.",
        kind="count",
        unit="GPUs",
        example="2",
        aliases=("--tp",),
        panel=GPU_PANEL,
        sweep_axis=SweepAxis(example="1,2,4 or 1..8*2"),
    )
    pipeline_parallel_size: int = _knob(
        1,
        "GPUs that share the stack of layers.",
        kind="count",
        unit="GPUs",
        example="2",
        aliases=("--pp",),
        panel=GPU_PANEL,
        sweep_axis=SweepAxis(example="1,2,4 or 1..8*2"),
    )
    pp_layer_partition: str | None = _knob(
        None,
        "Layers of each pipeline stage, such as 20,22,22 (vLLM's VLLM_PP_LAYER_PARTITION). Default: an even split.",
        kind="text",
        panel=GPU_PANEL,
    )
    data_parallel_size: int = _knob(
        1,
        "Groups of GPUs that each hold a whole copy of the attention layers and serve requests of their own; "
        "the experts of a mixture are divided over all of them.",
        kind="count",
        unit="groups",
        example="2",
        aliases=("--dp",),
        panel=GPU_PANEL,
    )
    enable_expert_parallel: bool = _knob(
        False,
        "Whole experts on each GPU instead of a slice of every expert.",
        kind="flag",
        aliases=("--ep",),
        panel=GPU_PANEL,
        sweep_axis=SweepAxis(),
    )
    nvlink_bridge: bool = _knob(
        False,
        "NVLink bridges join pairs of the cards that need them (A100 and H100 PCIe, A40, RTX 3090, ...).",
        kind="flag",
        panel=GPU_PANEL,
    )
    network_bytes_per_second: float | None = _knob(
        None,
        "Network of each GPU to other nodes, such as 400 or 400Gb/s (bits), 50GB/s (bytes). Default: the profile's.",
        kind="rate",
        unit="bytes per second and GPU, one direction",
        example="400",
        panel=GPU_PANEL,
    )
    moe_backend: str = _knob(
        "auto",
        "Kernels of a mixture's experts (SGLang's --moe-runner-backend); auto is the engine's choice.",
        kind="name",
        choices=MOE_BACKENDS,
        panel=GPU_PANEL,
    )
    decode_context_parallel_size: int = _knob(
        1,
        "Ranks that share the KV cache of each sequence while it decodes.",
        kind="count",
        unit="GPUs",
        example="2",
        aliases=("--dcp",),
        panel=GPU_PANEL,
    )
    num_speculative_tokens: int = _knob(
        0,
        "Draft tokens per step, by the model's own multi-token-prediction layers or the speculative model.",
        kind="tokens",
        unit="tokens",
        example="1",
        minimum=0,
        panel=SPECULATION_PANEL,
        sweep_axis=SweepAxis(minimum=0, example="0,2,4 or 0..6+2"),
    )
    speculative_method: str | None = _knob(
        None,
        "Who drafts: ngram, suffix, draft_model, eagle, eagle3, mtp or medusa. Default: by the model's name, as vLLM.",
        kind="text",
        panel=SPECULATION_PANEL,
    )
    speculative_model: str | None = _knob(
        None,
        "The drafter: a smaller model of the same vocabulary, or an EAGLE or Medusa head.",
        kind="text",
        panel=SPECULATION_PANEL,
    )
    acceptance_rate: float | None = _knob(
        None,
        "Share of draft tokens that the model accepts. Default: a few, side by side.",
        kind="share",
        unit="share of the draft tokens",
        example="0.7",
        panel=SPECULATION_PANEL,
    )
    enable_lora: bool = _knob(
        False,
        "Room for LoRA adapters.",
        kind="flag",
        panel=MODEL_PANEL,
    )
    max_loras: int | None = _knob(
        None,
        "Different LoRA adapters per step, each with a slot of its own; 0: none. Default: 1 with --enable-lora.",
        kind="count",
        unit="adapters",
        example="8",
        minimum=0,
        panel=MODEL_PANEL,
        sweep_axis=SweepAxis(minimum=0, example="1,4,16 or 1..16*2"),
    )
    max_lora_rank: int | None = _knob(
        None,
        "Largest rank of a LoRA adapter. Default: 16.",
        kind="count",
        unit="rows of A",
        example="32",
        panel=MODEL_PANEL,
        sweep_axis=SweepAxis(example="8,32 or 8..64*2"),
    )
    encoder_tokens: int | None = _knob(
        None,
        "Encoder tokens per sequence, for models with cross attention.",
        kind="tokens",
        unit="tokens",
        example="1500",
        panel=MODEL_PANEL,
    )
    enforce_eager: bool = _knob(
        False,
        "Without CUDA graphs.",
        kind="flag",
        panel=MEMORY_PANEL,
    )
    enable_prefix_caching: bool | None = _knob(
        None,
        "Reuse cached prefixes. Default: the engine's.",
        kind="flag",
        panel=MEMORY_PANEL,
    )
    cpu_offload_gb: float = _knob(
        0.0,
        "GiB per GPU of the layers' weights that lie in the host's memory and are read from there in each step.",
        kind="number",
        unit="GiB",
        example="10",
        minimum=0,
        panel=MEMORY_PANEL,
    )
    limit_mm_per_prompt: str | None = _knob(
        None,
        "Items of each kind in a prompt, as JSON or image=2,video=0; all 0: without towers. Default: any number.",
        kind="text",
        example='{"image": 1}',
        panel=MODEL_PANEL,
    )
    skip_mm_profiling: bool = _knob(
        False,
        "Size the KV cache without running the vision encoder first, as if it took nothing.",
        kind="flag",
        panel=MEMORY_PANEL,
    )
    warm_start: bool = _knob(
        False,
        "A later start with the same settings, which finds its kernels in vLLM's compile cache.",
        kind="flag",
        panel=MEMORY_PANEL,
    )
    expandable_segments: bool = _knob(
        False,
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True is set: tensors take no whole steps of memory.",
        kind="flag",
        panel=MEMORY_PANEL,
    )
    language_model_only: bool = _knob(
        False,
        "Without vision and audio towers, as vLLM's option of the same name.",
        kind="flag",
        panel=MODEL_PANEL,
    )
    estimate_cudagraphs: bool | None = _knob(
        None,
        "Subtract CUDA graphs before the KV cache is sized (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS).",
        kind="flag",
        panel=MEMORY_PANEL,
    )
    has_flashinfer: bool = _knob(
        False,
        "FlashInfer is installed, which some releases of vLLM then sample with.",
        kind="flag",
        panel=MEMORY_PANEL,
    )
    usage: Literal["server", "offline"] = _knob(
        "server",
        "server (vllm serve) or offline (vLLM's LLM class), which have different batch defaults.",
        kind="name",
        choices=("server", "offline"),
        panel=BATCH_PANEL,
    )

    @property
    def lora_slots(self) -> LoraSlots | None:
        """Room for adapters, None where none are served; how many there are, or their rank, asks for it too."""
        if self.max_loras == 0 or not (self.enable_lora or self.max_loras or self.max_lora_rank):
            return None
        return LoraSlots(self.max_loras or 1, self.max_lora_rank or DEFAULT_LORA_RANK)

    def check(self, *, as_options: bool = False) -> None:
        """UsageError for the first value out of range; ``as_options``: the message names the command-line option."""
        for name, knob in KNOBS.items():
            value = getattr(self, name)
            if value is not knob.default:
                knob.check(value, label=knob.option if as_options else name)
        if self.enable_lora and self.max_loras == 0:
            slots, number = (KNOBS[each].option if as_options else each for each in ("enable_lora", "max_loras"))
            raise UsageError(f"{slots} asks for room for adapters, {number} 0 for none.", hint=f"leave {slots} out")


@dataclass(frozen=True, slots=True)
class FilledSettings(ServingSettings):
    """Settings as an engine runs with them: nothing is left open, dtypes are the ones in use."""

    gpu_memory_utilization: float
    max_num_seqs: int
    block_size: int
    max_model_len: int
    max_num_batched_tokens: int
    device_memory_bytes: int

    @staticmethod
    def of(asked: ServingSettings, **decided: Any) -> FilledSettings:
        """``asked`` with what the engine ``decided`` in its place."""
        return FilledSettings(**{name: getattr(asked, name) for name in KNOBS} | decided)


KNOBS: Final[Mapping[str, Knob]] = MappingProxyType(
    {each.name: Knob(name=each.name, **each.metadata) for each in fields(ServingSettings)}
)
"""Every setting by its name, in the order of ServingSettings."""


def own_group_size(quantization: str, group_size: int | None) -> int | None:
    """``group_size`` for a format that has groups of any size, None for any other."""
    return group_size if quantization in GROUPED_FORMATS else None
