"""``kvplan estimate``: parse, ask, print. The arithmetic is in kvplan.estimate."""

from __future__ import annotations

from typing import Annotated

import typer

from kvplan.catalog.gpus import DEFAULT_GPUS, find_gpu
from kvplan.catalog.measured import load_measured
from kvplan.catalog.models import provenance_note, resolve_model
from kvplan.commands.estimate_output import print_estimate
from kvplan.commands.render import OutputFormat, print_notes
from kvplan.errors import UsageError
from kvplan.estimate.answer import EstimateRequest, make_estimate
from kvplan.estimate.deployments import EngineChoice
from kvplan.estimate.dtypes import KV_CACHE_DTYPES, SERVING_DTYPES, canonical_dtype
from kvplan.estimate.weights import NAMED_FORMATS
from kvplan.units import parse_bytes, parse_tokens

DEFAULTS = EstimateRequest()
DEFAULT_ENGINE = "vllm"


Model = Annotated[
    str, typer.Argument(help="Short name, Hugging Face id, directory, config.json or .gguf.", metavar="MODEL")
]
Context = Annotated[str | None, typer.Option(help="Tokens per sequence; 32k is 32,768. Default: the model's longest.")]
Gpus = Annotated[list[str] | None, typer.Option(help="GPU name; repeat for several.")]
DeviceMemory = Annotated[str | None, typer.Option(help="Memory per GPU instead of the profile's, such as 79.19GiB.")]
TensorParallel = Annotated[int, typer.Option("--tensor-parallel-size", "--tp", help="GPUs that share every layer.")]
PipelineParallel = Annotated[
    int, typer.Option("--pipeline-parallel-size", "--pp", help="GPUs that share the stack of layers.")
]
Dtype = Annotated[str, typer.Option(help="Weights and activations: " + ", ".join(SERVING_DTYPES))]
Quantization = Annotated[
    str, typer.Option(help="Weight format: auto (as published), none, " + ", ".join(NAMED_FORMATS))
]
KvCacheDtype = Annotated[str, typer.Option(help="KV cache: " + ", ".join(KV_CACHE_DTYPES))]
BlockSize = Annotated[int | None, typer.Option(help="Tokens per KV block. Default: the engine's.")]
Utilization = Annotated[
    float | None, typer.Option(help="Share of the GPU's memory that the engine may use. Default: the engine's.")
]
MaxSequences = Annotated[int | None, typer.Option(help="Sequences in one step. Default: the engine's.")]
MaxTokens = Annotated[int | None, typer.Option(help="Tokens in one step. Default: the engine's.")]
EncoderTokens = Annotated[
    int | None, typer.Option(help="Encoder tokens per sequence, for models that attend to an encoder.")
]
LanguageModelOnly = Annotated[
    bool, typer.Option("--language-model-only", help="Without vision and audio towers, as vLLM's option says.")
]
Engine = Annotated[str, typer.Option(help="Whose memory model: vllm, vllm@VERSION or kvplan.")]
Explain = Annotated[bool, typer.Option("--explain", help="Show every formula and every assumption.")]
Format = Annotated[OutputFormat, typer.Option("--format", help="How to print.")]
AsJson = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
Calibration = Annotated[
    str | None, typer.Option(help="Measured profile to take speeds from, or none. Default: the devices' own.")
]
NoCalibration = Annotated[bool, typer.Option("--no-calibration", help="The same as --calibration none.")]
Assumptions = Annotated[
    list[str] | None, typer.Option(help="KEY=VALUE for a key the config lacks; repeat for several.")
]


def estimate(
    model: Model,
    ctx: Context = None,
    gpu: Gpus = None,
    device_memory: DeviceMemory = None,
    tensor_parallel_size: TensorParallel = DEFAULTS.tensor_parallel_size,
    pipeline_parallel_size: PipelineParallel = DEFAULTS.pipeline_parallel_size,
    dtype: Dtype = DEFAULTS.dtype,
    quantization: Quantization = DEFAULTS.quantization,
    kv_cache_dtype: KvCacheDtype = DEFAULTS.kv_cache_dtype,
    block_size: BlockSize = None,
    gpu_memory_utilization: Utilization = None,
    max_num_seqs: MaxSequences = None,
    max_num_batched_tokens: MaxTokens = None,
    encoder_tokens: EncoderTokens = None,
    language_model_only: LanguageModelOnly = False,
    engine: Engine = DEFAULT_ENGINE,
    explain: Explain = False,
    output_format: Format = OutputFormat.table,
    as_json: AsJson = False,
    calibration: Calibration = None,
    no_calibration: NoCalibration = False,
    assume: Assumptions = None,
) -> None:
    """Size a model: weights, KV cache, and how many sequences fit on which GPU."""
    request = EstimateRequest(
        context_tokens=parse_tokens(ctx) if ctx is not None else None,
        gpus=tuple(find_gpu(name) for name in gpu or DEFAULT_GPUS),
        device_memory_bytes=parse_bytes(device_memory) if device_memory is not None else None,
        tensor_parallel_size=_at_least_one(tensor_parallel_size, "--tensor-parallel-size"),
        pipeline_parallel_size=_at_least_one(pipeline_parallel_size, "--pipeline-parallel-size"),
        dtype=canonical_dtype(dtype, SERVING_DTYPES, option="--dtype"),
        kv_cache_dtype=canonical_dtype(kv_cache_dtype, KV_CACHE_DTYPES, option="--kv-cache-dtype"),
        quantization=quantization,
        block_size=_optional(block_size, "--block-size"),
        gpu_memory_utilization=_share(gpu_memory_utilization),
        max_num_seqs=_optional(max_num_seqs, "--max-num-seqs"),
        max_num_batched_tokens=_optional(max_num_batched_tokens, "--max-num-batched-tokens"),
        engine=EngineChoice.parse(engine),
        encoder_tokens=_optional(encoder_tokens, "--encoder-tokens"),
        language_model_only=language_model_only,
    )
    spec = resolve_model(model, assumptions=parse_assumptions(assume or []))
    measured = load_measured("none" if no_calibration else calibration)
    answer = make_estimate(spec, request, measured)
    print_notes(*measured.notices, provenance_note(spec))
    print_estimate(answer, OutputFormat.json if as_json else output_format, explain=explain)


def parse_assumptions(texts: list[str]) -> dict[str, str]:
    """``["head_dim=128"]`` -> ``{"head_dim": "128"}``. UsageError for anything without a ``=``."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UsageError(f"--assume '{text}' is not KEY=VALUE.", hint="for instance --assume head_dim=128")
        found[key.strip()] = value.strip()
    return found


def _at_least_one(number: int, option: str) -> int:
    if number < 1:
        raise UsageError(f"{option} is {number}, but at least 1 is expected.", hint=f"for instance {option} 16")
    return number


def _optional(number: int | None, option: str) -> int | None:
    return None if number is None else _at_least_one(number, option)


def _share(number: float | None) -> float | None:
    if number is not None and not 0 < number <= 1:
        raise UsageError(
            f"--gpu-memory-utilization is {number:g}, but a share above 0 and up to 1 is expected.",
            hint="for instance --gpu-memory-utilization 0.9",
        )
    return number
