"""Facts of engines by release: typed rows, values from a release on, and SGLang's."""

from __future__ import annotations

import ast
import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from kvplan.catalog.releases.facts import FactError, load_releases, table_of
from kvplan.catalog.releases.sglang import SglangRelease, sglang_release
from kvplan.catalog.releases.trtllm import TrtllmRelease
from kvplan.catalog.releases.vllm import VllmRelease, latest_vllm, vllm_release
from kvplan.paths import profiles_dir
from kvplan.units import GIB

PACKAGE = Path(__file__).resolve().parents[2] / "kvplan"
TABLES = {"vllm": VllmRelease, "sglang": SglangRelease, "trtllm": TrtllmRelease}


@dataclass(frozen=True, slots=True)
class _Release:
    version: tuple[int, int, int]
    share: float
    kernel: Literal["old", "new"]
    names: tuple[str, ...]


def _row(fact: str, type_text: str, values: dict[str, Any], **more: Any) -> dict[str, Any]:
    common = {"what": "something", "sources": ["a/file.py: name"], "read_through": "0.3.0"}
    return {"fact": fact, "type": type_text, "values": values, **common, **more}


DOCUMENT = {
    "oldest": "0.1.0",
    "newest": "0.3.0",
    "facts": [
        _row("share", "float", {"0.0.0": 1, "0.2.0": 0.5}),
        _row("kernel", '"old" | "new"', {"0.0.0": "old", "0.2.1": "new"}),
        _row("names", "list[str]", {"0.0.0": ["a"], "0.3.0": ["b"]}, grows=True),
    ],
}


def test_a_value_holds_from_its_release_on() -> None:
    table = table_of(DOCUMENT, _Release)
    assert table.at((0, 1, 9)) == _Release((0, 1, 9), 1.0, "old", ("a",))
    assert table.at((0, 2, 0)) == _Release((0, 2, 0), 0.5, "old", ("a",))
    assert table.at(None) == table.at((0, 3, 0)) == _Release((0, 3, 0), 0.5, "new", ("a", "b"))


@pytest.mark.parametrize(
    ("index", "change", "said"),
    [
        (0, {"fact": "shaer"}, "no class has a fact 'shaer'"),
        (0, {"type": "int"}, "'share' is said to be int, and its class says float"),
        (0, {"values": {"0.0.0": "1"}}, "'share' is '1' from 0.0.0 on, which is no float"),
        (0, {"values": {"0.0.0": True}}, "'share' is True from 0.0.0 on, which is no float"),
        (0, {"values": {"0.2.0": 0.5}}, "'share' has no value from 0.0.0 on"),
        (0, {"values": {"0.0.0": 1, "0.2.0": 0.5, "0.1.0": 0.7}}, "releases of 'share' do not rise"),
        (0, {"values": {"0.0.0": 1, "0.2.0": 1}}, "'share' does not change in 0.2.0"),
        (1, {"values": {"0.0.0": "odd"}}, "'kernel' is 'odd' from 0.0.0 on"),
        (2, {"fact": "share", "type": "float", "values": {"0.0.0": 1}}, "the table has no fact 'names'"),
        (2, {"values": {"0.0.0": [1]}}, "'names' is [1] from 0.0.0 on, which is no list[str]"),
        (2, {"sources": []}, "'names' needs a source"),
        (2, {"read_through": "0.4.0"}, "'names' needs a source, what it says, and the release in which that was read"),
        (2, {"since": "0.1.0"}, "'names' must have"),
    ],
)
def test_a_wrong_row_fails_at_once(index: int, change: dict[str, Any], said: str) -> None:
    document = copy.deepcopy(DOCUMENT)
    document["facts"][index].pop("grows", None)
    document["facts"][index].update(change)
    with pytest.raises(FactError) as raised:
        table_of(document, _Release)
    assert said in str(raised.value)


@pytest.mark.parametrize("engine", TABLES)
def test_every_shipped_table_fits_its_class(engine: str) -> None:
    table = load_releases(engine, TABLES[engine])
    assert table.oldest < table.newest
    assert table.at(None).version == table.newest


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("vllm-registry.json", "python tools/read_release.py vllm OLD_TREE NEW_TREE --write RELEASE"),
        ("releases/vllm-options.json", "add its options, then the release (docs/how-to/add-a-vllm-release.md)"),
    ],
)
def test_lists_beside_the_table_are_of_the_same_release(path: str, hint: str) -> None:
    document = json.loads((profiles_dir() / path).read_text(encoding="utf-8"))
    assert document["release"] == latest_vllm(), f"profiles/{path}: {hint}"


def test_what_is_not_known_yet_has_the_facts_of_the_newest() -> None:
    assert vllm_release("0.99") is vllm_release("latest") is vllm_release("0.1.dev18496+gabc")
    assert vllm_release("latest").text == latest_vllm()


_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def _compares_releases(node: ast.AST) -> bool:
    """Whether ``node`` orders releases, or writes the number of one down."""
    if isinstance(node, ast.Compare) and any(isinstance(order, _ORDERS) for order in node.ops):
        sides = (node.left, *node.comparators)
        return any(_is_number(side) or (isinstance(side, ast.Attribute) and side.attr == "version") for side in sides)
    return isinstance(node, (ast.Assign, ast.AnnAssign)) and _is_number(node.value)


def _is_number(node: ast.AST | None) -> bool:
    """Whether ``node`` is (0, 19, 0) or the like."""
    parts = [part.value for part in node.elts if isinstance(part, ast.Constant)] if isinstance(node, ast.Tuple) else []
    return len(parts) == 3 and parts[0] == 0 and all(type(part) is int for part in parts)


def test_only_the_tables_compare_releases() -> None:
    """A figure that changed with a release is a fact, with its source; code asks for it by name."""
    found = [
        f"{path.relative_to(PACKAGE.parent)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if "releases" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if _compares_releases(node)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("version", "gib", "chunk", "one", "four"),
    [
        *(("latest", 16, 2048, 8, 8), ("latest", 24, 4096, 48, 160), ("latest", 40, 4096, 32, 160)),
        *(("latest", 80, 8192, 256, 512), ("latest", 180, 16384, 512, 512)),
        # releases between captured smaller steps
        *(("0.4.6", 141, 8192, 256, 256), ("0.5.2", 24, 2048, 8, 80), ("0.5.2", 80, 8192, 160, 160)),
        *(("0.5.2", 141, 8192, 256, 256), ("0.5.2", 180, 16384, 512, 512), ("0.5.3", 24, 2048, 16, 80)),
        ("0.5.19", 32, 2048, 24, 80),
        # the first ones knew two sizes of GPUs
        *(("0.4.3", 24, 2048, 8, 80), ("0.4.3", 40, 8192, 160, 160), ("0.4.3", 141, 8192, 160, 160)),
    ],
)
def test_larger_gpus_read_more_at_once_and_capture_larger_steps(
    version: str, gib: int, chunk: int, one: int, four: int
) -> None:
    release = sglang_release(version)
    assert release.chunked_prefill_tokens(gib * GIB) == chunk
    assert [release.largest_graph_rows(gib * GIB, ranks) for ranks in (1, 3, 4, 8)] == [one, one, four, four]


def test_steps_larger_than_the_seats_are_captured_before_0_5_22_alone() -> None:
    rows = [sglang_release(version).largest_graph_rows(80 * GIB, 1, 64) for version in ("0.5.21", "0.5.22")]
    assert rows == [256, 64]
    assert sglang_release("0.5.22").largest_graph_rows(80 * GIB, 1, 1000) == 256


def test_groups_share_a_chunk_but_had_half_of_it_each_before() -> None:
    newest, before, since = sglang_release(), sglang_release("0.4.3"), sglang_release("0.4.5")
    assert (newest.group_prefill_tokens(8192, 8), since.group_prefill_tokens(8192, 8)) == (1024, 1024)
    assert (before.group_prefill_tokens(8192, 8), before.group_prefill_tokens(8192, 1)) == (4096, 8192)
    releases = [sglang_release(version) for version in ("0.4.4", "0.4.5", "latest")]
    assert [release.attends_on_each_gpu for release in releases] == [True, False, False]
