"""What kvplan estimate prints of layouts, of the interval around a KV cache, and of drafters."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import kvplan
from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.commands.printing.estimate_parts import layout_lines
from kvplan.commands.printing.estimate_rows import range_cell
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.deployments import place
from kvplan.estimate.kvplan.layout import plan_layout
from kvplan.paths import profiles_dir
from kvplan.settings import ServingSettings


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["estimate", *arguments, "--engine", "kvplan", "--gpu", "h200", "--explain"]) == 0
    return capsys.readouterr().out


def test_windows_and_full_layers_share_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    lines = explained(capsys, "gemma-3-27b", "--ctx", "8k").splitlines()
    first = next(index for index, line in enumerate(lines) if "paged:" in line)
    assert [line.strip() for line in lines[first : first + 4]] == [
        "paged: 3,413 blocks in 2 groups x 327,680 B = 1,118,371,840 B, 1.0 % over logical",
        "blocks of 327,680 B = 320.00 KiB, in bundles for 16 tokens:",
        "all tokens:         512 x 4 blocks  0.0 % empty",
        "last 1,024 tokens:  65 x 21 blocks  1.0 % empty",
    ]
    assert "blocks of 320.00 KiB" in lines[-1 - next(i for i, line in enumerate(reversed(lines)) if "budget" in line)]


def test_states_take_blocks_of_the_same_pool(capsys: pytest.CaptureFixture[str]) -> None:
    out = explained(capsys, "qwen3.5-27b", "--ctx", "8k")
    assert "in bundles for 16 tokens, or for a state:" in out
    assert "states:      1 x 147 blocks" in out


def test_one_kind_of_layers_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "blocks of 2,097,152 B = 2.00 MiB: all layers of 16 tokens" in explained(capsys, "llama-3.1-8b")


def test_chunks_are_named() -> None:
    lines = layout_lines(plan_layout(resolve_model("llama-4-scout"), CacheSettings(), 16), 32_768)
    assert lines[1:] == [
        "  all tokens:             2,048 x 1 block  0.0 % empty",
        "  chunk of 8,192 tokens:  513 x 3 blocks   0.0 % empty",
    ]


def test_the_document_names_the_groups(printed_by: Callable[..., str]) -> None:
    layout = json.loads(printed_by("estimate gpt-oss-20b --engine kvplan --gpu h200 --format json"))["kv_cache"][
        "layout"
    ]
    assert (layout["block_size"], layout["block_bytes"]) == (16, 384 * 1024)
    assert [(each["kept"], each["kept_tokens"], each["width"]) for each in layout["groups"]] == [
        ("full", None, 1),
        ("window", 128, 1),
    ]
    assert (
        json.loads(printed_by("estimate gpt-oss-20b --gpu h200 --format json"))["kv_cache"]["layout"] is None
    )  # vLLM has groups of its own


def test_every_profile_is_placed() -> None:
    """No architecture is refused; what does not fit one H200 says what is missing."""
    engine, gpu = EngineChoice("kvplan"), find_gpu("h200")
    settings = ServingSettings(max_model_len=256)
    names = sorted(file.stem for file in (profiles_dir() / "models").glob("*.json"))
    for name in names:
        found = place(resolve_model(name), gpu, engine, settings).deployment
        assert found.fits == (found.limit is None), name
        assert not found.fits or (found.num_blocks > 0 and found.kv_cache_tokens >= 256), name


def test_a_window_beyond_which_nothing_is_kept_lets_more_sequences_in(capsys: pytest.CaptureFixture[str]) -> None:
    engine, gpu = EngineChoice("kvplan"), find_gpu("h200")
    settings = ServingSettings(max_model_len=32_768, max_num_batched_tokens=2048)
    mistral, longer = (place(resolve_model(name), gpu, engine, settings).deployment for name in (
        "mistral-7b-v0.1", "llama-3.1-8b"))  # fmt: skip
    # 257 blocks of 16 tokens hold a window of 4,096, whatever the sequence's length
    assert mistral.max_concurrency == mistral.num_blocks / 257
    assert mistral.kv_cache_tokens == mistral.num_blocks * 32_768 // 257
    assert longer.kv_cache_tokens == longer.num_blocks * 16


@pytest.mark.parametrize("models", [["llama-3.1-8b"], ["llama-3.1-8b", "qwen3-8b"]])
def test_tables_say_how_far_the_tokens_can_lie_from_the_prediction(
    printed_by: Callable[..., str], models: list[str]
) -> None:
    lines = printed_by("estimate", *models, "--gpu", "h100", "--ctx", "8k").splitlines()
    title = next(line for line in lines if "fit at once" in line)
    assert "+/- is a 90 % interval" in title
    head, row = lines[lines.index(title) + 1], lines[lines.index(title) + 3]
    assert head[: head.index("+/-")].split()[-2:] == ["KV", "tokens"]
    share = row[: head.index("+/-") + 3].split()[-2:]
    assert share[1] == "%" and 0 < float(share[0]) < 5


def test_a_deployment_that_fits_only_if_all_goes_well_is_said_to(printed_by: Callable[..., str]) -> None:
    assert "may not fit: at the low end" in printed_by("estimate", "qwen3-30b-a3b", "--gpu", "h100", "--ctx", "120k")
    assert "may not fit" not in printed_by("estimate", "qwen3-30b-a3b", "--gpu", "h200", "--ctx", "120k")


def test_explain_lists_the_causes_with_their_bytes(printed_by: Callable[..., str]) -> None:
    text = printed_by("estimate", "llama-3.1-8b", "--gpu", "gb10", "--ctx", "8k", "--explain")
    assert "GiB of KV pool" in text
    causes = [line.split()[1] for line in text.splitlines() if line.startswith("    +/- ")]
    assert len(causes) == 7
    assert causes == sorted(causes, key=float, reverse=True)
    assert "memory that is the host's" in text


def test_what_a_later_start_has_more_is_said_of_intervals_that_are_shown(printed_by: Callable[..., str]) -> None:
    """A GPU whose weights do not fit has no interval beside which anything could stand."""
    said = "note: +/- is of a first start; a later one has"
    assert said in printed_by("estimate", "llama-3.1-8b", "--ctx", "16k", "--gpu", "l4")
    assert said not in printed_by("estimate", "qwen3-30b-a3b", "--ctx", "32k", "--gpu", "l4,h100-sxm")


def test_an_engine_without_start_ups_has_no_column(printed_by: Callable[..., str]) -> None:
    assert "+/-" not in printed_by("estimate", "gpt2", "--gpu", "h100", "--engine", "kvplan")


def test_csv_has_both_ends(printed_by: Callable[..., str]) -> None:
    row = next(csv.DictReader(io.StringIO(printed_by("estimate", "gpt2", "--gpu", "h100", "--format", "csv"))))
    assert int(row["kv_cache_tokens_low"]) < int(row["kv_cache_tokens"]) < int(row["kv_cache_tokens_high"])


def test_an_interval_from_nothing_is_said_in_tokens() -> None:
    """``+/- 305.8 %`` of few tokens says less than that there may be none."""
    spec = resolve_model("llama-3.1-8b")
    found = place(spec, find_gpu("l40s"), EngineChoice("vllm"), ServingSettings(max_model_len=4096)).deployment
    assert range_cell(found).endswith(" %")
    assert found.kv_range is not None
    empty = replace(found, kv_range=replace(found.kv_range, tokens=(0, 37000)))
    assert range_cell(empty) == "0 to 37,000"


def test_a_headline_shows_what_vllm_keeps(printed_by: Callable[..., str], answer_of: Callable[..., Any]) -> None:
    """DeepSeek-V3.2: 61 layers of 576 numbers of 2 B, and of 132 B of index keys."""
    shown = printed_by("estimate", "deepseek-v3.2", "--gpu", "8xh200", "--ctx", "64k")
    assert "KV cache  78,324 B per token" in shown and "85,888" not in shown
    assert 70272 + 61 * 132 == 78324
    assert "One sequence of 64k tokens: 4.78 GiB (4.78 GiB in whole blocks; 4.78 GiB must be free to admit it)" in shown
    document = answer_of("estimate deepseek-v3.2 --gpu 8xh200 --ctx 64k")["kv_cache"]
    assert (document["bytes_per_token"], document["logical_bytes"]) == (78324, 78324 * 65536)
    assert kvplan.estimate("deepseek-v3.2", gpu="8xh200", ctx="64k").kv_bytes_per_token == 78324


@pytest.mark.parametrize(
    "name", ["deepseek-v3.2", "deepseek-v3.2-nvfp4", "deepseek-v4-flash", "llama-3.1-70b-instruct-fp8", "gemma-3-27b"]
)
def test_a_token_costs_the_same_in_the_list_of_models(name: str) -> None:
    """Index keys and compressed attention in 8 bits, and caches in the format that a checkpoint was calibrated for."""
    listed = next(each for each in kvplan.models(name) if each.name == name)
    found = kvplan.estimate(name, gpu="8xh200", ctx="4k")
    assert listed.kv_bytes_per_token == found.kv_bytes_per_token
    cache = found.to_dict()["kv_cache"]
    assert cache["logical_bytes"] <= cache["paged_bytes"], "whole blocks hold what a sequence takes"


CONFIG = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}'


def test_a_second_model_by_two_options(ran: Callable[..., tuple[int, str, str]]) -> None:
    options = ("--ctx", "8k", "--gpu", "4xh100", "--speculative-model", "llama-3.2-1b", "--num-speculative-tokens", "4")
    code, out, err = ran("estimate", "llama-3.1-70b", *options)
    assert (code, err) == (0, "")
    assert "Drafter   llama-3.2-1b (draft_model), 4 draft tokens per step: 606.13 MiB of weights per GPU" in out
    assert "32,768 B per token of KV cache" in out
    rates = [line.split()[1] for line in out.splitlines() if line.strip().startswith("h100-sxm ")][1:]
    assert rates == ["0.5", "0.7", "0.9"]


def test_the_json_of_vllm_and_a_rate(ran: Callable[..., tuple[int, str, str]]) -> None:
    options = ("--ctx", "8k", "--gpu", "h100", "--speculative-config", CONFIG, "--acceptance-rate", "0.5", "--json")
    code, out, _ = ran("estimate", "llama-3.1-8b", *options)
    assert code == 0
    found = json.loads(out)["speculation"]
    assert (found["method"], found["num_speculative_tokens"], found["bytes_per_token"]) == ("ngram", 4, 0)
    (deployment,) = found["deployments"]
    assert deployment["weight_bytes"] == 0
    assert deployment["gains"][0]["tokens_per_step"] == 1.938


@pytest.mark.parametrize("output", ["table", "md"])
def test_a_method_without_weights_says_so(ran: Callable[..., tuple[int, str, str]], output: str) -> None:
    options = ("--ctx", "8k", "--gpu", "h100", "--speculative-config", CONFIG, "--format", output)
    _, out, _ = ran("estimate", "llama-3.1-8b", *options)
    assert "Drafter   n-grams of the text so far, 4 draft tokens per step: no weights and no cache" in out


def test_gpus_of_several_counts_are_one_answer(ran: Callable[..., tuple[int, str, str]]) -> None:
    options = ("--ctx", "8k", "--gpu", "2xh100,h200", "--num-speculative-tokens", "1", "--json")
    _, out, _ = ran("estimate", "mimo-7b-base", *options)
    found = json.loads(out)
    assert [each["gpu"] for each in found["speculation"]["deployments"]] == ["h100-sxm", "h200"]
    assert len(found["deployments"]) == 2


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("llama-3.1-8b --gpu h100 --ctx 10m", "hint: use --ctx 131072"),
        ("llama-2-13b --gpu rtx-4090 --ctx 32k", "(--quantization fp8 --ctx 4096)"),
    ],
)
def test_a_hint_names_no_context_beyond_the_positions(words: str, hint: str, said_by: Callable[..., str]) -> None:
    """446,176 and 10,608 tokens fit, and vLLM refuses more than the positions."""
    assert hint in said_by("estimate", *words.split(), code=1)


def test_memory_that_loading_leaves_free_is_said(printed_by: Callable[..., str]) -> None:
    """93.94 MiB on each H200; of Llama it is next to nothing."""
    assert "MiB of the overhead lies free in memory that PyTorch keeps from loading" in printed_by(
        "estimate deepseek-v3 --gpu 8xh200 --explain"
    )
    assert "that PyTorch keeps from loading" not in printed_by("estimate llama-3.1-8b --gpu h100 --explain")
