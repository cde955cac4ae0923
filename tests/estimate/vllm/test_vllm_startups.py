"""The vLLM model scored against published start-ups; `python tools/score_vllm_startups.py --rows` shows each."""

from __future__ import annotations

from contextlib import suppress

import pytest

import score_vllm_startups as tool
import startup_kinds
import startup_rows as rows
from kvplan.catalog.releases.vllm import is_modified_build
from kvplan.catalog.vllm_refusals import service_note
from kvplan.errors import KvplanError
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.units import GIB


@pytest.fixture(scope="module")
def scores():  # type: ignore[no-untyped-def]
    read = tool.read_rows(tool.DATA / "vllm_startups.csv")
    return tool.score_rows(read, tool.load_models(tool.DATA / "vllm_startup_models.json"))


def summary(scores, name):  # type: ignore[no-untyped-def]
    return next(item for item in tool.summaries(scores) if item.name == name)


def test_the_page_says_what_the_scores_say(scores) -> None:  # type: ignore[no-untyped-def]
    """The first table of docs/accuracy.md, and how many start-ups its picture shows."""
    page = (tool.DATA.parents[1] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    for said, name in (("a campaign that states every setting", "A, campaign"), ("other sources", "A, other sources")):
        of_campaign = name == "A, campaign"
        of_set = [s for s in scores if s.grade == "A" and s.campaign == of_campaign and not s.newest]
        number = sum(1 for score in of_set if score.token_deviation is not None and not score.modified)
        median, p90 = summary(scores, name).tokens
        assert f"start-up logs of {said} | {number} | {median:.2%} | {p90:.2%} |".replace("%", " %") in page
    errors = tool.first_sight_errors(scores)
    median, p90 = tool._spread(errors)
    said = f"start-ups collected later, at first sight | {len(errors)} | {median:.2%} | {p90:.2%} |"
    assert said.replace("%", " %") in page
    shown = sum(1 for score in scores if score.token_deviation is not None)
    assert f"The picture shows {shown} start-ups" in page


def test_releases_that_started_a_model_have_a_class_of_it() -> None:
    """But for a model that came as a plugin (V077), and a build of the main branch behind 0.5.0 (V243)."""
    models = tool.load_models(tool.DATA / "vllm_startup_models.json")
    stated = [row for row in tool.read_rows(tool.DATA / "vllm_startups.csv") if row["vllm_version"]]
    lacking = set()
    for row in stated:
        with suppress(KvplanError):  # those without a config, see below
            if service_note(rows.row_spec(row, models).architecture, row["vllm_version"]):
                lacking.add(row["id"])
    assert lacking == {"V077", "V243"}


def test_every_row_whose_config_can_be_had_is_scored(scores) -> None:  # type: ignore[no-untyped-def]
    reasons = [score.reason for score in scores if score.reason is not None]
    assert all(
        reason.startswith(
            (
                "no config of",
                "a DFlash drafter",
                "an embedding model",
                "a utilization",
                "no profile of the GPU",
                "The slots of",
                "It is not known how vLLM 0.29.0 keeps indexer keys",  # P048 and P049
            )
        )
        for reason in reasons
    ), reasons
    assert sum(1 for score in scores if score.reason is None) >= 134


def test_the_second_runner_measures_graphs_of_pieces_as_logged() -> None:
    """In the peaks that it prints; the first runner's estimate is 0.2 GiB more. Not on Hopper (S003 logs its own)."""
    read = {row["id"]: row for row in tool.read_rows(tool.DATA / "vllm_startups.csv")}
    models = tool.load_models(tool.DATA / "vllm_startup_models.json")
    for name in ("X001", "X009", "R005", "S003"):
        row = read[name]
        version, gpu = row["vllm_version"], rows.row_gpu(row)
        found = predict_vllm(rows.row_spec(row, models), gpu, rows.row_settings(row), version)
        graphs = found.rank.subtracted_graph_bytes / GIB
        logged = rows.row_graph_estimate_gib(row)
        if logged is None:
            logged = rows.number(row["activation_peak_gib"]) - found.rank.activation.peak_bytes / GIB
        assert found.settings.second_runner
        assert graphs == pytest.approx(logged, abs=0.07), name


@pytest.mark.parametrize(
    ("name", "median", "p90"),
    [
        ("A, campaign", 0.01, 0.04),
        ("B, memory to tokens", 0.002, 0.01),
        ("A, other sources", 0.02, 0.10),
        # 0.10 until V211's encoder was counted as it is.
        ("  and modified builds", 0.02, 0.20),
    ],
)
def test_tokens(scores, name: str, median: float, p90: float) -> None:  # type: ignore[no-untyped-def]
    found = summary(scores, name).tokens
    assert found[0] <= median
    assert found[1] <= p90


@pytest.mark.parametrize("name", ["A, campaign", "A, other sources", "B, memory to tokens"])
def test_weights(scores, name: str) -> None:  # type: ignore[no-untyped-def]
    found = summary(scores, name).weights
    assert found[0] <= 0.002
    assert found[1] <= 0.03


B12X = """3.2 to 4.6 GiB that a modified build with kernels of its own holds. Its log estimates 4.77 GiB for graphs that
then take 1.22: the other 3.55 stay, and releases up to 0.25 profile graphs while they measure the memory."""
UNIFIED = "The host's own memory counts as outside torch where it shares the GPU's."
OUTLIERS = {
    "V148": B12X,
    "V151": B12X,
    "V152": B12X,
    "V153": B12X,
    "S008": "2.3 GiB of weights on each GPU, of a modified build with kernels of its own.",
    "V225": "5 GiB of non-torch memory that other processes took.",
    "W027": UNIFIED,
}
"""Rows of grade A more than 10 % off, and why. No constant was bent for them."""


def test_no_other_row_is_far_off(scores) -> None:  # type: ignore[no-untyped-def]
    """Rows collected last (N, and P to Z but V and W) stay as seen: docs/accuracy-details.md lists them."""
    scored = [score for score in scores if score.grade == "A" and not score.id.startswith(tuple("NPQRTUXYZ"))]
    assert {score.id for score in scored if (score.token_error or 0) > 0.10} == set(OUTLIERS)


@pytest.mark.parametrize(
    ("version", "modified"),
    [
        ("0.19.0", False),
        ("", False),
        ("0.6.3.post1", False),
        ("0.26.1rc1.dev156+g0eec856cc.d20260731", False),
        ("0.11.0+cu129", False),
        ("0.13.0+faa43dbf.nv26.01", True),
        ("0.20.2rc1.dev249+glmkimirebase20260514", True),
    ],
)
def test_builds_of_other_code_are_told_by_their_version(version: str, modified: bool) -> None:
    assert is_modified_build(version) is modified


def test_rows_of_modified_builds_stay_in_the_report(scores, capsys) -> None:  # type: ignore[no-untyped-def]
    tool.print_report(scores, per_row=False)
    tool.print_groups(scores)
    printed = capsys.readouterr().out
    assert all(score.id in printed for score in scores if score.modified)
    assert "KV tokens by version" in printed


def test_every_row_has_a_kind_in_each_group(scores, capsys) -> None:  # type: ignore[no-untyped-def]
    tool.print_by_kind(scores)
    printed = capsys.readouterr().out
    placed = next(score.placed for score in scores if score.placed)
    assert all(f"\n{aspect} " in printed for aspect in placed.aspects)
    assert {"campaign", "newest", "others"} == {
        startup_kinds.row_set(score.placed.row) for score in scores if score.placed
    }


def test_failed_starts_are_predicted_not_to_fit(scores) -> None:  # type: ignore[no-untyped-def]
    failed, wrong = tool.failures(scores)
    assert len(failed) >= 6
    # W026: memory that is the host's. V249: it is not stated how its two GPUs share the model. T005 and T022: 1,024
    # sequences under a fork of 0.27, where 8 and 15 GiB are missing for a cause that is not known. V207: its
    # utilization is not stated, and its vision tower is not counted.
    assert [score.id for score in wrong] == ["V207", "V249", "W026", "T005", "T022"]


@pytest.mark.parametrize(
    ("model", "base"),
    [
        ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ", ("llama-3.1-8b", "awq")),
        ("neuralmagic/Llama-3.1-8B-Instruct-quantized.w8a8", ("llama-3.1-8b", "int8")),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", ("qwen2.5-7b", "gptq")),
        ("Qwen/Qwen3-4B-Instruct-2507", ("qwen3-4b", None)),
        ("mistralai/Mistral-7B-v0.1", ("mistral-7b-v0.1", None)),
    ],
)
def test_base_names(model: str, base: tuple[str, str | None]) -> None:
    assert rows.base_name(model) == base


@pytest.mark.parametrize(
    ("model", "identity", "method"),
    [
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct", None),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "meta-llama/Llama-3.1-8B", None),
        ("cyankiwi/Qwen3.8-27B-AWQ-INT4", "Qwen/Qwen3.5-27B", "awq"),
        ("google/gemma-3-27b-it-qat-w4a16-ct", "google/gemma-3-27b", "int4"),
    ],
)
def test_stand_ins_are_found_by_name(model: str, identity: str, method: str | None) -> None:
    spec = rows.row_spec({"model": model}, tool.load_models(tool.DATA / "vllm_startup_models.json"))
    assert spec.id.startswith(identity)
    assert (spec.quantization is None) if method is None else spec.quantization is not None


def test_the_activation_peak_is_read_without_the_graphs_that_newer_releases_print_with_it() -> None:
    """0.27.1 printed 3.78 GiB, 1.94 of them estimated for graphs (W006); until 0.26 they stand apart."""
    row = {"vllm_version": "0.27.1", "activation_peak_gib": "3.78", "inferred": "[A] graphs estimated 1.94"}
    row["verbatim"] = ""
    assert rows.row_activation_gib(row) == pytest.approx(1.84)
    assert rows.row_activation_gib(row | {"vllm_version": "0.26.0"}) == pytest.approx(3.78)
    assert rows.row_activation_gib(row | {"inferred": "[A]"}) is None
    printed = row | {"inferred": "[A]", "verbatim": "Estimated CUDA graph memory: -0.81 GiB total"}
    assert rows.row_graph_estimate_gib(printed) == pytest.approx(-0.81)


@pytest.mark.parametrize(
    ("text", "name"),
    [("2x NVIDIA RTX 3090 (24GB)", "RTX 3090"), ("A100-SXM4-80GB", "A100-SXM4-80GB"), ("Tesla T4 x2", "T4")],
)
def test_gpu_names_as_people_write_them(text: str, name: str) -> None:
    assert name in rows.gpu_names(text)
