"""What a plan is asked, as people write it; ``--like "vllm serve ..."``: keeping a running deployment's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.speculation.config import with_speculative_config
from kvplan.errors import UsageError
from kvplan.estimate.question import engine_of, with_pasted
from kvplan.pasted.command import PastedCommand, read_command
from kvplan.planner.choices.formats import PUBLISHED
from kvplan.planner.question.asking import PLAN_SETTINGS, plan_request
from kvplan.planner.question.request import PlanRequest
from kvplan.settings import KNOBS, ServingSettings

_DEFAULT_ENGINE: Final = "vllm"
_SIZES: Final = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_SEARCHED: Final = (*_SIZES, "enable_expert_parallel", "quantization", "kv_cache_dtype", "max_model_len")
"""Settings of a command that are options of a plan's own."""
_OF_THE_DRAFTER: Final = (
    "num_speculative_tokens",
    "speculative_method",
    "speculative_model",
    "acceptance_rate",
)


@dataclass(frozen=True)
class AskedPlan:
    """The options of ``plan`` that ask for something.

    options: arguments of ``plan_request``. speculative_config: JSON."""

    model: str | None
    settings: ServingSettings
    options: Mapping[str, Any] = field(default_factory=dict)
    engine: str = _DEFAULT_ENGINE
    speculative_config: str | None = None
    as_started: bool = False

    @property
    def named_model(self) -> str:
        """The model. UsageError where none is named."""
        if self.model is None:
            raise UsageError("Missing argument 'MODEL'.", hint="name a model, or give a command with --like")
        return self.model

    def request(self) -> PlanRequest:
        """The question that they ask. A file with times is played as it is, where no other load is given."""
        choice = EngineChoice.parse(self.engine, known=("vllm",))
        settings = with_speculative_config(self.settings, self.speculative_config)
        found = plan_request(choice, settings, **self.options, plays_trace=True)
        return replace(found, as_started=self.as_started)

    def without_command(self, kept: AskedPlan, longest: int | None) -> AskedPlan:
        """Return this question for the release of ``kept``, which has a command's settings, with the same drafter.

        ``longest``: tokens of a sequence, where nothing is said.
        """
        options = dict(self.options)
        options["ctx_max"] = options.get("ctx_max") or (None if longest is None else str(longest))
        drafter = {name: getattr(kept.settings, name) for name in _OF_THE_DRAFTER}
        return replace(self, engine=kept.engine, options=options, settings=replace(self.settings, **drafter))


class Likened(NamedTuple):
    """A question with a command's settings, and notes on what of the command is not modelled."""

    asked: AskedPlan
    notes: list[str]


def likened(asked: AskedPlan, command: str) -> Likened:
    """``asked`` with the command's settings where nothing else is said.

    UsageError where the command sets something that a plan does not know.
    """
    pasted = read_command(command)
    said, own = pasted.settings, asked.options
    _check_known(pasted)
    kept = {name: value for name, value in said.items() if name not in _SEARCHED}
    settings = with_pasted(asked.settings, replace(pasted, settings=kept), asked.speculative_config)
    options = dict(own)
    for name in _SIZES:
        options[name] = own.get(name) or [str(said.get(name, 1))]
    if own.get("enable_expert_parallel") is None:
        options["enable_expert_parallel"] = said.get("enable_expert_parallel", False)
    options["quantization"] = own.get("quantization") or [said.get("quantization", PUBLISHED)]
    options["kv_cache_dtype"] = own.get("kv_cache_dtype") or [said.get("kv_cache_dtype", "auto")]
    longest = said.get("max_model_len")
    options["ctx_max"] = own.get("ctx_max") or (None if longest is None else str(longest))
    engine = engine_of(None if asked.engine == _DEFAULT_ENGINE else asked.engine, pasted, _DEFAULT_ENGINE)
    return Likened(AskedPlan(asked.model or pasted.model, settings, options, engine, as_started=True), pasted.notes)


def _check_known(pasted: PastedCommand) -> None:
    unknown = (KNOBS[name].option for name in pasted.settings if name not in (*PLAN_SETTINGS, *_SEARCHED))
    first = next(unknown, None)
    if first is not None:
        raise UsageError(
            f"A plan does not model {first} of the command.",
            hint="leave it out; kvplan estimate -- vllm serve ... sizes it",
        )
