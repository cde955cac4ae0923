"""Where a started server's memory went: what ``kvplan explain`` prints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.api.arguments import checks_arguments, frame, named_settings
from kvplan.catalog.devices.gpus import find_gpu
from kvplan.commands.printing.explanations import print_explanation
from kvplan.commands.printing.render import captured
from kvplan.explaining.document import explanation_document
from kvplan.explaining.explanation import EXPLAIN_SETTINGS, LogAccount, explain_log, of_engine
from kvplan.explaining.reading import named_model, parse_log, read_log

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Explanation:
    """Where the memory of a started server went, beside what was predicted, and what to change."""

    answer: LogAccount

    @property
    def changes(self) -> tuple[str, ...]:
        """What would help, one sentence each."""
        return tuple(change.sentence for change in self.answer.changes)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know of the figures."""
        return self.answer.notes

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kvplan explain --json`` prints."""
        return explanation_document(self.answer)

    def to_frame(self) -> pandas.DataFrame:
        """Return a DataFrame with one row per part of the memory. Needs pandas."""
        return frame(self.to_dict()["memory"])

    def __str__(self) -> str:
        return captured(lambda: print_explanation(self.answer))


@checks_arguments(EXPLAIN_SETTINGS)
def explain(
    log: str | Path,
    *,
    model: str | None = None,
    gpu: str | None = None,
    engine: str | None = None,
    quantization: str = "auto",
    kv_cache_dtype: str = "auto",
    **settings: Any,
) -> Explanation:
    """Account for the memory of a server from its start-up log, as ``kvplan explain`` does.

    log: a Path, or the text itself where it has more than one line; a text of one line is a path. settings: by vLLM's
    names, as in ``estimate``; they count before those of the log. KvplanError where it is no such log.
    """
    is_text = isinstance(log, str) and ("\n" in log or not log.strip())
    found, note = parse_log(str(log).encode(errors="replace"), "The log") if is_text else read_log(Path(log))
    found = of_engine(found, engine)
    spec = named_model(model, found.model)
    given = named_settings(settings, quantization=quantization, kv_cache_dtype=kv_cache_dtype)
    answer = explain_log(found, spec, None if gpu is None else find_gpu(gpu), given)
    return Explanation(answer if note is None else replace(answer, notes=(note, *answer.notes)))
