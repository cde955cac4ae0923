"""Parameter counts by formula against an independent count: every shipped profile, and litgpt's shapes.

    python tools/count_parameters.py [NAME ...]

Prints one line per model and ends with the number of exact ones; differences are explained by name, anything else
makes the exit code 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from independent_count import count_independently  # noqa: E402
from kvplan.catalog.models import profiles, read_profile  # noqa: E402
from kvplan.catalog.reader import read_config  # noqa: E402
from kvplan.catalog.spec import ModelSpec  # noqa: E402
from litgpt_shapes import load_shapes, to_config  # noqa: E402

NOT_IN_TRANSFORMERS = {
    "ChatGLMModel": "its code comes with the checkpoint; 6,243,584,000 by its index's total size",
    "DeciLMForCausalLM": "its code comes with the checkpoint",
    "DeepseekV41ForCausalLM": "counted after vLLM's class in the tests",
    "DeepseekForCausalLM": "its code comes with the checkpoint",
    "InternLM2ForCausalLM": "its code comes with the checkpoint; 7,737,708,544 by its index's total size",
    "MiniMaxText01ForCausalLM": "counted as MiniMaxForCausalLM in the tests",
    "Phi3VForCausalLM": "its code comes with the checkpoint",
    "QWenLMHeadModel": "its code comes with the checkpoint; 7,721,324,544 by its index's total size",
}
"""Architectures that transformers does not build from a config alone."""

EXPLAINED = {
    "Mistral3ForConditionalGeneration": "transformers ties the head when the config is silent; published untied",
    "WhisperForConditionalGeneration": "transformers counts the audio encoder in; here it is counted apart",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One model counted twice. ``independent`` is None where nothing independent can build it."""

    name: str
    ours: int
    independent: int | None
    remark: str = ""

    @property
    def is_exact(self) -> bool:
        return self.ours == self.independent

    @property
    def is_explained(self) -> bool:
        return self.is_exact or bool(self.remark)


def compare(name: str, spec: ModelSpec, config: dict[str, Any]) -> Comparison:
    """Count ``config`` with transformers and compare with ``spec``."""
    missing = NOT_IN_TRANSFORMERS.get(spec.architecture)
    if missing is not None:
        return Comparison(name, spec.num_parameters, None, missing)
    counted = count_independently(config)
    independent = counted.num_parameters + counted.num_corrections
    remark = EXPLAINED.get(spec.architecture, "") if independent != spec.num_parameters else ""
    return Comparison(name, spec.num_parameters, independent, remark)


def all_models() -> Iterator[tuple[str, ModelSpec, dict[str, Any]]]:
    """Every shipped profile, then every shape of litgpt that has a family here."""
    for profile in profiles():
        yield profile["name"], read_profile(profile), profile["config"]
    for shape in load_shapes():
        try:
            config = to_config(shape)
        except KeyError:
            continue
        yield f"litgpt {shape['id']}", read_config(config, model_id=shape["id"]), config


def main(names: list[str]) -> int:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    found = []
    for name, spec, config in all_models():
        if names and not any(part in name for part in names):
            continue
        row = compare(name, spec, config)
        found.append(row)
        independent = "not counted" if row.independent is None else f"{row.independent:,}"
        verdict = "exact" if row.is_exact else (row.remark or "DIFFERENT")
        print(f"{row.name:48s} {row.ours:>21,} {independent:>21}  {verdict}", flush=True)
    exact = sum(row.is_exact for row in found)
    unexplained = [row.name for row in found if not row.is_explained]
    print(
        f"{len(found)} models: {exact} exact, {len(found) - exact - len(unexplained)} explained by name, "
        f"{len(unexplained)} different: {', '.join(unexplained) or 'none'}"
    )
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
