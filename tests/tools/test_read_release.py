"""tools/read_release.py: facts whose cited source differs between two trees, and no others."""

from __future__ import annotations

from pathlib import Path

from kvplan.catalog.releases.facts import Fact
from read_release import read_sources, registry_changes

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
    after = BEFORE.replace("return 2", "return 3").replace('"A_SWITCH": 1', '"A_SWITCH": 0').replace("LIMIT = 1\n", "")
    for tree, text in (("old", BEFORE), ("new", after)):
        (tmp_path / tree / "engine/core").mkdir(parents=True)
        (tmp_path / tree / "engine/core/config.py").write_text(text, encoding="utf-8")
    expected = {
        "engine/core/config.py: Config.first": "same",
        "engine/core/config.py: Config.second": "changed",
        "engine/core/config.py: Config.share": "same",
        "engine/core/config.py: Config": "changed",
        "engine/core/config.py: LIMIT": "gone",
        "engine/core/config.py: A_SWITCH": "changed",
        "engine/core/config.py": "changed",
        "engine/core: share": "same",
        "engine/core/other.py": "in neither",
    }
    readings = read_sources([_fact(*expected, "pull request 1 of owner/engine")], tmp_path / "old", tmp_path / "new")
    assert {reading.source: reading.outcome for reading in readings} == expected


def test_classes_that_come_and_go_are_listed(tmp_path: Path) -> None:
    for tree, names in (("old", "AForCausalLM BForCausalLM"), ("new", "BForCausalLM CForCausalLM")):
        path = tmp_path / tree / "vllm/model_executor/models/registry.py"
        path.parent.mkdir(parents=True)
        rows = "".join(f'    "{name}": ("file", "{name}"),\n' for name in names.split())
        text = f"_TEXT_GENERATION_MODELS = {{\n{rows}}}\n_PREVIOUSLY_SUPPORTED_MODELS = {{'ZForCausalLM': '0.1.0'}}\n"
        path.write_text(text, encoding="utf-8")
    assert registry_changes(tmp_path / "old", tmp_path / "new") == [("new", "CForCausalLM"), ("gone", "AForCausalLM")]
