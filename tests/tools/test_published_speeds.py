"""The scorer of published speeds: what a row asks, what counts as measured, and errors counted by hand."""

from __future__ import annotations

import ast
import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import score_published_speeds
from kvplan.catalog.devices.measured import MeasuredProfiles, load_measured
from kvplan.estimate.speed.queueing.front_end import NO_FRONT_END, VLLM_FRONT_END, VLLM_TEMPLATE_SECONDS, FrontEnd
from kvplan.estimate.speed.steps.host import IN_PROCESS
from published_speeds.chats import answered_pairs, published_pairs, sampled_pairs
from published_speeds.copies import copied_rows
from published_speeds.hindered import hindered_rows
from published_speeds.newest import newest_release
from published_speeds.playing import engine_rules, played_load
from published_speeds.predictions import Figure, predict, start_of
from published_speeds.rows import PUBLISHED, Measured, PublishedRow, read_rows
from published_speeds.scores import Compared, RowScore, bar_group, grouped, score_row, summarize
from published_speeds.settings import deployed
from published_speeds.stated import COLUMNS, Page, stated_columns, stated_pages, with_stated


def _collected() -> list[str]:
    """The columns that rows are collected with."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        return [column for column in csv.DictReader(file).fieldnames or [] if column not in COLUMNS]


def _row(tmp_path: Path, **cells: str) -> PublishedRow | str:
    """From a file with the columns that rows are collected with, and those of ``cells``."""
    columns = list(dict.fromkeys([*_collected(), *cells]))
    path = tmp_path / "rows.csv"
    given = {
        "id": "ours-1",
        "engine": "vLLM",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "gpu": "H100 SXM 80GB",
        "gpu_count": "1",
        "input_len": "1000",
        "output_len": "250",
        "num_prompts": "64",
        "request_rate": "inf",
        "grade": "A",
    }
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerow(given | cells)
    [row] = read_rows(path)
    return row


def _parsed(tmp_path: Path, **cells: str) -> PublishedRow:
    row = _row(tmp_path, **cells)
    assert isinstance(row, PublishedRow)
    return row


def test_which_figures_are_compared_and_throughput_is_of_output_tokens(tmp_path: Path) -> None:
    stated = {"mean_tpot_ms": "12", "median_tpot_ms": "11", "median_ttft_ms": "40"}
    stated |= {"mean_ttft_ms": "50", "total_throughput_tok_s": "5000"}
    assert _parsed(tmp_path, **stated).measured == Measured(40.0, 12.0, 1000.0, "median", "mean")


def test_p99_of_few_requests_is_not_compared(tmp_path: Path) -> None:
    stated = {"median_ttft_ms": "40", "p99_ttft_ms": "90", "mean_tpot_ms": "12", "p99_tpot_ms": "15"}
    few, many = (_parsed(tmp_path, **stated, num_prompts=number).measured for number in ("199", "200"))
    assert (few.ttft_p99_ms, few.tpot_p99_ms, many.ttft_p99_ms, many.tpot_p99_ms) == (None, None, 90.0, 15.0)


def test_a_ttft_that_a_prefix_cache_served_is_not_scored(tmp_path: Path) -> None:
    assert _parsed(tmp_path, mean_ttft_ms="40", notes="later runs can hit the prefix cache").measured.ttft_ms is None


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"input_len": ""}, "lengths"),
        ({"spec_decode": "MTP"}, "speculative decoding"),
        ({"notes": "the server was still warming up: later runs say so"}, "warming up"),
    ],
)
def test_rows_that_lack_something_say_what(tmp_path: Path, cells: dict[str, str], reason: str) -> None:
    row = _row(tmp_path, **cells)
    assert isinstance(row, str)
    assert reason in row


@pytest.mark.parametrize(
    ("cells", "users", "replicas"),
    [
        ({}, 64, 1),
        ({"max_concurrency": "8"}, 8, 1),
        ({"max_concurrency": "8", "notes": "the label does not bind"}, 64, 1),
        ({"max_concurrency": "8", "dp": "4", "gpu_count": "4"}, 2, 4),
        ({"max_concurrency": "1", "dp": "4", "gpu_count": "4"}, 1, 1),  # the others have nothing to do
    ],
)
def test_the_load_of_one_replica(tmp_path: Path, cells: dict[str, str], users: int, replicas: int) -> None:
    found = deployed(_parsed(tmp_path, **cells))
    assert (found.workload.num_users, found.replicas) == (users, replicas)


def test_attention_in_groups_makes_ranks_that_share_experts(tmp_path: Path) -> None:
    cells = {"model": "deepseek-ai/DeepSeek-R1-0528", "gpu": "H200", "gpu_count": "8", "tp": "8", "dp": "8"}
    layout = deployed(_parsed(tmp_path, **cells, notes="dp-attention on")).choice.layout
    assert (layout.tensor_parallel_size, layout.data_parallel_size, layout.enable_expert_parallel) == (1, 8, True)


@pytest.mark.parametrize(
    ("cells", "groups", "replicas"),
    [
        ({"dp": "1", "notes": "dp-attention on"}, 1, 1),  # SGLang turns it off
        ({"dp": "1", "notes": "dp-attention on", "engine_version": "v0.4.3.post2"}, 8, 1),  # but not yet then
        ({"dp": "8", "notes": "dp-attention on"}, 8, 1),
        ({"dp": "2", "tp": "4"}, 1, 2),
    ],
)
def test_groups_of_sglang(tmp_path: Path, cells: dict[str, str], groups: int, replicas: int) -> None:
    cells = {
        "engine": "SGLang",
        "model": "deepseek-ai/DeepSeek-R1-0528",
        "gpu": "H200",
        "gpu_count": "8",
        "tp": "8",
    } | cells
    found = deployed(_parsed(tmp_path, **cells))
    assert (found.choice.layout.data_parallel_size, found.replicas) == (groups, replicas)


def test_a_fine_tune_in_16_bits_of_a_model_that_was_published_quantized(tmp_path: Path) -> None:
    own, plain = (
        deployed(_parsed(tmp_path, model="openai/gpt-oss-120b", quantization=each)) for each in ("mxfp4", "none (bf16)")
    )
    assert own.spec.quantization is not None
    assert plain.spec.quantization is None


def test_what_cannot_start_as_stated_is_not_scored(tmp_path: Path) -> None:
    cells = {"model": "meta-llama/Llama-3.1-70B-Instruct", "gpu": "L4", "mean_tpot_ms": "50"}
    result = score_row(_parsed(tmp_path, **cells), MeasuredProfiles())
    assert isinstance(result, str) and "does not start" in result


@pytest.mark.parametrize(
    ("engine", "day", "release"),
    [
        ("vLLM", "2025-10", "0.11.0"),
        ("vLLM", "20260129-034729", "0.14.1"),
        ("vLLM", "2026-03-04", "0.16.0"),
        ("SGLang", "2026-03-04", "0.5.9"),
        ("vLLM", "2026-01", None),
        ("vLLM", "2025", None),
        ("vLLM", "2026-13-01", None),
        ("vLLM", "2026-02-30", None),
        ("vLLM", "", None),
        ("TensorRT-LLM", "2025-10", None),
    ],
)
def test_a_row_without_a_release_has_that_of_its_day(engine: str, day: str, release: str | None) -> None:
    assert newest_release(engine, day) == release


def test_a_stated_release_counts_before_that_of_the_day(tmp_path: Path) -> None:
    days = {"date": "2025-10"}
    assert deployed(_parsed(tmp_path, **days)).version == "0.11.0"
    assert deployed(_parsed(tmp_path, **days, engine_version="v0.10.1.1")).version == "0.10.1"
    assert deployed(_parsed(tmp_path, date="2024")).version == "latest"


def test_a_page_pasted_twice_counts_for_the_slower_gpu(tmp_path: Path) -> None:
    figures = {"mean_ttft_ms": "60300.00", "mean_tpot_ms": "204.31", "output_throughput_tok_s": "411.83"}
    slow = _parsed(tmp_path, id="ours-1", gpu="A100 SXM 80GB", **figures)
    fast = _parsed(tmp_path, id="ours-2", **figures)
    assert copied_rows([slow, fast]) == copied_rows([fast, slow]) == {"ours-2": "ours-1"}
    other = _parsed(tmp_path, id="ours-3", **figures | {"mean_ttft_ms": "60300.01"})
    unknown = _parsed(tmp_path, id="ours-4", mean_tpot_ms="204.31")
    assert copied_rows([slow, other, unknown, replace(unknown, num_prompts=7)]) == {}
    assert score_published_speeds._scored(fast, {"ours-2": "ours-1"}, MeasuredProfiles(())) == (
        "ours-2: its figures are those of ours-1 to the digit, which is of a slower GPU"
    )


def test_what_sglang_has_no_room_for_is_not_scored(tmp_path: Path) -> None:
    """212 GB of weights on two GPUs of 80; they fit four as pipeline stages."""
    cells = {"engine": "SGLang", "engine_version": "0.5.4", "model": "zai-org/GLM-4.5-Air", "output_len": "200"}
    stated = {"mean_tpot_ms": "100", "output_throughput_tok_s": "1000"}
    refused = score_row(_parsed(tmp_path, **cells, **stated, gpu_count="2", tp="2"), MeasuredProfiles(()))
    assert isinstance(refused, str) and "SGLang has no room for one request" in refused
    stages = score_row(_parsed(tmp_path, **cells, **stated, gpu_count="4", tp="1", pp="4"), MeasuredProfiles(()))
    assert isinstance(stages, RowScore)


def test_deepseek_in_4_bits_is_the_checkpoint_that_was_served(tmp_path: Path) -> None:
    cells = {"model": "deepseek-ai/DeepSeek-R1-0528", "gpu": "B200", "gpu_count": "4", "tp": "4"}
    methods = []
    for each in ("fp4 (nvfp4/mxfp4 checkpoint)", "fp8 (native)"):
        quantization = deployed(_parsed(tmp_path, quantization=each, **cells)).spec.quantization
        methods.append(quantization.method if quantization else None)
    assert methods == ["nvfp4", "fp8"]


def test_cards_have_a_bridge_where_a_row_says_so(tmp_path: Path) -> None:
    bridged, plain, silent = (
        deployed(_parsed(tmp_path, gpu="A100 80GB PCIe", notes=each)).choice.gpu
        for each in ("two cards with an NVLink bridge", "the platform lacks GPU P2P capability", "")
    )
    assert (bridged.has_bridge, plain.has_bridge, silent.has_bridge) == (True, False, False)


def _score(row: PublishedRow, measured: float) -> RowScore:
    figures = {"tpot": Compared(measured, Figure(8.0, 10.0, 12.0))}
    return RowScore(row, "roofline", "vLLM", "h100-sxm", "Hopper", "dense", figures)


def _told_by(rows: list[PublishedRow]) -> dict[str, str]:
    return {name: why.told_by for name, why in hindered_rows(rows).items()}


@pytest.mark.parametrize(
    ("slow", "fast", "is_hindered"),
    [
        ({"output_throughput_tok_s": "1000"}, {"gpu": "H200", "output_throughput_tok_s": "2200"}, True),
        ({"output_throughput_tok_s": "1000"}, {"gpu": "H200", "output_throughput_tok_s": "1800"}, False),
        ({"output_throughput_tok_s": "1000"}, {"output_throughput_tok_s": "1400"}, True),
        ({"output_throughput_tok_s": "1000"}, {"output_len": "300", "output_throughput_tok_s": "2200"}, False),
        ({"output_throughput_tok_s": "1000"}, {"id": "theirs-1", "output_throughput_tok_s": "2200"}, False),
    ],
)
def test_a_source_contradicts_itself(
    tmp_path: Path, slow: dict[str, str], fast: dict[str, str], is_hindered: bool
) -> None:
    """An H200 has 1.43 times the bandwidth of an H100 and as many multipliers: 1.93 times is the most."""
    rows = [_parsed(tmp_path, **slow), _parsed(tmp_path, **({"id": "ours-2"} | fast))]
    assert _told_by(rows) == ({"ours-1": rows[1].id} if is_hindered else {})


def test_requests_one_after_another_are_compared_by_the_time_of_a_token(tmp_path: Path) -> None:
    """An A100 with 80 GB has more bandwidth than one with 40 and as many multipliers."""
    alone = {"max_concurrency": "1", "request_rate": "closed loop", "gpu": "A100 SXM 80GB"}
    slow = _parsed(tmp_path, **alone, mean_tpot_ms="30")
    rows = [slow, _parsed(tmp_path, **(alone | {"gpu": "A100 SXM 40GB", "id": "ours-2"}), mean_tpot_ms="18")]
    assert _told_by(rows) == {"ours-1": "ours-2"}
    near = _parsed(tmp_path, **alone, mean_tpot_ms="24")
    assert hindered_rows([near, rows[1]]) == {}


def test_a_server_that_is_not_warm_reads_short_prompts_slower_than_long_ones(tmp_path: Path) -> None:
    burst = {"max_concurrency": "64", "output_len": "128"}
    early = _parsed(tmp_path, **burst, input_len="500", median_ttft_ms="4000")
    later = _parsed(tmp_path, **burst, id="ours-2", input_len="2000", median_ttft_ms="1500")
    assert _told_by([early, later]) == {"ours-1": "ours-2"}
    near = _parsed(tmp_path, **burst, id="ours-2", input_len="900", median_ttft_ms="1500")
    assert _told_by([early, near]) == {}
    served = _parsed(tmp_path, **burst, id="ours-2", input_len="2000", median_ttft_ms="1500", swept_prompts="1500 2000")
    assert _told_by([early, served]) == {}


@pytest.mark.parametrize(("median", "p99", "told"), [("80", "40000", True), ("4000", "6500", False)])
def test_one_first_request_out_of_ten_held_its_run_back(tmp_path: Path, median: str, p99: str, told: bool) -> None:
    """40 s of a run of 70 s, and ten that waited alike."""
    times = {"mean_ttft_ms": "4080", "median_ttft_ms": median, "p99_ttft_ms": p99, "num_prompts": "10"}
    row = _parsed(tmp_path, **times, output_throughput_tok_s="36", max_concurrency="1")
    assert ("ours-1" in hindered_rows([row])) == told


def test_more_users_who_bring_nothing(tmp_path: Path) -> None:
    few = _parsed(tmp_path, max_concurrency="16", output_throughput_tok_s="258", num_prompts="80")
    many = _parsed(tmp_path, id="ours-2", max_concurrency="100", output_throughput_tok_s="254", num_prompts="500")
    assert _told_by([few, many]) == {"ours-2": "ours-1"}
    busy = [replace(row, measured=replace(row.measured, output_throughput=9000.0)) for row in (few, many)]
    assert _told_by(busy) == {}  # 45,000 tokens a second are three quarters of what an H100 computes


def test_a_page_whose_engines_all_are_slow(tmp_path: Path) -> None:
    def rows(page: str, gpu: str, *speeds: str) -> list[PublishedRow]:
        engines = zip(("vLLM", "SGLang"), speeds, strict=True)
        return [
            _parsed(tmp_path, id=f"ours-{page}{engine}", source_url=f"a.org/{page}#{engine}", gpu=gpu, engine=engine,
                    output_throughput_tok_s=speed)
            for engine, speed in engines
        ]  # fmt: skip

    ours, theirs = rows("slow", "H100 SXM 80GB", "900", "1000"), rows("fast", "H200", "2300", "2200")
    assert set(_told_by([*ours, *theirs])) == {"ours-slowvLLM", "ours-slowSGLang"}
    assert _told_by([*ours, *rows("fast", "H200", "2300", "1800")]).keys() == {"ours-slowvLLM"}


def test_what_a_larger_pool_explains_is_no_contradiction(tmp_path: Path) -> None:
    load = {"model": "meta-llama/Llama-3.3-70B-Instruct", "gpu_count": "2", "tp": "2", "input_len": "15000"}
    slow = _parsed(tmp_path, **load, output_throughput_tok_s="200")
    fast = _parsed(tmp_path, **load, id="ours-2", gpu="H200", output_throughput_tok_s="1000")
    assert hindered_rows([slow, fast]) == {}


def test_a_summary_by_hand(tmp_path: Path) -> None:
    row = _parsed(tmp_path)
    found: Any = summarize([_score(row, 10.0), _score(row, 8.0), _score(row, 20.0)], "tpot")
    assert (found.num_rows, found.median, found.bias) == (3, 0.25, 0.0)
    assert found.coverage == pytest.approx(2 / 3)
    assert found.p90 == pytest.approx(0.45)  # errors 0, 0.25 and 0.5: four fifths of the way to the last
    assert summarize([_score(row, 10.0)], "ttft") is None


def test_a_bar_is_of_dense_models_on_both_generations(tmp_path: Path) -> None:
    one = _score(_parsed(tmp_path), 10.0)
    settings = (("dense", "Hopper"), ("dense", "Ampere"), ("dense", "Ada"), ("mixture", "Hopper"), ("latent", "Hopper"))
    scores = [replace(one, kind=kind, generation=generation) for kind, generation in settings]
    sizes = {name: len(group) for name, group in grouped(scores, bar_group).items()}
    assert sizes == {"dense, Hopper and Ampere": 2, "dense, other GPUs": 1, "mixture or latent, all GPUs": 2}


def test_scores_without_contradicted_rows_are_printed_for_the_bars_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = _parsed(tmp_path, output_throughput_tok_s="1000")
    fast = _parsed(tmp_path, id="ours-2", output_throughput_tok_s="2200")
    score_published_speeds.print_without_hindered([_score(slow, 20.0), _score(fast, 10.0)])
    printed = capsys.readouterr().out
    assert "ours-1: contradicted by its source (ours-2)" in printed
    assert [
        int(line.split("|")[1].split()[0]) for line in printed.splitlines() if line.startswith("dense, Hopper and")
    ] == [1]


def test_a_row_is_predicted_as_plan_predicts_it(tmp_path: Path) -> None:
    row = _parsed(tmp_path, mean_tpot_ms="10", mean_ttft_ms="90", max_concurrency="4", max_num_seqs="4")
    score = score_row(row, MeasuredProfiles())
    assert isinstance(score, RowScore)
    assert (score.origin, score.generation, score.kind) == ("roofline", "Hopper", "dense")
    assert set(score.figures) == {"tpot", "ttft"}
    # 16 GB of weights read at 3.35 TB/s take 4.5 ms at least.
    assert 4.5 < score.figures["tpot"].predicted.low < score.figures["tpot"].predicted.high < 100


def test_every_published_row_has_a_grade_a_source_and_a_quote() -> None:
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["id"] for row in rows}) == len(rows)
    assert all(row["grade"] in tuple("ABC") and row["source_url"] and row["verbatim"] for row in rows)


def test_a_rack_whose_users_one_instance_served_counts_as_that_instance(tmp_path: Path) -> None:
    quote = "conc 16 output_tput_per_gpu 150.5"
    row = _parsed(tmp_path, gpu_count="64", tp="8", verbatim=quote, output_throughput_tok_s="9632")
    assert row.num_gpus == 8
    assert row.measured.output_throughput == pytest.approx(8 * 150.5)


@pytest.mark.parametrize(
    ("cells", "pool", "found"),
    [
        ({"input_len": "8192"}, 1e6, 4096),
        ({"input_len": "8192", "dp": "2"}, 1e6, 2048),
        ({"input_len": "1024"}, 1e6, 0),
        ({"input_len": "8192"}, 1e5, 0),  # evicted before it is asked for again
        ({"input_len": "8192", "engine": "SGLang"}, 1e6, 0),
        ({"input_len": "8192", "swept_prompts": ""}, 1e6, 0),
    ],
)
def test_a_sweep_over_lengths_finds_the_prompts_of_the_run_before(
    tmp_path: Path, cells: dict[str, str], pool: float, found: int
) -> None:
    row = _parsed(tmp_path, **({"swept_prompts": "1024 2048 4096 8192 15000"} | cells))
    assert played_load(row, 1, pool).cached_tokens == found


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        ({"engine_version": "0.11.0"}, 992),  # 62 blocks of 16: the last token is computed
        ({"engine": "SGLang", "engine_version": "0.5.6"}, 992),
        ({"engine_version": "0.7.3"}, 0),  # the first engine caches no prefixes unless it is asked to
        ({"engine_version": "0.11.0", "prefix_caching": "no"}, 0),
        ({"engine_version": "0.11.0", "verbatim": "conc 64 | 12.8 ms"}, 0),  # another client
    ],
)
def test_the_first_prompt_of_a_run_was_sent_before_as_a_test(tmp_path: Path, cells: dict[str, str], found: int) -> None:
    client = {"verbatim": "Successful requests: 64; Benchmark duration (s): 20.1", "range_ratio": "1"}
    load = played_load(_parsed(tmp_path, **(client | cells)), 1, 1e6)
    assert (load.first_cached_tokens, load.cached_tokens) == (found, 0)


def _accelmark(tmp_path: Path, suite: str, **cells: str) -> PublishedRow:
    sample = {"A": "standard", "D": "longctx", "F": "edge"}[suite]
    cells = {
        "notes": f"dataset sharegpt_{sample}_v1",
        "source_url": "github.com/FreedomIntelligence/AccelMark a",
    } | cells
    return _parsed(tmp_path, engine_version="0.7.3", **cells)


def test_accelmark_reads_prompts_of_its_suite_in_the_engines_own_process(tmp_path: Path) -> None:
    row = _accelmark(tmp_path, "D", request_rate="0.5", num_prompts="200")
    found, load = deployed(row), played_load(row, 1, 1e6)
    assert (found.settings.max_model_len, found.states_longest) == (30208, True)
    assert load.num_requests == 100
    assert {answer for _, answer in load.lengths} == {256}
    assert all(28245 <= prompt <= 29932 for prompt, _ in load.lengths)
    start = start_of(found)
    assert not start.settings.serving.max_num_batched_tokens < start.settings.serving.max_model_len
    rules = engine_rules(row, found, start, 1e6)
    assert (rules.front_end, rules.streams_late) == (NO_FRONT_END, math.inf)
    several = _accelmark(tmp_path, "D", max_concurrency="8")
    assert engine_rules(several, found, start, 1e6).streams_late == 0.05
    served = engine_rules(_parsed(tmp_path), found, start, 1e6).front_end
    assert served == replace(VLLM_FRONT_END, away_seconds=0.0)  # of the first engine


def test_front_ends_of_rows(tmp_path: Path) -> None:
    """Of chats where a source's command says so, and one for all groups unless these are servers of their own."""

    def front_end(**cells: str) -> FrontEnd:
        row = _parsed(tmp_path, engine_version="0.11.0", **cells)
        found = deployed(row)
        return engine_rules(row, found, start_of(found), 1e6).front_end

    assert front_end() == VLLM_FRONT_END
    assert front_end(api="chat") == replace(VLLM_FRONT_END, parsing_seconds=VLLM_TEMPLATE_SECONDS)
    two = {"gpu_count": "2", "tp": "1", "dp": "2"}
    assert front_end(**two) == VLLM_FRONT_END.shared_by(2)
    assert front_end(notes="dp=2 independent instances", **two) == VLLM_FRONT_END


def test_a_burst_of_chats_elsewhere(tmp_path: Path) -> None:
    """Pull request 18566 of vllm-project/vllm: mean, median and p99 of TTFT were 9.6, 9.5 and 12.7 s, of TPOT the mean
    and the median 77.9 and 48.8 ms."""
    cells = {"api": "chat", "engine_version": "0.9.0", "prefix_cache_or_random": "sharegpt", "num_prompts": "1000"}
    figures = {"median_ttft_ms": "9460", "mean_tpot_ms": "77.86"}
    row = _parsed(tmp_path, input_len="229.7", output_len="203.1", **figures, **cells)
    found = predict(row, deployed(row), load_measured())
    assert found.ttft_ms is not None and found.tpot_ms is not None
    assert found.ttft_ms.middle == pytest.approx(9460, rel=0.05)
    assert found.tpot_ms.middle == pytest.approx(77.86, rel=0.07)


def test_accelmark_sets_seats_for_offline_runs_alone(tmp_path: Path) -> None:
    for load, seats in (("5", None), ("closed loop", None), ("offline batch", 512)):
        row = _accelmark(tmp_path, "A", request_rate=load, max_num_seqs="512")
        assert deployed(row).settings.max_num_seqs == seats


def test_accelmarks_chats_are_cut_off(tmp_path: Path) -> None:
    load = played_load(_accelmark(tmp_path, "A", num_prompts="300"), 1, 1e6)
    prompts, answers = (sorted(each) for each in zip(*load.lengths, strict=True))
    assert (prompts[150], prompts[-1], answers[-1]) == (pytest.approx(198, abs=2), pytest.approx(592, abs=3), 512)
    assert load.num_requests == 300


@pytest.mark.parametrize(("suite", "mean", "longest"), [("A", 347, 512), ("F", 209, 256), ("D", 256, 256)])
def test_accelmarks_answers_are_as_long_as_its_runs_counted(
    tmp_path: Path, suite: str, mean: float, longest: int
) -> None:
    load = played_load(_accelmark(tmp_path, suite, num_prompts="300"), 1, 1e6)
    answers = [answer for _, answer in load.lengths]
    assert sum(answers) / len(answers) == pytest.approx(mean, rel=0.01)
    assert max(answers) == longest


def test_accelmark_has_no_server(tmp_path: Path) -> None:
    assert deployed(_accelmark(tmp_path, "A", engine="vLLM")).request.engine.backend == IN_PROCESS
    assert deployed(_accelmark(tmp_path, "A", engine="SGLang")).request.engine.backend == ""


def test_published_chats_are_those_that_benchmarks_sample() -> None:
    """1,000 prompts of 215,196 tokens (pull request 8335 of vllm-project/vllm), answered there with 197,521."""
    pairs = published_pairs()
    assert (len(pairs), sum(prompt for prompt, _ in pairs)) == (1000, 215_196)
    assert sum(answer for _, answer in answered_pairs()) == pytest.approx(197_521, rel=0.01)
    assert [pair[0] for pair in answered_pairs()] == [pair[0] for pair in pairs]
    assert min(answer for _, answer in answered_pairs()) == 4


@pytest.mark.parametrize("means", [(217.4, 201.4), (205.8, 213.7), (202.9, 117.6)])
@pytest.mark.parametrize("count", [100, 1000])
def test_chats_have_the_means_of_their_row_and_no_longer_answers(count: int, means: tuple[float, float]) -> None:
    prompts, answers = zip(*sampled_pairs(count, *means), strict=True)
    assert (len(prompts), sum(prompts) / count) == (count, pytest.approx(means[0], abs=1))
    assert sum(answers) / count == pytest.approx(means[1], rel=0.01)
    assert 600 < max(answers) <= 780
    assert 4 <= min(answers) < 8


def test_rows_of_sharegpt_are_played_with_its_lengths(tmp_path: Path) -> None:
    cells = {"input_len": "215.2", "prefix_cache_or_random": "sharegpt", "num_prompts": "1000"}
    load = played_load(_parsed(tmp_path, output_len="197.5", **cells), 1, 1e6)
    played, known = (sorted(answer for _, answer in each) for each in (load.lengths, answered_pairs()))
    assert played == pytest.approx(known, abs=3)
    silent = played_load(_parsed(tmp_path, output_len="122", notes="many answers are empty", **cells), 1, 1e6)
    assert 350 < sum(answer == 1 for _, answer in silent.lengths) < 450


def test_answers_that_models_end_are_as_long_as_was_asked_for_at_most(tmp_path: Path) -> None:
    cells = {"output_len": "450", "notes": "requested output 600 but no ignore-eos", "num_prompts": "100"}
    answers = [answer for _, answer in played_load(_parsed(tmp_path, **cells), 1, 1e6).lengths]
    assert (min(answers), max(answers)) == (pytest.approx(300, abs=3), pytest.approx(600, abs=3))
    assert sum(answers) / 100 == pytest.approx(450, abs=1)


def test_a_pool_that_the_source_does_not_tell_is_not_scored(tmp_path: Path) -> None:
    cells = {"model": "meta-llama/Meta-Llama-3-70B-Instruct", "gpu": "H100 PCIe", "gpu_count": "2", "tp": "2"}
    results = []
    for said in ("as needed", ""):
        row = _parsed(tmp_path, utilization=said, engine_version="0.8.5", mean_tpot_ms="50", **cells)
        results.append(score_row(row, MeasuredProfiles()))
    assert isinstance(results[0], str) and "gpu_memory_utilization" in results[0]
    assert isinstance(results[1], RowScore)


@pytest.mark.parametrize(("option", "chunks"), [("", False), (" --enable_chunked_prefill", True)])
def test_tensorrt_llm_chunks_prompts_where_the_command_says_so(tmp_path: Path, option: str, chunks: bool) -> None:
    row = _parsed(tmp_path, engine="TensorRT-LLM", engine_version="1.2.0", notes=f"trtllm-serve Llama{option}")
    found = deployed(row)
    assert engine_rules(row, found, start_of(found), 1e6).chunks_prompts == chunks


@pytest.mark.parametrize(
    ("version", "notes", "backend"),
    [
        ("0.17.post1.dev", "trtllm-serve --backend pytorch --tp_size 8", "pytorch"),
        ("1.0 (doc version)", "", ""),
        ("NIM 1.8.0", "", "tensorrt"),
    ],
)
def test_the_backend_of_tensorrt_llm(tmp_path: Path, version: str, notes: str, backend: str) -> None:
    found = deployed(_parsed(tmp_path, engine="TensorRT-LLM", engine_version=version, notes=notes))
    assert found.request.engine.backend == backend
    assert found.vllm_version == "latest"


@pytest.mark.parametrize(
    ("notes", "backend"),
    [
        ("moe_config backend TRTLLM at this load", "flashinfer_trtllm"),
        ("moe_config backend DEEPGEMM", "deep_gemm"),
        ("", "auto"),
    ],
)
def test_the_kernels_of_experts_that_a_script_names(tmp_path: Path, notes: str, backend: str) -> None:
    row = _parsed(tmp_path, engine="TensorRT-LLM", engine_version="1.3.0rc14", notes=notes)
    assert deployed(row).request.settings.moe_backend == backend


@pytest.mark.parametrize(("format_of", "backend"), [("modelopt", "cutlass"), ("modelopt_fp4", "auto")])
def test_the_kernels_that_sglang_chooses_for_modelopt(tmp_path: Path, format_of: str, backend: str) -> None:
    row = _parsed(tmp_path, engine="SGLang", engine_version="v0.5.9", notes=f"--quantization {format_of} --tp 4")
    assert deployed(row).request.settings.moe_backend == backend


def test_a_row_of_an_older_release_takes_longer(tmp_path: Path) -> None:
    cells = {"engine": "SGLang", "model": "deepseek-ai/DeepSeek-R1-0528", "gpu": "H200", "gpu_count": "8", "tp": "8"}
    tpot = []
    for version in ("0.4.3", "0.4.5", "0.5.12"):
        row = _parsed(tmp_path, **cells, engine_version=version, max_concurrency="8", output_len="500")
        figure = predict(row, deployed(row), load_measured(None)).tpot_ms
        assert figure is not None
        tpot.append(figure.middle)
    assert tpot[0] > 1.2 * tpot[1] > 1.4 * tpot[2]


def test_what_a_row_says_in_words_is_a_column_whoever_wrote_it(tmp_path: Path) -> None:
    words = {"prefix_cache_or_random": "random, range ratio 0 (uniform lengths 1..asked)", "max_concurrency": "16"}
    spread = _parsed(tmp_path, verbatim="Total input tokens: 64000", **words)
    assert (spread.number("range_ratio"), spread.text["lengths_are"]) == (0, "means")
    prompts, _ = zip(*played_load(spread, 1, 1e6).lengths, strict=True)
    assert (min(prompts) < 50, max(prompts) > 1900, sum(prompts) / 64) == (True, True, pytest.approx(1000, rel=0.01))
    asked = played_load(_parsed(tmp_path, notes="InferenceX client, range ratio 0.8"), 1, 1e6)
    assert sorted(prompt for prompt, _ in asked.lengths)[:: len(asked.lengths) - 1] == [802, 998]
    assert _parsed(tmp_path, notes="extra_args --enforce-eager").says("enforce_eager")
    assert deployed(_parsed(tmp_path, notes="--enforce-eager")).settings.enforce_eager


@pytest.mark.parametrize(
    ("words", "ratio"),
    [
        ("range ratio 0.8", "0.8"),
        ("random_range_ratio 0.8 per its README", "0.8"),
        ("vllm bench serve, range ratio 0.0", "1.0000"),  # vLLM's is around what was asked for
        ("vllm bench serve, range ratio 0.5", "0.3333"),
        ("lengths uniform 100-1000", "0.1000"),
        ("random, fixed lengths (stdev 0)", "1"),
        ("default range ratio 0.0 possible (not stated)", ""),
    ],
)
def test_the_spread_of_lengths_that_words_state(words: str, ratio: str) -> None:
    assert stated_columns(dict.fromkeys(_collected(), "") | {"notes": words})["range_ratio"] == ratio


def test_lengths_of_which_nothing_is_said_spread_as_a_plan_has_them(tmp_path: Path) -> None:
    """From two thirds of their mean to four thirds; alike where the printed total is that of the lengths asked for."""
    stated = {"engine": "vLLM", "input_len": "300", "output_len": "90", "num_prompts": "20", "max_concurrency": "4"}
    unsaid, _ = zip(*played_load(_parsed(tmp_path, **stated), 1, math.inf).lengths, strict=True)
    assert (min(unsaid), max(unsaid)) == (205, 395)
    assert sum(unsaid) / 20 == pytest.approx(300)
    quoted = _parsed(tmp_path, verbatim="vllm,random,4,300,90,6000", **stated)
    assert set(played_load(quoted, 1, math.inf).lengths) == {(300, 90)}


def test_figures_that_their_collector_doubts_are_not_compared(tmp_path: Path) -> None:
    stated = {"mean_tpot_ms": "12", "mean_ttft_ms": "50", "output_throughput_tok_s": "500"}
    assert _parsed(tmp_path, notes="not a per-token time: do not score TPOT", **stated).measured.tpot_ms is None
    assert _parsed(tmp_path, notes="tokens not counted as first token", **stated).measured.ttft_ms is None
    held_back = _parsed(tmp_path, notes="throughput includes first-request warm-up (12 requests)", **stated).measured
    assert (held_back.output_throughput, held_back.tpot_ms, held_back.ttft_ms) == (None, 12, 50)


def test_a_file_without_the_further_columns_is_read_as_the_one_that_ships() -> None:
    """As rows that are kept back have them: every column of every row comes from its words and its page."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        collected = {column: text for column, text in row.items() if column not in COLUMNS}
        assert stated_columns(collected) | {"seen": row["seen"]} == {column: row[column] for column in COLUMNS}
    assert {row["seen"] for row in rows} == set("abcdef")


def test_no_rule_asks_for_a_source() -> None:
    """Pages are cited with what they say; no code knows who published a row."""
    rows = [row for row in read_rows() if isinstance(row, PublishedRow)]
    names = {row.source.removeprefix("github.com/").split("/")[0].casefold() for row in rows}
    names |= {row.id.rsplit("-", 1)[0] for row in rows if "-" in row.id} - {"manual", "sglang", "trtllm", "nim"}
    names -= {"sgl-project", "vllm-project", "nvidia", "docs.nvidia.com"}
    for path in PUBLISHED.parent.glob("*.py"):
        code = ast.unparse(_without_docstrings(ast.parse(path.read_text(encoding="utf-8")))).casefold()
        assert not [name for name in names if name in code], path.name
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        columns = next(csv.reader(file))
    assert all(page.quote and page.column in columns for page in stated_pages())


def test_a_page_says_it_of_the_rows_that_meet_its_conditions() -> None:
    """Its script has the server look for requests every 30 steps on B300 from 16 users on, and not on H200."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    said = {name: rows[name]["recv_interval"] for name in ("inferencex-016", "inferencex-038", "inferencex-009")}
    assert said == {"inferencex-016": "10", "inferencex-038": "30", "inferencex-009": ""}
    row = dict.fromkeys(columns := list(rows["inferencex-038"]), "") | {"gpu": "B300", "max_concurrency": "64"}
    page = Page("github.com/a", "gpu=B200|B300 max_concurrency>=16 max_concurrency<65", columns[0], "x", "where")
    assert page.is_about(row | {"source_url": "github.com/a/b"})
    assert not page.is_about(row | {"source_url": "github.com/b"})
    assert not page.is_about(row | {"source_url": "github.com/a", "gpu": "H200"})
    assert not page.is_about(row | {"source_url": "github.com/a", "max_concurrency": ""})


def test_a_page_is_more_particular_than_the_format_that_a_collector_took() -> None:
    """Of eight H100 27.4 GiB each are weights, so that gpt-oss-120b is in 16 bits there."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        shipped = {row["id"]: row for row in csv.DictReader(file)}["benchmaxxing-066"]
    collected = {column: text for column, text in shipped.items() if column not in COLUMNS}
    assert shipped["quantization"] == "none (bf16)"
    assert with_stated(collected | {"quantization": "mxfp4 (native)"})["quantization"] == "none (bf16)"
    assert with_stated(collected | {"quantization": "mxfp4"})["quantization"] == "mxfp4"


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [each for each in node.body if not _is_text(each)] or [ast.Pass()]
    return tree


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
