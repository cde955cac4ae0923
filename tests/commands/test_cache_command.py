"""``kvplan cache``: what it prints of small traces, and what it says of those it cannot use."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvplan.fleet.tiers.splits import SPLITS

_BLOCK = 512


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Forty documents of 32 blocks, read in turn four times within an hour, as Mooncake writes them."""
    path = tmp_path / "documents.jsonl"
    rows = [
        {
            "timestamp": 22_500 * number,
            "input_length": 32 * _BLOCK,
            "output_length": 100,
            "hash_ids": [32 * (number % 40) + block for block in range(32)],
        }
        for number in range(160)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_the_curve_of_documents_in_turn(trace: Path, answer_of: Callable[..., Any]) -> None:
    """Forty documents are 80 GiB of llama-3.1-8b: less finds none of them, all of it three of four times."""
    words = f"cache {trace} llama-3.1-8b --gpu h100 --kv-cache-dtype auto --host-memory 100GiB"
    found = answer_of(words)
    assert found["schema"] == "kvplan.cache/1"
    (curve,) = found["curves"]
    by_gib = {round(tier["bytes"] / 2**30): tier for tier in curve["host"]}
    assert by_gib[64]["hit_share"] == 0 and by_gib[64]["verdict"] == "harms"
    whole = 3 / 4 * (1 - 16 / (32 * _BLOCK))
    assert by_gib[128]["hit_share"] == pytest.approx(whole)
    assert curve["asked_host"] == by_gib[100]
    assert curve["asked_host"]["hit_share"] == pytest.approx(whole)
    assert curve["hbm"]["hit_share"] == 0
    assert curve["token_bytes"] == 131_072 and curve["hit_unit_tokens"] == 16
    assert curve["reuse_distances"][0]["seconds"] == 40 * 22.5
    assert by_gib[64]["belady_share"] > 0.4


def test_the_verdict_stands_first_and_settings_last(trace: Path, ran: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = ran(f"cache {trace} llama-3.1-8b --kv-cache-dtype auto")
    assert code == 0
    assert out.startswith("meta-llama/Llama-3.1-8B on h100-sxm, bfloat16 KV: Buy 128 GiB of host memory")
    assert "--kv-offloading-size 128 --kv-offloading-backend native" in out
    assert "max_local_cpu_size: 128" in out and "--hicache-size 137" in out
    assert "timestamps read as milliseconds" in err
    rows = [line.split() for line in out.splitlines() if " host " in line and "  " in line]
    assert rows[1][:4] == ["64", "GiB", "host", "0.0"] or rows[0][:4] == ["32", "GiB", "host", "0.0"]


def test_a_tier_that_brings_nothing_is_not_bought(trace: Path, ran: Callable[..., tuple[int, str, str]]) -> None:
    _, out, _ = ran(f"cache {trace} llama-3.1-8b --kv-cache-dtype auto --host-memory 64GiB")
    assert "Do not buy: 64 GiB of host memory for the replica brings nothing" in out
    assert "--kv-offloading-size" not in out


def test_more_memory_than_a_node_has_is_said(trace: Path, ran: Callable[..., tuple[int, str, str]]) -> None:
    words = f"cache {trace} llama-3.1-8b --gpu h100 --kv-cache-dtype auto --host-memory"
    said = "300 GiB is more than nodes usually have: 2 TB for eight GPUs are 232.83 GiB for 1."
    assert said in " ".join(ran(f"{words} 300GiB")[1].split())
    assert "nodes usually have" not in ran(f"{words} 200GiB")[1]


def test_what_is_proposed_can_be_bought(tmp_path: Path, ran: Callable[..., tuple[int, str, str]]) -> None:
    """200 documents of 2 GiB in turn: of 400 GiB a node has 232.83 for a GPU, which finds none of them again."""
    path = tmp_path / "many.jsonl"
    rows = [
        {
            "timestamp": 9000 * n,
            "input_length": 32 * _BLOCK,
            "output_length": 9,
            "hash_ids": [*range(32 * (n % 200), 32 * (n % 200) + 32)],
        }
        for n in range(400)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    words = f"cache {path} llama-3.1-8b --kv-cache-dtype auto --gpu"
    _, out, _ = ran(f"{words} h100")
    text = " ".join(out.split())
    assert "Do not buy: 232 GiB of host memory for the replica brings nothing" in text and "proposed" not in text
    assert (
        "512 GiB would find 50.0 %, but is more than nodes usually have: 2 TB for eight GPUs are 232.83 GiB for 1."
        in text
    )
    _, out, _ = ran(f"{words} h100 --replicas 2 --router shared")
    text = " ".join(out.split())
    assert "Do not buy: 465 GiB of host memory shared by all replicas" not in text and "Buy 465 GiB" in text
    _, out, _ = ran(f"{words} 4xh100")
    assert "Buy 512 GiB of host memory" in out and "pays, proposed" in out and "nodes usually have" not in out


def test_ranks_get_their_parts_and_drives_their_tier(trace: Path, answer_of: Callable[..., Any]) -> None:
    words = f"cache {trace} llama-3.1-70b --gpu 4xh100 --kv-cache-dtype auto --host-memory 512GiB --nvme 1TiB"
    found = answer_of(words)
    (curve,) = found["curves"]
    vllm, lmcache, sglang = curve["settings"]
    assert '"cpu_bytes_to_use": 549755813888' in vllm["lines"][0] and '"type": "fs"' in vllm["lines"][0]
    assert "max_local_cpu_size: 128" in lmcache["lines"] and "max_local_disk_size: 256" in lmcache["lines"]
    assert "--tp 4" in sglang["lines"][0] and "--hicache-size 137 " in sglang["lines"][0]
    assert curve["asked_nvme"]["extra_tokens"] == 0 and curve["asked_nvme"]["verdict"] == "harms"


def test_a_split_trace_finds_less_than_a_shared_tier(trace: Path, answer_of: Callable[..., Any]) -> None:
    """Three replicas in turn: each document comes to another one each time."""
    shares = {}
    for router in SPLITS:
        words = f"cache {trace} llama-3.1-8b --kv-cache-dtype auto --replicas 3 --router {router} --host-memory 128GiB"
        (curve,) = answer_of(words)["curves"]
        shares[router] = curve["asked_host"]["hit_share"]
    assert shares["round-robin"] < 0.3 < shares["shared"]
    assert shares["prefix"] == pytest.approx(shares["shared"])


def test_csv_has_a_row_for_each_size(trace: Path, ran: Callable[..., tuple[int, str, str]]) -> None:
    _, out, _ = ran(f"cache {trace} --model llama-3.1-8b --gpu h100 h200 --kv-cache-dtype fp8 --format csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {row["gpu"] for row in rows} == {"h100-sxm", "h200"}
    assert {row["tier"] for row in rows} == {"hbm", "host"}
    _, out, _ = ran(f"cache {trace} llama-3.1-8b --kv-cache-dtype auto --format md")
    assert "| tier | hits % |" in out


def test_a_picture_and_a_page(trace: Path, tmp_path: Path, ran: Callable[..., tuple[int, str, str]]) -> None:
    plot, page = tmp_path / "curve.png", tmp_path / "curve.html"
    words = f"cache {trace} gemma-3-27b --gpu 2xh100 --kv-cache-dtype auto --plot {plot} --html {page}"
    assert ran(words)[0] == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "google/gemma-3-27b" in text and "Hits over GiB" in text and "<img" in text
    _, _, error = ran(f"cache {trace} llama-3.1-8b --plot {tmp_path / 'curve.svg'}")
    assert "Pictures of caches are PNG files" in error
    code, _, error = ran(f"cache {trace} llama-3.1-8b --kv-cache-dtype auto --html {tmp_path / 'none' / 'x.html'}")
    assert code == 1 and "could not be written: No such file" in error and "check that" in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--gpu l4", "does not fit on l4"),
        ("--host-memory 64", "--host-memory: '64' has no unit."),
        ("--router best", "Unknown --router 'best'"),
        ("--replicas 0", "--replicas must be from 1 to 1,024"),
        ("--host-bandwidth 0", "--host-bandwidth must be above 0"),
        ("--engine vllm@0.25 --gpu 2xh100", "vLLM 0.25.0 finds no shared prefixes of Qwen/Qwen3.5-27B"),
    ],
)
def test_mistakes_are_a_sentence(trace: Path, words: str, said: str, ran: Callable[..., tuple[int, str, str]]) -> None:
    model = "qwen3.5-27b" if "@0.25" in words else "llama-3.1-8b"
    code, _, error = ran(f"cache {trace} {model} {words}")
    assert code in (1, 2) and said in error and "hint: " in error and "Traceback" not in error


def test_a_model_in_the_place_of_the_trace(trace: Path, ran: Callable[..., tuple[int, str, str]]) -> None:
    code, _, error = ran(f"cache llama-3.1-8b {trace}")
    assert code == 2 and f"hint: the trace comes first: kvplan cache {trace} llama-3.1-8b" in error
    code, _, error = ran(f"cache {trace} gpt2 --gpu l4")
    assert code == 1 and "is longer than 1,024 tokens" in error and "cache --max-model-len" in error


def test_a_trace_without_ids_says_nothing_of_reuse(tmp_path: Path, ran: Callable[..., tuple[int, str, str]]) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("input_len,output_len\n100,10\n100,10\n")
    code, _, error = ran(f"cache {path} llama-3.1-8b")
    assert code == 1 and "does not say what its prompts begin with in common" in error and "hash_ids" in error


def test_chats_are_found_again_with_their_answers(tmp_path: Path, answer_of: Callable[..., Any]) -> None:
    """Of a chat's second prompt the first one and its answer are known; without times figures are of the whole."""
    path = tmp_path / "chats.jsonl"
    said = "word " * 2000
    turns = [{"from": who, "value": said} for who in ("human", "gpt", "human", "gpt")]
    path.write_text("\n".join(json.dumps({"conversations": turns}) for _ in range(3)))
    (curve,) = answer_of(f"cache {path} llama-3.1-8b --kv-cache-dtype auto")["curves"]
    assert 0.3 < curve["hbm"]["hit_share"] < 0.6
    assert curve["reuse_distances"][0]["seconds"] is None
