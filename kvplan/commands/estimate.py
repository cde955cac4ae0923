"""``kvplan estimate``: parse, ask, print. The arithmetic is in kvplan.estimate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.catalog.devices.gpus import DEFAULT_GPUS, GpuCount, parse_gpu_count
from kvplan.catalog.devices.measured import MeasuredProfiles, load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import pooling_note, provenance_note
from kvplan.catalog.releases.vllm import version_note, vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.speculation.config import with_speculative_config
from kvplan.commands.options.estimate_lists import (
    LIST_OPTIONS,
    Lists,
    questions,
    resolve_models,
    with_pasted_lists,
)
from kvplan.commands.options.extras import need_extra
from kvplan.commands.options.settings import takes_settings
from kvplan.commands.options.shared import (
    ENGINE_PANEL,
    OUTPUT_PANEL,
    Calibration,
    MeasuredResults,
    NoCalibration,
    SpeculativeConfig,
    calibration_name,
)
from kvplan.commands.printing.estimates import print_estimates
from kvplan.commands.printing.render import OutputFormat, chosen_format, print_notes, print_sentence
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.question import (
    ESTIMATE_SETTINGS,
    Question,
    answer_question,
    checkpoint_note,
    engine_of,
    notes_on,
    pasted_command,
    with_kernels,
    with_pasted,
)
from kvplan.estimate.shared_gpu import GpuShare, shared_sentence
from kvplan.estimate.shared_gpu import share_gpu as divide_gpu
from kvplan.estimate.ways_to_fit import Asked, ways_to_fit
from kvplan.estimate.weights import NAMED_FORMATS
from kvplan.setting_values import split_list
from kvplan.settings import GPU_PANEL, KNOBS, MEMORY_PANEL, MODEL_PANEL, ServingSettings

if TYPE_CHECKING:
    from kvplan.explaining.learned import LogBasis

__all__ = ["DEFAULT_ENGINE", "LIST_OPTIONS", "estimate", "parse_assumptions"]

DEFAULT_ENGINE = "vllm"

Models = Annotated[
    list[str] | None,
    typer.Argument(
        help="Short names, Hugging Face ids, directories, config.json or .gguf files; or -- vllm serve MODEL ...",
        metavar="MODEL",
        show_default=False,
    ),
]
Contexts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOKENS",
        help="Tokens per sequence, such as 32k (32,768) or 8k,32k. Default: the model's longest.",
        rich_help_panel=MODEL_PANEL,
    ),
]
LongestSequences = Annotated[
    list[str] | None,
    typer.Option(metavar="TOKENS", help="vLLM's name for --ctx; give one of them.", rich_help_panel=MODEL_PANEL),
]
Assumptions = Annotated[
    list[str] | None,
    typer.Option(help="KEY=VALUE for a key missing from the config; repeatable.", rich_help_panel=MODEL_PANEL),
]
Gpus = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="GPU names, such as h100 or l4,8xh200; takes several.", rich_help_panel=GPU_PANEL
    ),
]
Weights = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Weight formats: auto (as published), none, " + ", ".join(NAMED_FORMATS) + "; takes several.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Caches = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="KV cache formats: " + ", ".join(KNOBS["kv_cache_dtype"].choices) + "; takes several.",
        rich_help_panel=MEMORY_PANEL,
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        help="Memory model: vllm, vllm@VERSION, sglang, sglang@VERSION or kvplan.", rich_help_panel=ENGINE_PANEL
    ),
]
FromLog = Annotated[
    Path | None,
    typer.Option(
        metavar="LOG",
        help="A start-up log of vLLM: what it shows of memory is kept; model, GPU and settings left out are its.",
        rich_help_panel=MEMORY_PANEL,
    ),
]
ShareGpu = Annotated[
    bool,
    typer.Option(
        "--share-gpu",
        help="The models run on one GPU at once: which gpu_memory_utilization each of them takes.",
        rich_help_panel=MEMORY_PANEL,
    ),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Show every formula and every assumption.", rich_help_panel=OUTPUT_PANEL)
]
Plot = Annotated[
    Path | None,
    typer.Option(help="Draw what decode steps consist of to this PNG file.", rich_help_panel=OUTPUT_PANEL),
]
Format = Annotated[OutputFormat, typer.Option("--format", help="Output format.", rich_help_panel=OUTPUT_PANEL)]
AsJson = Annotated[bool, typer.Option("--json", help="Same as --format json.", rich_help_panel=OUTPUT_PANEL)]


@takes_settings(*ESTIMATE_SETTINGS)
def estimate(
    models: Models = None,
    ctx: Contexts = None,
    max_model_len: LongestSequences = None,
    assume: Assumptions = None,
    quantization: Weights = None,
    gpu: Gpus = None,
    kv_cache_dtype: Caches = None,
    settings: ServingSettings = ServingSettings(),
    speculative_config: SpeculativeConfig = None,
    engine: Engine = DEFAULT_ENGINE,
    from_log: FromLog = None,
    share_gpu: ShareGpu = False,
    calibration: Calibration = None,
    no_calibration: NoCalibration = False,
    measured_results: MeasuredResults = None,
    plot: Plot = None,
    explain: Explain = False,
    output_format: Format = OutputFormat.table,
    as_json: AsJson = False,
) -> None:
    """Size a model: weights, KV cache, and how many sequences fit on which GPU.

    Several models, contexts or formats make one table. A vLLM command behind -- is read with its own options. With
    --from-log what one start showed is kept for other settings of the same model and GPU.
    """
    chosen = chosen_format(output_format, as_json=as_json)
    models = models or []
    if not models and from_log is None:
        raise UsageError("Missing argument 'MODEL...'.", hint="kvplan models lists those known by name")
    if ctx and max_model_len:
        raise UsageError("--ctx cannot be used with --max-model-len.", hint="give one of them; they mean the same here")
    lists = Lists(*map(split_list, (ctx or max_model_len, gpu, quantization, kv_cache_dtype)))
    pasted = pasted_command(models)
    if pasted is not None:
        models, lists = [pasted.model], with_pasted_lists(lists, pasted.settings)
        given = with_pasted(settings, pasted, speculative_config)
        choice = EngineChoice.parse(engine_of(None if engine == DEFAULT_ENGINE else engine, pasted, DEFAULT_ENGINE))
    else:
        given, choice = with_speculative_config(settings, speculative_config), EngineChoice.parse(engine)
    gpus = [parse_gpu_count(name) for name in lists.gpus or DEFAULT_GPUS]
    specs = resolve_models(models, parse_assumptions(assume or []), after_gpus=bool(gpu))
    if pasted is not None:
        print_notes(*pasted.notes, checkpoint_note(specs[0], pasted))
    learned = None
    if from_log is not None:
        basis = _basis(from_log, specs, gpus if lists.gpus else [], choice, given)
        learned, given, gpus, choice = basis.learned, basis.settings, [GpuCount(1, basis.gpu)], basis.engine
        specs = [basis.spec]
        caches = lists.kv_cache_dtypes or (given.kv_cache_dtype,)
        contexts = lists.contexts or basis.contexts
        lists = replace(lists, contexts=contexts, gpus=(basis.gpu.id,), kv_cache_dtypes=caches)
        print_notes(*basis.notes)
    asked = questions(lists, given)
    measured = load_measured(calibration_name(calibration, no_calibration))
    if measured_results:
        measured = _with_results(measured, measured_results, specs, asked, gpus, choice)
    shown = [gpus if lists.gpus else with_kernels(gpus, spec, choice) for spec in specs]
    answers = [
        answer_question(spec, question, on, choice, measured, learned)
        for spec, on in zip(specs, shown, strict=True)
        for question in asked
    ]
    shared = None
    if share_gpu:
        shared = divide_gpu(answers, choice)
        answers = [
            answer_question(spec, _with_share(asked[0], share), gpus, choice, measured)
            for spec, share in zip(specs, shared.shares, strict=True)
        ]
    shows_assumptions = chosen is OutputFormat.table and (explain or len(answers) == 1)
    print_notes(
        *measured.notices,
        version_note(choice.version) if choice.name == "vllm" else None,
        *(
            note
            for spec in specs
            if (note := provenance_note(spec)) not in (spec.assumptions if shows_assumptions else ())
        ),
        *map(pooling_note, specs),
        *dict.fromkeys(note for answer in answers for note in notes_on(answer)),
    )
    print_estimates(answers, chosen, explain=explain)
    if shared is not None and chosen in (OutputFormat.table, OutputFormat.md):
        print_sentence(shared_sentence(shared, answers, vllm_release(choice.version).text))
    if lists.gpus and not any(each.fits for answer in answers for each in answer.deployments):
        pairs = zip([(spec, question) for spec in specs for question in asked], answers, strict=True)
        misses = [
            Asked(spec, question, counted, choice, replace(answer, deployments=(deployment,)))
            for (spec, question), answer in pairs
            for counted, deployment in zip(gpus, answer.deployments, strict=True)
        ]
        raise _nothing_fits(misses)
    if plot is not None:
        need_extra("estimate --plot", "report")
        from kvplan.estimate.picture import draw_estimates

        draw_estimates(answers, plot)


def _basis(
    log: Path, specs: Sequence[ModelSpec], gpus: Sequence[GpuCount], engine: EngineChoice, given: ServingSettings
) -> LogBasis:
    """What the log at ``log`` teaches. UsageError for several models or GPUs, and for kvplan's engine."""
    from kvplan.explaining.learned import basis_of

    if len(specs) > 1 or len(gpus) > 1:
        raise UsageError("--from-log is about one model on one kind of GPU.", hint="name one of each")
    return basis_of(log, specs[0] if specs else None, gpus[0] if gpus else None, engine, given)


def _with_results(
    measured: MeasuredProfiles,
    paths: Sequence[Path],
    specs: Sequence[ModelSpec],
    asked: Sequence[Question],
    gpus: Sequence[GpuCount],
    engine: EngineChoice,
) -> MeasuredProfiles:
    """Speeds as the results at ``paths`` say. UsageError for several models or formats."""
    from kvplan.calibrate.own_server import of_estimate, with_results

    formats = {(each.settings.quantization, each.settings.kv_cache_dtype) for each in asked}
    if len(specs) > 1 or len(formats) > 1:
        raise UsageError("--measured is about one model in one format.", hint="name one of each")
    return with_results(measured, paths, of_estimate(specs[0], asked[0].settings, gpus, engine))


def _with_share(question: Question, share: GpuShare) -> Question:
    """The question with a part of the GPU; others hold theirs."""
    own = replace(
        question.settings, gpu_memory_utilization=share.utilization, reserved_bytes=share.others_bytes or None
    )
    return replace(question, settings=own)


def _nothing_fits(misses: Sequence[Asked]) -> KvplanError:
    """Error: of one deployment what stands in its way. The hint is what lets it fit, or of several the nearest."""
    nearest = min(misses, key=_lacking)
    ways = ways_to_fit(nearest)
    hint = f"use {', or '.join(ways)}" if ways else "use larger GPUs, or a smaller model"
    answer, deployment = nearest.answer, nearest.deployment
    if len(misses) > 1:
        where = f"nearest is {answer.spec.served_id} on {deployment.counted_gpu}: " if ways else ""
        return KvplanError("None of these deployments fits.", hint=f"{where}{hint}")
    drafter = answer.spec.drafter
    beside = "" if drafter is None or drafter.model is None else f" with {drafter.name} as its drafter"
    return KvplanError(
        f"{answer.spec.served_id}{beside} does not fit on {deployment.counted_gpu}: {deployment.limit}.", hint=hint
    )


def _lacking(miss: Asked) -> tuple[bool, float]:
    """What only has too long a context is near; of the rest, by what is beyond the budget."""
    each = miss.deployment
    used = each.weight_bytes + each.activation_peak_bytes + each.overhead_bytes
    return each.longest_context is None, used / max(each.budget_bytes, 1)


def parse_assumptions(texts: list[str]) -> dict[str, str]:
    """``["head_dim=128"]`` -> ``{"head_dim": "128"}``. UsageError for anything without a ``=``."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UsageError(f"--assume '{text}' is not KEY=VALUE.", hint="for example --assume head_dim=128")
        found[key.strip()] = value.strip()
    return found
