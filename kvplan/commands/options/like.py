"""``plan --like "vllm serve ..."``: the question that keeps a running deployment's settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from kvplan.catalog.engines import EngineChoice
from kvplan.commands.options.fleet_wishes import WishOptions
from kvplan.commands.options.fleets import FleetOptions
from kvplan.commands.options.pasted import engine_of, with_pasted
from kvplan.commands.options.patterns import PatternOptions
from kvplan.commands.options.plans import FormatOptions, GpuOptions, PlanLoadOptions
from kvplan.commands.options.trace import TraceOptions
from kvplan.errors import UsageError
from kvplan.pasted.command import PastedCommand, read_command
from kvplan.planner.choices.formats import PUBLISHED
from kvplan.planner.question.asking import PLAN_SETTINGS, plan_request
from kvplan.planner.question.request import PlanRequest
from kvplan.settings import KNOBS, ServingSettings

_DEFAULT_ENGINE: Final = "vllm"
_SIZES: Final = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_SEARCHED: Final = (*_SIZES, "enable_expert_parallel", "quantization", "kv_cache_dtype", "max_model_len")
"""Settings of a command that are options of a plan's own."""


@dataclass(frozen=True)
class PlanQuestion:
    """The options of ``plan`` that ask for something."""

    model: str | None
    load: PlanLoadOptions
    pattern: PatternOptions
    gpus: GpuOptions
    formats: FormatOptions
    settings: ServingSettings
    engine: str
    trace: TraceOptions = TraceOptions()  # noqa: RUF009 - frozen
    as_started: bool = False
    fleet: FleetOptions = FleetOptions()  # noqa: RUF009 - frozen
    wishes: WishOptions = WishOptions()  # noqa: RUF009 - frozen

    def request(self, *, longest: int | None = None) -> PlanRequest:
        """The question that they ask. ``longest``: tokens of a sequence, where --ctx-max is not given."""
        load = self.load if longest is None or self.load.ctx_max else replace(self.load, ctx_max=str(longest))
        choice = EngineChoice.parse(self.engine, known=("vllm",))
        options = vars(load) | vars(self.pattern) | vars(self.gpus) | vars(self.formats) | vars(self.trace)
        found = plan_request(
            choice, self.settings, **options, **vars(self.fleet), **vars(self.wishes), plays_trace=True
        )
        return replace(found, as_started=self.as_started)


def likened(asked: PlanQuestion, command: str) -> tuple[PlanQuestion, list[str]]:
    """``asked`` with the command's settings where nothing else is said, and notes on what of it is not modelled.

    UsageError where the command sets something that a plan does not know.
    """
    pasted = read_command(command)
    said = pasted.settings
    _check_known(pasted)
    settings = with_pasted(asked.settings, replace(pasted, settings=_without(said, _SEARCHED)), None)
    sizes: dict[str, Any] = {name: getattr(asked.gpus, name) or [str(said.get(name, 1))] for name in _SIZES}
    experts = asked.gpus.enable_expert_parallel
    sizes["enable_expert_parallel"] = said.get("enable_expert_parallel", False) if experts is None else experts
    formats = FormatOptions(
        asked.formats.quantization or [said.get("quantization", PUBLISHED)],
        asked.formats.kv_cache_dtype or [said.get("kv_cache_dtype", "auto")],
    )
    longest = said.get("max_model_len")
    load = asked.load if longest is None or asked.load.ctx_max else replace(asked.load, ctx_max=str(longest))
    engine = engine_of(None if asked.engine == _DEFAULT_ENGINE else asked.engine, pasted, _DEFAULT_ENGINE)
    gpus, model = replace(asked.gpus, **sizes), asked.model or pasted.model
    question = PlanQuestion(
        model, load, asked.pattern, gpus, formats, settings, engine, asked.trace, True, asked.fleet, asked.wishes
    )
    return question, pasted.notes


def _check_known(pasted: PastedCommand) -> None:
    named = "--speculative-config" if pasted.speculative_config is not None else None
    unknown = (KNOBS[name].option for name in pasted.settings if name not in (*PLAN_SETTINGS, *_SEARCHED))
    first = next(unknown, named)
    if first is not None:
        raise UsageError(
            f"A plan does not model {first} of the command.",
            hint="leave it out; kvplan estimate -- vllm serve ... sizes it",
        )


def _without(settings: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}
