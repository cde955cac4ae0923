"""Runs a command of ``kvplan`` in this process, and says whether its answer is one that a user should see."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

from fuzz.harness import Fault
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.errors import KvplanError
from kvplan.estimate.weights import size_weights

SECONDS_PER_CASE = 60.0
"""What answers within a second is not taken for hung on a machine that does much else."""
_MAY_BE_NEGATIVE = ("kv_pool_bytes", "logged_bytes", "predicted_bytes")
"""What is left for the cache, which may be less than nothing."""


@contextmanager
def without_the_hub() -> Iterator[None]:
    """Keep names that are made up from being looked up on the Hugging Face hub."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def run_command(words: Sequence[str]) -> str:
    """Run it, and return ``answered`` or ``refused``. Fault for an answer with figures that are none."""
    output, errors = StringIO(), StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = main(words)
    if code != 0:
        _check_refusal(code, output.getvalue(), errors.getvalue())
        return "refused"
    if "--json" in words:
        check_figures(json.loads(output.getvalue(), parse_constant=_not_json))
    elif not output.getvalue():
        raise Fault(f"{words} says nothing")
    return "answered"


def read_by_the_planner(model: Path, *, whole: bool) -> str:
    """Size the model, or with ``whole`` run the command line with all figures; ``answered`` or ``refused``."""
    if whole:
        return run_command(("estimate", str(model), "--gpu", "l4", "--json"))
    try:
        size_weights(resolve_model(str(model)), "bfloat16")
    except KvplanError:
        return "refused"
    return "answered"


def _check_refusal(code: int, output: str, errors: str) -> None:
    said = [line for line in errors.splitlines() if not line.startswith(("note: ", "  "))]
    if code not in (1, 2) or (not output and not errors.count("error: ")):
        raise Fault(f"exit code {code}, and no sentence: {errors[:300]!r}")
    if any("Traceback" in line for line in said):
        raise Fault(errors[-3000:])


def check_figures(document: Any) -> None:
    """Fault for a number that is not finite, or below 0 where nothing can be."""
    for place, number in _numbers(document, ""):
        if not math.isfinite(number):
            raise Fault(f"{place} is {number}")
        if number < 0 and not place.startswith("/model/") and not any(name in place for name in _MAY_BE_NEGATIVE):
            raise Fault(f"{place} is {number:g}")


def _numbers(document: Any, place: str) -> Iterator[tuple[str, float]]:
    if isinstance(document, dict):
        for key, value in document.items():
            yield from _numbers(value, f"{place}/{key}")
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from _numbers(value, f"{place}/{index}")
    elif isinstance(document, (int, float)) and not isinstance(document, bool):
        yield place, document


def _not_json(constant: str) -> NoReturn:
    raise Fault(f"the answer holds {constant}, which is not JSON")
