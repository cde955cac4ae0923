"""A prefix cache of any size over a trace: what ``kvplan cache`` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.api.arguments import checks_arguments, frame, named_settings, text, texts
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.commands.printing.caches import csv_rows, print_cache
from kvplan.commands.printing.render import captured
from kvplan.fleet.tiers.answering import answer_cache
from kvplan.fleet.tiers.document import cache_document
from kvplan.fleet.tiers.question import CACHE_SETTINGS, CacheAnswer, LayoutAnswer, cache_question
from kvplan.fleet.tiers.settings_lines import SettingLines, setting_lines
from kvplan.workload.part import file_part

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Cache:
    """What prefix caches of any size find of a trace, and what that saves. ``str()`` is the command's table."""

    answer: CacheAnswer

    @property
    def model(self) -> str:
        """The model that was asked for."""
        return self.answer.model

    @property
    def curves(self) -> tuple[LayoutAnswer, ...]:
        """One for each GPU and KV format, in the order asked for: the pool's hits, host memory of each size, links."""
        return self.answer.layouts

    @property
    def num_requests(self) -> int:
        """Requests of the trace that are counted."""
        return self.answer.num_requests

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all their prompts."""
        return self.answer.num_prompt_tokens

    @property
    def settings(self) -> tuple[SettingLines, ...]:
        """What to paste for each engine, for the first curve's tier."""
        is_shared = self.answer.question.split == "shared"
        return tuple(setting_lines(self.answer.layouts[0], self.answer.model, is_shared=is_shared))

    @property
    def notes(self) -> tuple[str, ...]:
        """How the file was read, one sentence each."""
        return self.answer.notes

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kvplan cache --json`` prints."""
        return cache_document(self.answer)

    def to_frame(self) -> pandas.DataFrame:
        """Return a DataFrame with one row per tier of each curve, the columns of ``--format csv``. Needs pandas."""
        return frame(csv_rows(self.answer))

    def __str__(self) -> str:
        return captured(lambda: print_cache(self.answer, "table"))


@checks_arguments(CACHE_SETTINGS)
def cache(
    trace: str | Path,
    model: str | Path,
    *,
    gpu: str | Iterable[str] | None = None,
    kv_cache_dtype: str | Iterable[str] | None = None,
    max_model_len: int | str | None = None,
    host_memory: int | str | None = None,
    nvme: int | str | None = None,
    host_bandwidth: float | None = None,
    nvme_bandwidth: float | None = None,
    replicas: int = 1,
    router: str = "round-robin",
    start: str | None = None,
    end: str | None = None,
    speed: float | None = None,
    sample: int | None = None,
    trace_unit: str | None = None,
    spread_ticks: bool = False,
    engine: str = "vllm",
    calibration: str | None = None,
    progress: Callable[[str], None] | None = None,
    **settings: Any,
) -> Cache:
    """Size a prefix cache over ``trace`` as ``kvplan cache`` does; arguments are its options.

    host_memory, nvme: bytes of a tier, also as "512GiB". host_bandwidth, nvme_bandwidth: in GB/s. progress: called with
    what is under way. settings: of one replica by vLLM's names, as in ``estimate``. KvplanError for a trace that does
    not say what its prompts share, and for a model that does not fit.
    """
    question = cache_question(
        EngineChoice.parse(engine, known=("vllm",)),
        named_settings(settings),
        gpu=texts(gpu),
        kv_cache_dtype=texts(kv_cache_dtype),
        max_model_len=text(max_model_len),
        host_memory=text(host_memory),
        nvme=text(nvme),
        host_bandwidth=host_bandwidth,
        nvme_bandwidth=nvme_bandwidth,
        replicas=replicas,
        router=router,
    )
    part = file_part(start=start, end=end, speed=speed, sample=sample, trace_unit=trace_unit, spread_ticks=spread_ticks)
    spec, measured = resolve_model(str(model)), load_measured(calibration)
    return Cache(answer_cache(Path(trace), spec, question, part, measured, progress or (lambda _: None)))
