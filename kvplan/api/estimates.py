"""How large a model is, and how many sequences of it fit: what ``kvplan estimate`` prints."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.api.arguments import checks_arguments, frame, named_settings, texts
from kvplan.catalog.devices.gpus import DEFAULT_GPUS, GpuCount, parse_gpu_count
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.commands.printing.estimate_rows import csv_rows
from kvplan.commands.printing.estimates import print_estimates
from kvplan.commands.printing.render import OutputFormat, captured
from kvplan.errors import UsageError
from kvplan.estimate.answer import EstimateAnswer
from kvplan.estimate.document import estimate_document
from kvplan.estimate.placed.placement import SizedDeployment
from kvplan.estimate.question import ESTIMATE_SETTINGS, Question, answer_question, notes_on, with_kernels
from kvplan.explaining.learned import basis_of
from kvplan.units import parse_tokens

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Estimate:
    """How large a model is, and how many sequences of it fit on each GPU. ``str()`` is the command's table."""

    answer: EstimateAnswer

    @property
    def model(self) -> str:
        """The model that was asked for."""
        return self.answer.spec.served_id

    @property
    def context_tokens(self) -> int:
        """Tokens of one sequence."""
        return self.answer.context_tokens

    @property
    def num_parameters(self) -> int:
        """Parameters of the language model as it is served."""
        return self.answer.spec.num_parameters

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, over all GPUs."""
        return self.answer.weights.total_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache that one more token costs beyond every window."""
        return self.answer.kept.bytes_per_token

    @property
    def deployments(self) -> tuple[SizedDeployment, ...]:
        """One for each GPU, in the order asked for."""
        return self.answer.deployments

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions that change what the numbers mean, one sentence each."""
        return tuple(notes_on(self.answer))

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kvplan estimate --json`` prints."""
        return estimate_document(self.answer)

    def to_frame(self) -> pandas.DataFrame:
        """Return a DataFrame with one row per deployment, the columns of ``--format csv``. Needs pandas."""
        return frame(csv_rows(self.answer))

    def __str__(self) -> str:
        return captured(lambda: print_estimates([self.answer], OutputFormat.table))


@checks_arguments(ESTIMATE_SETTINGS)
def estimate(
    model: str | Path | None = None,
    *,
    gpu: str | Iterable[str] | None = None,
    ctx: int | str | None = None,
    max_model_len: int | str | None = None,
    quantization: str = "auto",
    kv_cache_dtype: str = "auto",
    engine: str = "vllm",
    assume: Mapping[str, object] | None = None,
    speculative_config: Mapping[str, Any] | None = None,
    from_log: str | Path | None = None,
    calibration: str | None = None,
    measured: str | Path | Iterable[str | Path] | None = None,
    **settings: Any,
) -> Estimate:
    """Size ``model`` as ``kvplan estimate`` does.

    gpu: names such as "h100" or "8xh200", by default a handful of common ones. ctx: tokens per sequence, also as "16k";
    max_model_len is vLLM's name for it. settings: the command's other options by vLLM's names, such as
    ``gpu_memory_utilization=0.95``, as numbers or as text ("80GiB"). from_log: a start-up log of vLLM, whose memory,
    settings, model and GPU count where nothing else is said. measured: results of your server that speeds are scaled
    by. KvplanError where it cannot be answered; a model that does not fit is an answer.
    """
    choice = EngineChoice.parse(engine)
    if model is None and from_log is None:
        raise UsageError("No model is given.", hint='for example kvplan.estimate("llama-3.1-8b")')
    spec = None if model is None else resolve_model(str(model), assumptions=_texts(assume))
    named = [parse_gpu_count(name) for name in texts(gpu)]
    asked = named_settings(settings, speculative_config, quantization=quantization, kv_cache_dtype=kv_cache_dtype)
    if ctx is not None and max_model_len is not None:
        raise UsageError("ctx cannot be used with max_model_len.", hint="give one of them; they mean the same here")
    tokens = max_model_len if ctx is None else ctx
    learned = None
    if from_log is not None:
        basis = basis_of(Path(from_log), spec, _only(named), choice, asked)
        learned, asked, gpus, choice = basis.learned, basis.settings, [GpuCount(1, basis.gpu)], basis.engine
        spec = basis.spec
        tokens = tokens if tokens is not None else next(iter(basis.contexts), None)
    else:
        assert spec is not None
        gpus = named or with_kernels([parse_gpu_count(name) for name in DEFAULT_GPUS], spec, choice)
    question = Question(None if tokens is None else parse_tokens(str(tokens)), asked)
    known, paths = load_measured(calibration), [Path(each) for each in texts(measured)]
    if paths:
        from kvplan.calibrate.own_server import of_estimate, with_results

        known = with_results(known, paths, of_estimate(spec, asked, gpus, choice))
    return Estimate(answer_question(spec, question, gpus, choice, known, learned))


def _texts(assume: Mapping[str, object] | None) -> dict[str, str]:
    """Values for keys of the config as ``--assume`` has them: JSON."""
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in (assume or {}).items()}


def _only(gpus: Sequence[GpuCount]) -> GpuCount | None:
    if len(gpus) > 1:
        raise UsageError("from_log is about one model on one kind of GPU.", hint="name one")
    return gpus[0] if gpus else None
