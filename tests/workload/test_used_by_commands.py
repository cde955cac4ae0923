"""A workload file in `load`, `sweep` and `plan`: its count, its times, its part, and what is said of it."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

import kvplan
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.speed.queueing.loads import LengthDistribution, PlayedLoad, TracedLoad
from kvplan.load.options import LoadOptions
from kvplan.planner.answer.document import plan_document
from kvplan.planner.question.asking import plan_request
from kvplan.planner.search.plan import make_plan
from kvplan.settings import ServingSettings
from kvplan.sweeps.options import SweepOptions
from kvplan.workload.part import FilePart, file_part
from kvplan.workload.requests import generate_requests
from kvplan.workload.shape import shape_of_file

FILES = Path(__file__).parents[1] / "data" / "workloads"


def long_trace(path: Path, count: int = 3000, gap: float = 0.5) -> Path:
    rows = "".join(f"{gap * place},{10 + place % 7},{2 + place % 3}\n" for place in range(count))
    path.write_text("arrival_s,input_len,output_len\n" + rows)
    return path


def test_a_load_sends_every_request_of_a_file_and_counts_them(tmp_path: Path) -> None:
    """A file of 3,000 rows was cut to 1,000, and one of five was called 1,000 requests."""
    path = str(long_trace(tmp_path / "t.csv"))
    plan = LoadOptions(url="http://x", workload=path).traffic()
    assert plan.as_text() == "3,000 requests, lengths of t.csv, arriving as in the file"
    assert len(list(plan.requests())) == 3000
    short = LoadOptions(url="http://x", workload=path, num_prompts=40, num_warmups=10)
    assert short.traffic().as_text().startswith("40 requests, lengths of t.csv, arriving as in the file")
    assert len(list(short.traffic().requests())) == 50
    assert "t.csv: 50 of its 3,000 requests are used" in short.file_notes()
    warm = LoadOptions(url="http://x", workload=path, num_warmups=10).traffic()
    assert (warm.workload.num_prompts, len(list(warm.requests()))) == (2990, 3000)
    with pytest.raises(KvplanError, match=r"3,000 requests of the workload file .* are all warm-ups"):
        LoadOptions(url="http://x", workload=path, num_warmups=3000).traffic()


def test_a_run_by_the_clock_has_all_of_a_trace_at_hand(tmp_path: Path) -> None:
    path = str(long_trace(tmp_path / "t.csv", count=5000, gap=0.01))
    plan = LoadOptions(url="http://x", workload=path, duration=45.0).traffic()
    assert sum(each.arrival_seconds <= 45 for each in plan.requests()) == 4501


def test_the_words_of_arrivals_are_the_files(tmp_path: Path) -> None:
    """Only a file with times is followed, and a rate stretches it."""
    path = str(long_trace(tmp_path / "t.csv", count=9))
    untimed = str(FILES / "sharegpt.json")
    assert LoadOptions(url="http://x", workload=untimed).traffic().arrivals_text == "all at once"
    assert SweepOptions("gpt2", workload=untimed).workload_spec("cpu").as_text() == (
        "17 requests, lengths of sharegpt.json, all at once"
    )
    faster = LoadOptions(url="http://x", workload=path, speed=2).traffic()
    assert faster.arrivals_text == "arriving as in the file at 2 times its speed"
    assert max(each.arrival_seconds for each in faster.requests()) == 2.0
    stretched = LoadOptions(url="http://x", workload=path, request_rate="9").traffic()
    assert stretched.arrivals_text == "arriving as in the file, at 9 requests/s"
    assert max(each.arrival_seconds for each in stretched.requests()) == pytest.approx(1.0)


def test_a_timed_trace_has_its_rate_in_the_row(tmp_path: Path) -> None:
    path = str(long_trace(tmp_path / "t.csv", count=9))
    timed, untimed = (
        SweepOptions("gpt2", workload=file).workload_spec("cpu") for file in (path, str(FILES / "plain.csv"))
    )
    assert timed.offered_rate == pytest.approx(9 / 4) and timed.num_prompts == 9
    assert math.isinf(untimed.offered_rate)
    assert "arriving as in the file" in timed.as_text()


def test_a_sweeps_workload_survives_its_manifest(tmp_path: Path) -> None:
    options = SweepOptions("gpt2", workload=str(long_trace(tmp_path / "t.csv")), start="1m", end="2m", speed=2.0)
    workload = options.workload_spec("cpu")
    assert (workload.num_prompts, len(generate_requests(workload))) == (120, 120)
    again = type(workload).from_json(json.loads(json.dumps(workload.as_json())))
    assert generate_requests(again) == generate_requests(workload)
    assert SweepOptions.from_json(json.loads(json.dumps(options.as_json()))) == options


def test_a_dry_run_says_what_was_read(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "gpt2", "--workload", str(FILES / "mooncake.jsonl"), "--dry-run", "--max-num-seqs", "4")
    assert main(["sweep", *words, "--max-model-len", "1024", "--to", "6s"]) == 0
    printed, talk = capsys.readouterr()
    assert "mooncake.jsonl: timestamps read as milliseconds" in talk
    assert "mooncake.jsonl: 4 of its 10 requests are used" in talk
    assert "speeds are not predicted" in talk
    assert "4 requests, lengths of mooncake.jsonl, arriving as in the file" in printed.replace("\n", " ")


def test_a_trace_without_a_clock_keeps_its_order(tmp_path: Path) -> None:
    """Blocks are counted with --load-format none, where nothing takes time."""
    options = SweepOptions("gpt2", workload=str(FILES / "bailian.jsonl"), load_format="none", end="1m")
    workload = options.workload_spec("cuda")
    requests = generate_requests(workload)
    assert {each.arrival_seconds for each in requests} == {0.0} and [each.index for each in requests] == [0, 1, 2, 3]
    assert workload.as_text() == "4 requests, lengths of bailian.jsonl, all at once"
    assert any("its times are not used, its order is" in note for note in options.file_notes())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"start": "soon"}, "--from 'soon' is not a time"),
        ({"start": "10m", "end": "5m"}, "--to must be later than --from"),
        ({"speed": 0.0}, "--speed must be above 0"),
        ({"sample": 0}, "--sample must be at least 1"),
        ({"trace_unit": "min"}, "Unknown --trace-unit 'min'"),
        ({"speed": 2.0, "has_rate": True}, "--speed cannot be used with --request-rate"),
        ({"sample": 5, "has_file": False}, "--sample needs a --workload"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_parts_that_cannot_be(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        file_part(**options)  # type: ignore[arg-type]


def test_a_shape_has_the_busiest_minutes_and_what_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    slow, fast = [20 * place for place in range(100)], [2000 + place for place in range(900)]
    path.write_text("arrival_s,input_len,output_len\n" + "".join(f"{time},100,10\n" for time in slow + fast))
    shape = shape_of_file(path)
    assert shape.num_requests == 1000 and shape.busiest_rate == pytest.approx(1.0)
    assert shape.rate == pytest.approx(1000 / 2899) and set(shape.gaps) == {1.0}
    assert shape.reused_share is None
    mooncake = shape_of_file(FILES / "mooncake.jsonl")
    rows = [json.loads(line) for line in (FILES / "mooncake.jsonl").read_text().splitlines()]
    found = 0
    for place, row in enumerate(rows):
        before = {block for earlier in rows[:place] for block in earlier["hash_ids"]}
        known = [block in before for block in row["hash_ids"]]
        found += min(512 * [*known, False].index(False), row["input_length"] - 1)
    assert mooncake.reused_share == pytest.approx(found / sum(row["input_length"] for row in rows))


def test_requests_longer_than_the_context_are_left_out_and_counted() -> None:
    with (FILES / "azure_2023.csv").open() as file:
        totals = [int(row["ContextTokens"]) + int(row["GeneratedTokens"]) for row in csv.DictReader(file)]
    shape = shape_of_file(FILES / "azure_2023.csv", FilePart(), longest=2000)
    assert shape.num_requests == sum(total <= 2000 for total in totals) < 10
    assert shape.longest == max(total for total in totals if total <= 2000)
    assert any("longer than 2,000 tokens left out" in note for note in shape.notes)


@pytest.mark.parametrize("column", ["", ",arrival_s"])
def test_a_file_with_requests_beyond_the_model_says_so(tmp_path: Path, column: str) -> None:
    """The error named a --ctx-max that nobody had given; with the one that it hints at, the file is planned."""
    path = tmp_path / "long.csv"
    rows = [f"{tokens},100{column and f',{60 * place}'}\n" for place, tokens in enumerate((1000, 1100, 200_000))]
    path.write_text(f"input_len,output_len{column}\n" + "".join(rows))
    users = None if column else 2
    with pytest.raises(KvplanError, match=r"requests of long\.csv, of up to 200,100 tokens, are beyond") as caught:
        kvplan.plan("llama-3.1-8b", gpu="h100", users=users, workload=path)
    assert caught.value.hint == "use ctx_max=131072, which leaves longer ones out"
    with pytest.raises(KvplanError, match=r"; ctx_max=.300,000. is beyond them"):
        kvplan.plan("llama-3.1-8b", gpu="h100", users=users, workload=path, ctx_max=300_000)
    assert kvplan.plan("llama-3.1-8b", gpu="h100", users=users, workload=path, ctx_max=131072).best is not None


def test_a_played_trace_has_its_lengths_and_its_pattern() -> None:
    trace = TracedLoad("t", ((100, 5), (9, 70), (40, 40)), gaps=(0.0, 0.0, 6.0), rate=0.5)
    load = PlayedLoad(LengthDistribution(50), LengthDistribution(38), 9, requests_per_second=0.5, trace=trace)
    assert sorted(load.lengths) == sorted(3 * trace.pairs)
    assert [round(time, 3) for time in load.arrivals] == [0, 0, 0, 8, 8, 8, 16, 16, 16]
    share = PlayedLoad(LengthDistribution(50), LengthDistribution(38), 4, requests_per_second=0.25, trace=trace)
    assert share.arrivals[-1] == pytest.approx(12.0) and len(share.arrivals) == 4


def test_a_plan_takes_its_load_from_a_trace(tmp_path: Path) -> None:
    options = {"gpu": "h100-sxm", "slo": "ttft:2000 tpot:60"}
    trace = FILES / "mooncake.jsonl"
    averages = {"gpu": [options["gpu"]], "slo": [options["slo"]]}
    request = plan_request(EngineChoice("vllm"), ServingSettings(), workload=trace, **averages)
    document = plan_document(make_plan(resolve_model("llama-3.1-8b"), request))
    assert document["request"]["requests_per_second"] == pytest.approx(10 / 13.5, rel=1e-3)
    said = " ".join(document["assumptions"])
    assert "timestamps read as milliseconds" in said and "the busiest 5 min" in said
    assert "Requests arrive as in the busiest part of mooncake.jsonl" in said
    assert "this plan counts none of it" in said
    with pytest.raises(UsageError, match="input_len cannot be used with workload"):
        kvplan.plan("llama-3.1-8b", workload=trace, input_len=100, **options)
    with pytest.raises(UsageError, match="burstiness cannot be used with workload"):
        kvplan.plan("llama-3.1-8b", workload=trace, burstiness=0.5, **options)
    with pytest.raises(UsageError, match="A plan needs a load"):
        kvplan.plan("llama-3.1-8b", workload=FILES / "plain.csv", **options)
    users = kvplan.plan("llama-3.1-8b", workload=FILES / "plain.csv", users=4, **options).to_dict()
    assert any(
        "prompts 1,540, answers 234" in each or "plain.csv: 10 requests" in each for each in users["assumptions"]
    )
