"""Lists the facts that a new release of an engine may have changed: those whose cited source differs in two trees.

    python tools/read_release.py vllm OLD_TREE NEW_TREE     # two checkouts, or two unpacked wheels
    python tools/read_release.py vllm OLD_TREE NEW_TREE --all

A source is ``path: symbol``. Where the symbol is a definition of the file, only that is compared; where it is not (a
key of vllm/envs.py), the lines that name it are; without a symbol, the whole file or folder. Pull requests and logs are
left out. docs/how-to/add-a-vllm-release.md says what to do with the list.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kvplan.catalog.releases.facts import Fact, load_releases
from kvplan.catalog.releases.sglang import SglangRelease
from kvplan.catalog.releases.trtllm import TrtllmRelease
from kvplan.catalog.releases.versions import release_text
from kvplan.catalog.releases.vllm import VllmRelease

KINDS = {"vllm": VllmRelease, "sglang": SglangRelease, "trtllm": TrtllmRelease}
_REGISTRY = "vllm/model_executor/models/registry.py"
_OTHER_TABLES = {"_PREVIOUSLY_SUPPORTED_MODELS", "_ROCM_UNSUPPORTED_MODELS", "_OOT_SUPPORTED_MODELS"}
_SOURCE = re.compile(r"(?P<path>[\w./-]+/[\w.-]+)(?:: (?P<symbol>[\w.]+))?$")


class Reading(NamedTuple):
    """A cited source in both trees. ``outcome``: same, changed, gone (from the new tree) or not in either."""

    fact: Fact
    source: str
    outcome: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each fact whose source changed, with what it says today and where to look."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=tuple(KINDS))
    parser.add_argument("old", type=Path, metavar="OLD_TREE")
    parser.add_argument("new", type=Path, metavar="NEW_TREE")
    parser.add_argument("--all", action="store_true", help="unchanged sources too")
    chosen = parser.parse_args(arguments)
    readings = read_sources(load_releases(chosen.engine, KINDS[chosen.engine]).facts, chosen.old, chosen.new)
    shown = [reading for reading in readings if chosen.all or reading.outcome in ("changed", "gone")]
    for reading in shown:
        since, value = reading.fact.values[-1]
        print(f"{reading.outcome:8} {reading.fact.name} = {value!r} (since {release_text(since)}): {reading.source}")
    if chosen.engine == "vllm":
        for change, name in registry_changes(chosen.old, chosen.new):
            print(f"{change:8} class of {name}: profiles/architectures.json")
    names = {reading.fact.name for reading in readings if reading.outcome in ("changed", "gone")}
    print(f"{len(names)} of {len({reading.fact.name for reading in readings})} facts to read again")
    return 0


def read_sources(facts: Sequence[Fact], old: Path, new: Path) -> list[Reading]:
    """Compare every cited source that is a path in one of the trees; pull requests and logs are left out."""
    readings = []
    for fact in facts:
        for source in fact.sources:
            if match := _SOURCE.match(source):
                before, after = (_cited(tree / match["path"], match["symbol"]) for tree in (old, new))
                readings.append(Reading(fact, source, _outcome(before, after)))
    return readings


def registry_changes(old: Path, new: Path) -> list[tuple[str, str]]:
    """Architectures that the newer tree alone, or the older one alone, has a class of: ("new" or "gone", name)."""
    before, after = (_registered(tree / _REGISTRY) for tree in (old, new))
    return [("new", name) for name in sorted(after - before)] + [("gone", name) for name in sorted(before - after)]


def _registered(path: Path) -> set[str]:
    """Return the keys of vLLM's tables of models."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    tables = (each for each in body if any(re.fullmatch(r"_\w+_MODELS", name) for name in _names(each)))
    tables = (each for each in tables if not _names(each) & _OTHER_TABLES)
    keys = (key for each in tables if isinstance(value := getattr(each, "value", None), ast.Dict) for key in value.keys)
    return {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def _outcome(before: str | None, after: str | None) -> str:
    if before is None and after is None:
        return "in neither"
    if after is None:
        return "gone"
    return "same" if before == after else "changed"


def _cited(path: Path, symbol: str | None) -> str | None:
    """Return the text that is cited, None where the file or the symbol is not there."""
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.is_file() else []
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    if symbol is None or not text:
        return text or None
    definition = _definition(text, symbol) if path.is_file() else None
    return definition or "\n".join(line for line in text.splitlines() if symbol in line) or None


def _definition(text: str, symbol: str) -> str | None:
    body: list[ast.stmt] = ast.parse(text).body
    found: ast.stmt | None = None
    for part in symbol.split("."):
        found = next((statement for statement in body if part in _names(statement)), None)
        if found is None:
            return None
        body = getattr(found, "body", [])
    return ast.get_source_segment(text, found) if found is not None else None


def _names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement defines."""
    if isinstance(statement, ast.Assign):
        return {target.id for target in statement.targets if isinstance(target, ast.Name)}
    if isinstance(statement, ast.AnnAssign):
        return {statement.target.id} if isinstance(statement.target, ast.Name) else set()
    name = getattr(statement, "name", None)
    return {name} if isinstance(name, str) else set()


if __name__ == "__main__":
    sys.exit(main())
