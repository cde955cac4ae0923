"""What real vLLM allocated on a GPU that was not there, beside the prediction; `python tools/rehearse_startups.py`."""

from __future__ import annotations

import pytest

from kvplan.catalog.releases.vllm import vllm_release
from kvplan.units import MIB
from rehearse_startups import ROOT, Case, load_cases, predict, summarise

CASES = load_cases()
_FLOOR, _SHARE = 64 * MIB, 0.003
"""A case is off by at most 64 MiB, or by 0.3 % of what PyTorch holds, whichever is more; its weights alone alike."""

KNOWN_GAPS: dict[str, str] = {
    "gpt-oss-20b-rtx-4090-0.28.0-tp2": "66 MiB of freed pieces stay; before 0.29.0 several ranks are not replayed",
}
"""Cases that are off by more, and why."""

_PIECE = 8 * MIB
"""What is pinned is replayed to a piece as large as cuBLAS's workspace where a release counts it."""
ROUGH_REPLAYS = ("qwen3-30b-a3b-a100-80gb-0.29.0-tp2", "qwen3-30b-a3b-a100-80gb-0.29.0-tp2-ep")
"""31.9 MiB by the replay, and 11.9 in fact: cause not known."""


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_predicts_what_pytorch_holds_beside_the_kv_cache(case: Case, request: pytest.FixtureRequest) -> None:
    if case["id"] in KNOWN_GAPS:
        request.applymarker(pytest.mark.xfail(reason=KNOWN_GAPS[case["id"]], strict=True))
    measured, found = case["measured"], predict(case)
    assert found.non_kv == pytest.approx(measured["non_kv"], abs=_FLOOR, rel=_SHARE)
    assert found.weights == pytest.approx(measured["weights"], abs=_FLOOR, rel=_SHARE)
    if "pinned" in measured:  # the first cases were measured before it was
        is_replayed = vllm_release(case["release"]).counts_split_pieces and "processor" not in case
        near = _PIECE if is_replayed and case["id"] not in ROUGH_REPLAYS else _FLOOR
        assert found.pinned == pytest.approx(measured["pinned"], abs=near)


def test_the_bytes_of_a_case_belong_together() -> None:
    """What the budget counts is made of what vLLM prints beside it, and PyTorch reserves what it allocates."""
    for measured in (case["measured"] for case in CASES):
        assert measured["weights"] <= measured["allocated_before"] <= measured["peak"]
        assert measured["allocated_after"] <= measured["reserved_after"]
        if measured["consumed"] is not None:
            assert measured["non_kv"] == measured["consumed"] + measured["headroom"]


def test_the_page_says_what_the_table_says() -> None:
    page = (ROOT / "docs" / "accuracy-details.md").read_text(encoding="utf-8")
    assert summarise(CASES) in page
