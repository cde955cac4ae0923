"""tools/read_release.py: facts whose cited source differs between two trees, and no others."""

from __future__ import annotations

import json
from pathlib import Path

from kvplan.catalog.releases.facts import Fact
from read_release import (
    option_changes,
    read_sources,
    registry_changes,
    unchanged_facts,
    write_registry,
    write_table,
)

BEFORE = """
LIMIT = 1

class Config:
    share: float = 0.9

    def first(self):
        return 1

    def second(self):
        return 2

switches = {"A_SWITCH": 1}
"""


def _fact(*sources: str) -> Fact:
    return Fact("name", "bool", "what", (((0, 0, 0), True),), sources, (0, 1, 0))


def test_only_what_is_cited_is_compared(tmp_path: Path) -> None:
    after = (
        BEFORE.replace("return 2", "return 3")
        .replace('"A_SWITCH": 1', '"A_SWITCH": 0')
        .replace("LIMIT = 1\n", "LATER = 1\n")
    )
    for tree, text in (("old", BEFORE), ("new", after)):
        (tmp_path / tree / "engine/core").mkdir(parents=True)
        (tmp_path / tree / "engine/core/config.py").write_text(text, encoding="utf-8")
    expected = {
        "engine/core/config.py: Config.first": "same",
        "engine/core/config.py: Config.second": "changed",
        "engine/core/config.py: Config.share": "same",
        "engine/core/config.py: Config": "changed",
        "engine/core/config.py: LIMIT": "gone",
        "engine/core/config.py: LATER": "new",
        "engine/core/config.py: A_SWITCH": "changed",
        "engine/core/config.py": "changed",
        "engine/core: share": "same",
        "engine/core/other.py": "in neither",
    }
    readings = read_sources([_fact(*expected, "pull request 1 of owner/engine")], tmp_path / "old", tmp_path / "new")
    assert {reading.source: reading.outcome for reading in readings} == expected


def _registry(tree: Path, *names: str) -> None:
    path = tree / "vllm/model_executor/models/registry.py"
    path.parent.mkdir(parents=True)
    rows = "".join(f'    "{name}": ("file", "{name}"),\n' for name in names)
    text = f"_TEXT_GENERATION_MODELS = {{\n{rows}}}\n_REWARD_MODELS = {{'AForReward': ('file', 'AForReward')}}\n"
    path.write_text(f"{text}_PREVIOUSLY_SUPPORTED_MODELS = {{'ZForCausalLM': '0.1.0'}}\n", encoding="utf-8")


def test_classes_that_come_and_go_are_listed(tmp_path: Path) -> None:
    _registry(tmp_path / "old", "AForCausalLM", "BForCausalLM")
    _registry(tmp_path / "new", "BForCausalLM", "CForCausalLM")
    assert registry_changes(tmp_path / "old", tmp_path / "new") == [
        ("new", "text generation", "CForCausalLM"),
        ("gone", "text generation", "AForCausalLM"),
    ]


def test_options_that_come_and_go_are_listed(tmp_path: Path) -> None:
    for tree, options in (("old", ("--first", "--second")), ("new", ("--second", "--third"))):
        path = tmp_path / tree / "vllm/engine/arg_utils.py"
        path.parent.mkdir(parents=True)
        path.write_text("".join(f"group.add_argument('{option}')\n" for option in options), encoding="utf-8")
    assert option_changes(tmp_path / "old", tmp_path / "new") == [("new", "--third"), ("gone", "--first")]


def test_the_list_of_models_is_written(tmp_path: Path) -> None:
    _registry(tmp_path / "new", "BForCausalLM", "AForCausalLM")
    write_registry(tmp_path / "list.json", tmp_path / "new", "0.2.0")
    written = json.loads((tmp_path / "list.json").read_text(encoding="utf-8"))
    assert written["release"] == "0.2.0"
    kinds = {kind: names for kind, names in written["architectures"].items() if names}
    assert kinds == {"text generation": ["AForCausalLM", "BForCausalLM"], "reward": ["AForReward"]}


def test_what_is_unchanged_counts_as_read_and_the_rest_does_not(tmp_path: Path) -> None:
    """Nor does what was not read through the last release, or cites a source that one tree lacks."""
    for tree, second in (("old", "2"), ("new", "3")):
        (tmp_path / tree / "engine").mkdir(parents=True)
        (tmp_path / tree / "engine/core.py").write_text(f"FIRST = 1\nSECOND = {second}\n", encoding="utf-8")
    sources = {"same": "FIRST", "late": "FIRST", "changed": "SECOND", "gone": "THIRD"}
    facts = [
        Fact(name, "bool", "what", (((0, 0, 0), True),), (f"engine/core.py: {symbol}",), (0, 1, 0))
        for name, symbol in sources.items()
    ]
    unchanged = unchanged_facts(read_sources(facts, tmp_path / "old", tmp_path / "new"))
    rows = [{"fact": name, "read_through": "0.0.9" if name == "late" else "0.1.0"} for name in sources]
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"newest": "0.1.0", "facts": rows}), encoding="utf-8")
    write_table(table, "0.2.0", unchanged)
    document = json.loads(table.read_text(encoding="utf-8"))
    assert document["newest"] == "0.2.0"
    assert {row["fact"]: row["read_through"] for row in document["facts"]} == {
        "same": "0.2.0",
        "late": "0.0.9",
        "changed": "0.1.0",
        "gone": "0.1.0",
    }
