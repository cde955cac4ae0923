"""Prints which architectures are sized, measured, run and compared with transformers, as in ``docs/models.md``.

    python tools/model_table.py            # the table
    python tools/model_table.py --write    # into docs/models.md

What runs is asked of the engine, for each published or small config of an architecture; what is compared is read from
the models of the equality tests (``tests/engine``).
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("agreement", "engine/cases", "engine/equality")]

from small_configs import small_configs  # noqa: E402

from kvplan.catalog.architectures import architectures, by_gguf_name, transformers_architectures  # noqa: E402
from kvplan.catalog.models import profiles  # noqa: E402
from kvplan.catalog.vllm_registry import GENERATING, registered_models, registry_release  # noqa: E402
from kvplan.commands.printing.known import registry_counts  # noqa: E402
from kvplan_engine.checkpoints.config_json import load_model_config  # noqa: E402
from kvplan_engine.checkpoints.families import KNOWN_ARCHITECTURES  # noqa: E402
from kvplan_engine.errors import EngineError  # noqa: E402
from kvplan_engine.models.known_parts import refuse_unknown_parts  # noqa: E402

PAGE = ROOT / "docs" / "models.md"
_MARK = "<!-- table -->\n"
_END = "<!-- end -->\n"
_HEAD = ("architecture", "sized", "capacity measured", "runs natively", "runs through transformers", "tokens equal")


@dataclass(frozen=True, slots=True)
class Row:
    """One architecture. measured: its capacity, with ``load_format="none"``. equal: a test compares its tokens."""

    architecture: str
    sized: bool
    measured: bool
    native: bool
    through_transformers: bool
    equal: bool

    @property
    def cells(self) -> tuple[str, ...]:
        flags = (self.sized, self.measured, self.native, self.through_transformers, self.equal)
        return (self.architecture, *("yes" if flag else "" for flag in flags))


def rows() -> list[Row]:
    """One of every architecture that either side knows, in order of its name."""
    native, equal = native_architectures(), equal_architectures()
    known, measured = architectures(), set(KNOWN_ARCHITECTURES)
    through = transformers_architectures()
    return [
        Row(name, name in known, name in measured, name in native, name in through, name in equal)
        for name in sorted(known.keys() | measured, key=lambda name: (name.casefold(), name))
    ]


def configs() -> Iterable[dict[str, Any]]:
    """Every config of a shipped profile, and small ones of architectures that have none."""
    yield from (profile["config"] for profile in profiles())
    yield from small_configs().values()


def native_architectures() -> set[str]:
    """Those of which the decoder computes at least one config."""
    return {config["architectures"][0] for config in configs() if _runs(config)}


def _runs(config: dict[str, Any]) -> bool:
    try:
        refuse_unknown_parts(load_model_config(config))
    except EngineError:
        return False
    return True


def equal_architectures() -> set[str]:
    """Those that an equality test has a model of: in ``tests/data/small_families.json``, or a wrapper."""
    import transformers
    from small_models import ARCHITECTURES, TABLES
    from test_wrapper_equality import WRAPPERS

    found = {_architecture_of(name.partition("-")[0]) for name in ARCHITECTURES}
    for models in (table for name, table in TABLES.items() if name not in ("small", "others")):
        for model in models.values():
            model_type = getattr(transformers, model.config).model_type
            found.add(model.renamed["config"]["architectures"][0] if model.renamed else _architecture_of(model_type))
    return found | {
        _architecture_of(getattr(transformers, config).model_type, sees=True) for config, *_ in WRAPPERS.values()
    }


def _architecture_of(model_type: str, *, sees: bool = False) -> str:
    """The class that transformers makes of a type of configs. sees: the vision model, where there is a text one too."""
    from transformers.models.auto import modeling_auto

    texts = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    images = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    first, second = (images, texts) if sees else (texts, images)
    return str(first.get(model_type) or second[model_type])


def table(all_rows: Sequence[Row] | None = None) -> str:
    """The counts in one sentence, and the rows (None: as they are now) as Markdown."""
    all_rows = rows() if all_rows is None else all_rows
    sums = [sum(cells[column] == "yes" for cells in (row.cells for row in all_rows)) for column in range(1, len(_HEAD))]
    counted = ", ".join(f"{head} {number}" for head, number in zip(_HEAD[1:], sums, strict=True))
    lines = [f"{len(all_rows)} architectures: {counted}.", "", _line(_HEAD), _line(("---",) * len(_HEAD))]
    return "\n".join([*lines, *(_line(row.cells) for row in all_rows)]) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def page() -> str:
    """``docs/models.md`` with its lists and its table as they are now."""
    text, _, _ = PAGE.read_text(encoding="utf-8").partition(_MARK)
    for name, block in (("gguf", gguf_names()), ("vllm", refused_by_kind())):
        mark = f"<!-- {name} -->\n"
        before, _, behind = text.partition(mark)
        text = f"{before}{mark}{block}{_END}{behind.partition(_END)[2]}"
    return f"{text}{_MARK}{table()}"


def gguf_names() -> str:
    """The names of llama.cpp that stand for an architecture of the table."""
    names = sorted(by_gguf_name())
    said = (
        "A `.gguf` file is sized from its header, as the same layers, caches and parameters that the model's "
        f"config.json gives, for these {len(names)} names of `general.architecture`; of others kvplan refuses the "
        "file by name. Of models that see or hear it is the language model."
    )
    listed = f"{', '.join(f'`{name}`' for name in names)}."
    return (
        "\n\n".join(
            textwrap.fill(block, 128, break_long_words=False, break_on_hyphens=False) for block in (said, listed)
        )
        + "\n"
    )


def refused_by_kind() -> str:
    """How many of vLLM's architectures are sized, and the names of those that generate text and are not."""
    found = list(registered_models())
    refused = {
        kind: [each.architecture for each in found if each.kind == kind and not each.is_sized] for kind in GENERATING
    }
    lists = (
        f"Not sized, {kind}: {', '.join(f'`{name}`' for name in names)}." for kind, names in refused.items() if names
    )
    return "\n\n".join((registry_counts(found, registry_release()), *lists)) + "\n"


def rows_of_page() -> list[Row]:
    """The rows that ``docs/models.md`` shows."""
    _, _, shown = PAGE.read_text(encoding="utf-8").partition(_MARK)
    lines = [line for line in shown.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [Row(name, *(flag == "yes" for flag in flags)) for name, *flags in cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write it into docs/models.md")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(table(), end="")


if __name__ == "__main__":
    main()
