"""Lists the facts that a new release of an engine may have changed: those whose cited source differs in two trees.

    python tools/read_release.py vllm OLD_TREE NEW_TREE     # two checkouts, or two unpacked wheels
    python tools/read_release.py vllm OLD_TREE NEW_TREE --diff
    python tools/read_release.py vllm OLD_TREE NEW_TREE --write 0.34.0

A source is ``path: symbol``. Where the symbol is a definition of the file, only that is compared; where it is not (a
key of vllm/envs.py), the lines that name it are; without a symbol, the whole file or folder. Pull requests and logs are
left out. ``--write`` does what takes no judgement: it names the release in the table, marks the facts whose sources are
the same as read through it, and of vLLM writes the list of models. docs/how-to/add-a-vllm-release.md says the rest.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kvplan.catalog.architectures import architectures
from kvplan.catalog.releases.facts import Fact, load_releases, release_text
from kvplan.catalog.releases.sglang import SglangRelease
from kvplan.catalog.releases.trtllm import TrtllmRelease
from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.pasted.options import vllm_options
from kvplan.paths import profiles_dir

KINDS = {"vllm": VllmRelease, "sglang": SglangRelease, "trtllm": TrtllmRelease}
_REGISTRY = "vllm/model_executor/models/registry.py"
_TABLES = {
    "_TEXT_GENERATION_MODELS": "text generation",
    "_EMBEDDING_MODELS": "embedding",
    "_LATE_INTERACTION_MODELS": "late interaction",
    "_REWARD_MODELS": "reward",
    "_TOKEN_CLASSIFICATION_MODELS": "token classification",
    "_SEQUENCE_CLASSIFICATION_MODELS": "sequence classification",
    "_MULTIMODAL_MODELS": "multimodal",
    "_SPECULATIVE_DECODING_MODELS": "drafter",
    "_TRANSFORMERS_SUPPORTED_MODELS": "transformers backend",
}
_OTHER_TABLES = {
    "_PREVIOUSLY_SUPPORTED_MODELS",
    "_ROCM_UNSUPPORTED_MODELS",
    "_OOT_SUPPORTED_MODELS",
    "_TRANSFORMERS_BACKEND_MODELS",
    "_VLLM_MODELS",
}
"""What is refused, what is all of them, and the classes that run a model of transformers, which no config names."""
_OPTIONS = ("vllm/engine/arg_utils.py", "vllm/entrypoints/common/cli_args.py", "vllm/utils/argparse_utils.py")
_OPTION = re.compile(r"[\"'](--[a-z0-9-]+[a-z0-9])[\"']")
_SOURCE = re.compile(r"(?P<path>[\w./-]+/[\w.-]+)(?:: (?P<symbol>[\w.]+))?$")


class Reading(NamedTuple):
    """A cited source in both trees. ``outcome``: same, changed, new (in the new tree only), gone or in neither."""

    fact: Fact
    source: str
    outcome: str
    before: str
    after: str

    @property
    def is_to_be_read(self) -> bool:
        return self.outcome in ("changed", "new", "gone")


class ModelClass(NamedTuple):
    """An architecture that one of the trees alone has a class of. ``change``: new or gone."""

    change: str
    kind: str
    name: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each fact whose source changed, with what it says today and where to look."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=tuple(KINDS))
    parser.add_argument("old", type=Path, metavar="OLD_TREE")
    parser.add_argument("new", type=Path, metavar="NEW_TREE")
    parser.add_argument("--all", action="store_true", help="unchanged sources too")
    parser.add_argument("--diff", action="store_true", help="what changed in each source")
    parser.add_argument("--write", metavar="RELEASE", help="mark what is unchanged as read through this release")
    chosen = parser.parse_args(arguments)
    readings = read_sources(load_releases(chosen.engine, KINDS[chosen.engine]).facts, chosen.old, chosen.new)
    for reading in readings:
        if chosen.all or reading.is_to_be_read:
            since, value = reading.fact.values[-1]
            print(
                f"{reading.outcome:8} {reading.fact.name} = {value!r} (since {release_text(since)}): {reading.source}"
            )
            if chosen.diff:
                print(_diff(reading))
    if chosen.engine == "vllm":
        for model in registry_changes(chosen.old, chosen.new):
            print(_what_to_do(model))
        for change, option in option_changes(chosen.old, chosen.new):
            listed = "listed" if option.removeprefix("--") in vllm_options().kinds else "not listed"
            print(f"{change:8} option {option}: {listed} in profiles/releases/vllm-options.json")
    if chosen.write:
        write_table(profiles_dir() / "releases" / f"{chosen.engine}.json", chosen.write, unchanged_facts(readings))
        if chosen.engine == "vllm":
            write_registry(profiles_dir() / "vllm-registry.json", chosen.new, chosen.write)
    names = {reading.fact.name for reading in readings if reading.is_to_be_read}
    print(f"{len(names)} of {len({reading.fact.name for reading in readings})} facts to read again")
    return 0


def read_sources(facts: Sequence[Fact], old: Path, new: Path) -> list[Reading]:
    """Compare every cited source that is a path in one of the trees; pull requests and logs are left out."""
    readings = []
    for fact in facts:
        for source in fact.sources:
            if match := _SOURCE.match(source):
                before, after = (_cited(tree / match["path"], match["symbol"]) for tree in (old, new))
                readings.append(Reading(fact, source, _outcome(before, after), before or "", after or ""))
    return readings


def unchanged_facts(readings: Sequence[Reading]) -> set[str]:
    """Names of the facts of which every source that is a path is the same in both trees."""
    doubtful = {reading.fact.name for reading in readings if reading.outcome != "same"}
    return {reading.fact.name for reading in readings} - doubtful


def registry_changes(old: Path, new: Path) -> list[ModelClass]:
    """Architectures that the newer tree alone, or the older one alone, has a class of."""
    before, after = ({name: kind for kind, name in registered(tree)} for tree in (old, new))
    return [
        *(ModelClass("new", after[name], name) for name in sorted(after.keys() - before)),
        *(ModelClass("gone", before[name], name) for name in sorted(before.keys() - after)),
    ]


def _what_to_do(each: ModelClass) -> str:
    if each.name not in architectures():
        told = "no row in profiles/architectures.json"
    else:
        told = f'its row in profiles/architectures.json: "{"first" if each.change == "new" else "last"}" of "vllm"'
    return f"{each.change:8} class of {each.name} ({each.kind}): {told}"


def registered(tree: Path) -> list[tuple[str, str]]:
    """Return what is in vLLM's tables of models, as (kind, name); some names are in two of them."""
    path = tree / _REGISTRY
    found: list[tuple[str, str]] = []
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        value = getattr(statement, "value", None)
        table = next((name for name in _names(statement) if re.fullmatch(r"_\w+_MODELS", name)), None)
        if table is None or table in _OTHER_TABLES or not isinstance(value, ast.Dict):
            continue
        if table not in _TABLES:
            raise SystemExit(f"{path} has a table {table}, which tools/read_release.py does not know.")
        names = {key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
        found += [(_TABLES[table], name) for name in sorted(names)]
    return found


def option_changes(old: Path, new: Path) -> list[tuple[str, str]]:
    """Options of ``vllm serve`` that the newer tree alone, or the older one alone, names: ("new" or "gone", option)."""
    before, after = (
        {option for path in _OPTIONS for option in _OPTION.findall(_cited(tree / path, None) or "")}
        for tree in (old, new)
    )
    return [("new", name) for name in sorted(after - before)] + [("gone", name) for name in sorted(before - after)]


def write_table(path: Path, release: str, unchanged: set[str]) -> None:
    """Name ``release`` as the newest, and say of unchanged facts that were read up to the last one that they hold."""
    text = path.read_text(encoding="utf-8")
    newest = json.loads(text)["newest"]
    text = text.replace(f'"newest": "{newest}"', f'"newest": "{release}"', 1)
    for name in unchanged:
        row = re.compile(rf'("fact": "{name}",.*?"read_through": )"{re.escape(newest)}"', re.DOTALL)
        found = row.search(text)
        if found is not None and found.group().count('"fact":') == 1:
            text = f'{text[: found.start()]}{found[1]}"{release}"{text[found.end() :]}'
    path.write_text(text, encoding="utf-8")


def write_registry(path: Path, tree: Path, release: str) -> None:
    """Write the models that ``tree`` has a class of, kind by kind."""
    models = registered(tree)
    blocks = []
    for kind in dict.fromkeys(_TABLES.values()):
        names = ", ".join(f'"{name}"' for name in sorted({name for of, name in models if of == kind}))
        lines = textwrap.fill(names, 115, break_long_words=False, break_on_hyphens=False)
        blocks.append(f'  "{kind}": [\n{textwrap.indent(lines, "   ")}\n  ]')
    head = f' "schema": "kvplan.vllm_registry/1",\n "release": "{release}",\n "source": "{_REGISTRY}",\n'
    text = f'{{\n{head} "architectures": {{\n' + ",\n".join(blocks) + "\n }\n}\n"
    path.write_text(text, encoding="utf-8")


def _diff(reading: Reading) -> str:
    lines = difflib.unified_diff(reading.before.splitlines(), reading.after.splitlines(), lineterm="", n=2)
    return textwrap.indent("\n".join(list(lines)[2:]), " " * 4)


def _outcome(before: str | None, after: str | None) -> str:
    if before is None and after is None:
        return "in neither"
    if after is None:
        return "gone"
    if before is None:
        return "new"
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
