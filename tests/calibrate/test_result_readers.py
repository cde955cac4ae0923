"""Results that other benchmarks saved: recorded ones are read, and what cannot be used is said in a sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from kvplan.calibrate.results.outcome import alike
from kvplan.calibrate.results.readers.kvplan_sweep import is_own_sweep
from kvplan.calibrate.results.reading import read_results, result_files
from kvplan.calibrate.results.served import ServedDeployment
from kvplan.errors import KvplanError

DATA = Path(__file__).parents[1] / "data" / "results"
SERVE = DATA / "vllm-bench-serve"


def test_a_sweep_of_vllm() -> None:
    found = read_results([DATA / "vllm-cpu-sweeps" / "gpt2-seats", DATA / "vllm-cpu-sweeps" / "smollm2-pool"])
    first = found.loads[0]
    assert (first.served.engine, first.served.engine_version, first.served.dtype) == ("vllm", "0.32.0", "bfloat16")
    assert (first.served.gpu, first.served.cpu_name, first.served.num_cores) == ("cpu", "AMD EPYC", 2)
    assert (first.served.max_num_seqs, first.served.num_blocks, first.served.block_size) == (8, 21, 128)
    assert [each.num_prompt_tokens for each in first.requests] == [64] * 12
    assert first.figures.duration == pytest.approx(1.1160272)
    assert first.figures.mean_tpot == pytest.approx(0.02472418)
    assert dict(found.excluded) == {
        "other processes used more than 25 % of the CPU": 2,
        "not served (rejected_ctx)": 3,
    }


def test_vllm_bench_serve_without_details() -> None:
    (load,) = read_results([SERVE / "serve-prefill.json"]).loads
    document = json.loads((SERVE / "serve-prefill.json").read_text())
    assert load.served == ServedDeployment(model="smollm2")
    assert not load.has_lengths
    assert load.max_concurrency == 2
    assert sum(each.num_prompt_tokens for each in load.requests) == document["total_input_tokens"]
    assert {each.num_output_tokens for each in load.requests} == {2}
    assert load.figures.median_ttft == document["median_ttft_ms"] / 1000


def test_vllm_bench_serve_with_details_gives_what_vllm_computed() -> None:
    """vLLM's own means and medians, from the times of its requests."""
    for name in ("serve-c4-detailed", "serve-rate-detailed"):
        (load,) = read_results([SERVE / f"{name}.json"]).loads
        document = json.loads((SERVE / f"{name}.json").read_text())
        assert load.has_lengths
        assert load.figures.duration == document["duration"]
        for figure in ("mean_ttft", "median_ttft", "mean_tpot", "median_tpot"):
            assert getattr(load.figures, figure) == pytest.approx(document[f"{figure}_ms"] / 1000, rel=1e-4)
        assert load.figures.output_throughput == pytest.approx(document["output_throughput"], rel=1e-4)


def test_arrivals_are_those_of_an_open_loop() -> None:
    (closed,) = read_results([SERVE / "serve-c4-detailed.json"]).loads
    (opened,) = read_results([SERVE / "serve-rate-detailed.json"]).loads
    assert {each.arrival_seconds for each in closed.requests} == {0.0}
    times = [each.arrival_seconds for each in opened.requests]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert 4 < times[-1] < 12  # 16 requests at 2 per second


def test_vllm_bench_sweep() -> None:
    found = read_results([DATA / "vllm-bench-sweep"])
    assert sorted(each.served.max_num_seqs or 0 for each in found.loads) == [2, 8]
    assert {each.served.engine for each in found.loads} == {"vllm"}
    assert not found.excluded


def test_guidellm() -> None:
    (load,) = read_results([DATA / "guidellm.json"]).loads
    assert load.served.model == "smollm2"
    assert load.max_concurrency == 4
    assert {(each.num_prompt_tokens, each.num_output_tokens) for each in load.requests} == {(96, 24)}
    first = json.loads((DATA / "guidellm.json").read_text())["benchmarks"][0]["requests"]["successful"]
    tpots = sorted(each["inter_token_latency_ms"] for each in first)
    assert load.figures.median_tpot == pytest.approx((tpots[5] + tpots[6]) / 2000, rel=1e-2)


def test_aiperf() -> None:
    document = json.loads((DATA / "aiperf.json").read_text())
    (load,) = read_results([DATA / "aiperf.json"]).loads
    assert load.served.model == "smollm2"
    assert (load.max_concurrency, len(load.requests)) == (4, 16)
    assert load.figures.mean_ttft == document["time_to_first_token"]["avg"] / 1000
    tokens, seconds = document["total_osl"]["avg"], document["benchmark_duration"]["avg"]
    assert load.figures.output_throughput == pytest.approx(tokens / seconds)
    assert load.figures.mean_tpot is None  # all tokens came at once


def forward_case(**changes: Any) -> dict[str, Any]:
    """An entry as vllm/benchmarks/forward/main.py (0.33.0) writes it."""
    request = {"query_len": 1, "kv_len": 1024, "num_draft_tokens": 0, "chunked": False}
    return {"case": "decode", "requests": [request] * 2, "median_us": 6400.0, "ranks": [{"num_tokens": 2}]} | changes


def test_vllm_bench_forward(tmp_path: Path) -> None:
    drafted = {"query_len": 4, "kv_len": 64, "num_draft_tokens": 3, "chunked": False}
    cases = [forward_case(), forward_case(requests=[drafted])]
    (tmp_path / "forward.json").write_text(json.dumps(cases))
    found = read_results([tmp_path / "forward.json"])
    (batch,) = found.batches
    assert (batch.requests, batch.seconds) == (((1, 1024), (1, 1024)), 0.0064)
    assert batch.served == ServedDeployment(engine="vllm")
    assert dict(found.excluded) == {"a drafter ran along": 1}


def test_metadata_says_what_was_served(tmp_path: Path) -> None:
    document = json.loads((SERVE / "serve-c1.json").read_text())
    document |= {"gpu": "H100", "tp": "2", "engine": "vllm", "version": "0.24.0", "max-num-seqs": 64}
    (tmp_path / "a.json").write_text(json.dumps(document))
    (load,) = read_results([tmp_path]).loads
    assert load.served == ServedDeployment("smollm2", "H100", None, None, "vllm", "0.24.0", 2, max_num_seqs=64)


def test_several_results_in_one_file(tmp_path: Path) -> None:
    """``--append-result`` writes one document after the other."""
    text = (SERVE / "serve-c1.json").read_text()
    (tmp_path / "appended.json").write_text(text + "\n" + text)
    assert [each.source.split()[1] for each in read_results([tmp_path / "appended.json"]).loads] == ["1", "2"]


def test_lengths_that_are_not_told_add_up() -> None:
    requests = alike(7, 1000, 50)
    assert sum(each.num_prompt_tokens for each in requests) == 1000
    assert sum(each.num_output_tokens for each in requests) == 50
    assert max(each.num_prompt_tokens for each in requests) - min(each.num_prompt_tokens for each in requests) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"completed": 0}, "1 x no request was served"),
        ({"failed": 2}, "1 x some requests failed"),
        ({"completed": 5}, "1 x some requests failed"),
        ({"ramp_up_strategy": "linear"}, "1 x the request rate was ramped up"),
        ({"total_output_tokens": 0}, "1 x no tokens were generated"),
    ],
)
def test_loads_that_show_no_speed(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    document = json.loads((SERVE / "serve-c1.json").read_text()) | changes
    (tmp_path / "a.json").write_text(json.dumps(document))
    with pytest.raises(KvplanError, match=f"Nothing in .*a.json can be used: {reason}"):
        read_results([tmp_path / "a.json"])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is empty"),
        ("{", "is not JSON"),
        ("{}", "holds no result that is known"),
        ("[1, 2]", "holds no result that is known"),
        ('{"guidellm_version": 1}', "holds no result that is known"),
        ('[{"case": "a", "requests": 3, "median_us": 1}]', "is missing or not a list of objects"),
    ],
)
def test_files_that_are_no_results(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(KvplanError, match=sentence):
        read_results([tmp_path / "a.json"])


_DETAILS = {"input_lens": [3], "output_lens": [3], "ttfts": [0.1], "itls": [[0.2, 0.2]], "start_times": [0]}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"duration": "fast"}, "'duration' in .* is missing or not a number"),
        ({"duration": 0}, "'duration' in .* is missing or not a number above 0"),
        ({"duration": 10**400}, "'duration' in .* is missing or not a number above 0"),
        ({"request_rate": -3}, "'request_rate' in .* is missing or not a number above 0"),
        ({"max_concurrency": -1}, "'max_concurrency' in .* is missing or not a number above 0"),
        ({"burstiness": -1, "request_rate": 2}, "'burstiness' in .* is missing or not a number above 0"),
        ({"mean_ttft_ms": -3}, "'mean_ttft_ms' in .* is missing or not a number above 0"),
        (
            {"total_input_tokens": 1e30},
            "'total_input_tokens' in .* is missing or not a number from 0 to 1,000,000,000,000",
        ),
        ({**_DETAILS, "itls": [0.2]}, "'itls' in .* is missing or not a list of lists of numbers"),
        ({**_DETAILS, "itls": [["fast"]]}, "'itls' in .* is missing or not a list of lists of numbers"),
        ({**_DETAILS, "itls": []}, "'itls' in .* is missing or not a list with an entry for every request"),
        ({**_DETAILS, "input_lens": [math.nan]}, "'input_lens' in .* is missing or not a list of numbers from 0"),
        ({**_DETAILS, "output_lens": [-1]}, "'output_lens' in .* is missing or not a list of numbers from 0"),
        ({**_DETAILS, "duration": 0}, "'duration' in .* is missing or not a number above 0"),
        ({"tp": 0}, "says tensor_parallel_size '0', which is not a number above 0"),
        ({"gpu_memory_utilization": "nan"}, "says gpu_memory_utilization 'nan', which is not a number above 0"),
    ],
)
def test_figures_that_cannot_be_are_named(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    document = json.loads((SERVE / "serve-c1.json").read_text()) | changes
    (tmp_path / "a.json").write_text(json.dumps(document))
    with pytest.raises(KvplanError, match=sentence):
        read_results([tmp_path / "a.json"])


def test_a_gpu_without_a_name_is_not_told(tmp_path: Path) -> None:
    gpus: dict[str, Any] = {"0": {}, "1": 3}
    document = json.loads((DATA / "aiperf.json").read_text())
    document |= {"telemetry_data": {"endpoints": {"a": {"gpus": gpus}, "b": None}}}
    (tmp_path / "a.json").write_text(json.dumps(document))
    (load,) = read_results([tmp_path / "a.json"]).loads
    assert load.served.gpu is None
    gpus["0"]["gpu_name"] = "NVIDIA H100"
    (tmp_path / "a.json").write_text(json.dumps(document))
    (load,) = read_results([tmp_path / "a.json"]).loads
    assert load.served.gpu == "NVIDIA H100"


def test_a_figure_within_another_is_named_with_it(tmp_path: Path) -> None:
    document = json.loads((DATA / "aiperf.json").read_text()) | {"benchmark_duration": {"avg": 0}}
    (tmp_path / "a.json").write_text(json.dumps(document))
    with pytest.raises(KvplanError, match=r"'benchmark_duration\.avg' in .* is missing or not a number above 0"):
        read_results([tmp_path / "a.json"])


def test_a_run_of_a_vllm_sweep_with_several_results(tmp_path: Path) -> None:
    """``--append-result`` in a sweep's own options; what stands beside them is counted."""
    text = (SERVE / "serve-c1.json").read_text()
    (tmp_path / "run=0.json").write_text(text + text + "{}")
    found = read_results([tmp_path])
    assert (len(found.loads), dict(found.excluded)) == (2, {"no result of a served load": 1})


def test_folders_below_are_read_as_deep_as_a_vllm_sweep_writes(tmp_path: Path) -> None:
    """``--output-dir``, an experiment, a combination; what lies deeper is somebody else's."""
    text = (SERVE / "serve-c1.json").read_text()
    for folder in ("2026/SERVE--BENCH--a", "2026/SERVE--BENCH--b", "2026/old/copy/SERVE--BENCH--c"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "run=0.json").write_text(text)
    assert len(read_results([tmp_path]).loads) == 2
    assert [path.parent.name[-1] for path in result_files(tmp_path)] == ["a", "b"]


def test_a_folder_of_run_directories_is_none(tmp_path: Path) -> None:
    for name in ("one run", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
    with pytest.raises(KvplanError, match="is no run directory; 2 of the folders in it are") as caught:
        read_results([tmp_path])
    assert caught.value.hint == f"name those to read: '{tmp_path}/one run' {tmp_path}/two"


@pytest.mark.parametrize(
    ("lost", "sentence"), [("options", "lacks options"), ("workload", r"lacks workload\."), ("spec", r"workload\.spec")]
)
def test_a_manifest_that_lost_a_part_is_one_sentence(tmp_path: Path, lost: str, sentence: str) -> None:
    manifest = json.loads((DATA / "vllm-cpu-sweeps" / "gpt2-pool" / "manifest.json").read_text())
    for holder in (manifest, manifest["workload"]):
        holder.pop(lost, None)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    for read in (is_own_sweep, lambda path: read_results([path])):
        with pytest.raises(KvplanError, match=sentence):
            read(tmp_path)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KvplanError, match=r"none\.json does not exist"):
        read_results([tmp_path / "none.json"])
    with pytest.raises(KvplanError, match="it has no results"):
        read_results([tmp_path])
