"""``kvplan estimate`` of several models, contexts, formats and GPUs: one table, and options that take lists alike."""

from __future__ import annotations

import csv
import io
import json

import pytest

from kvplan.catalog.releases.vllm import latest_vllm
from kvplan.cli import main


def rows_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, str]]:
    assert main(["estimate", *arguments, "--format", "csv"]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_csv_says_which_model_kv_dtype_and_bytes_per_token(capsys):
    (row,) = rows_of(capsys, "llama-3.1-8b", "--ctx", "8k", "--gpu", "h100", "--kv-cache-dtype", "fp8")
    names = ("model", "context_tokens", "kv_cache_dtype", "bytes_per_token", "weight_format", "gpu")
    expected = ["meta-llama/Llama-3.1-8B", "8192", "fp8", "65536", "bfloat16", "h100-sxm"]
    assert [row[name] for name in names] == expected


def test_rows_are_models_by_contexts_by_gpus(capsys):
    rows = rows_of(capsys, "gpt2", "opt-125m", "--ctx", "512,1k", "--gpu", "l4,h100")
    assert [(row["model"], row["context_tokens"], row["gpu"]) for row in rows] == [
        (model, context, gpu)
        for model in ("openai-community/gpt2", "facebook/opt-125m")
        for context in ("512", "1024")
        for gpu in ("l4", "h100-sxm")
    ]


def test_several_answers_are_one_document_of_documents(capsys):
    alone = main(["estimate", "gpt2", "--ctx", "512", "--gpu", "l4", "--json"])
    single = json.loads(capsys.readouterr().out)
    assert main(["estimate", "gpt2", "--ctx", "512,1k", "--gpu", "l4", "--json"]) == alone == 0
    several = json.loads(capsys.readouterr().out)
    assert (single["schema"], several["schema"]) == ("kvplan.estimate/1", "kvplan.estimates/1")
    assert several["estimates"][0] == single
    assert [each["context_tokens"] for each in several["estimates"]] == [512, 1024]


@pytest.mark.parametrize("form", ["table", "md"])
def test_several_answers_are_one_table(printed_by, form):
    lines = printed_by(
        "estimate", "llama-3.1-8b", "gpt2", "--ctx", "1k", "--gpu", "l4", "h100", "--format", form
    ).splitlines()
    rows = [line for line in lines if "Llama-3.1-8B" in line or "gpt2" in line]
    assert len(rows) == 4 and all("1k" in row for row in rows)
    assert sum("131,072" in row for row in rows) == sum("36,864" in row for row in rows) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["--gpu", "l4,h100"],
        ["--gpu", "l4", "--gpu", "h100"],
        ["--gpu", "l4", "h100"],
        ["--gpu", "l4, h100"],
        ["--gpu", "l4", "--gpu", "l4", "h100"],
    ],
)
def test_list_options_take_commas_repetition_and_spaces_alike(capsys, words):
    assert [row["gpu"] for row in rows_of(capsys, "gpt2", *words)] == ["l4", "h100-sxm"]


@pytest.mark.parametrize(
    ("option", "values", "column", "expected"),
    [
        ("--kv-cache-dtype", "auto fp8", "kv_cache_dtype", ["bfloat16", "fp8"]),
        ("--quantization", "none awq", "weight_format", ["bfloat16", "awq 4-bit, group 128"]),
        ("--ctx", "1k 2k", "context_tokens", ["1024", "2048"]),
    ],
)
def test_formats_and_contexts_are_lists_too(capsys, option, values, column, expected):
    for words in ([option, *values.split()], [option, values.replace(" ", ",")]):
        rows = rows_of(capsys, "qwen3-0.6b", "--ctx", "1k", "--gpu", "l4", *words)
        assert sorted({row[column] for row in rows}, key=expected.index) == expected


def test_a_value_after_a_space_belongs_to_the_option_before_it(capsys):
    words = ["--quantization", "none", "awq", "--kv-cache-dtype", "auto", "fp8", "--gpu", "l4", "h100", "--ctx", "512"]
    rows = rows_of(capsys, "--gpu", "a10g", "gpt2", *words)
    assert {row["weight_format"] for row in rows} == {"bfloat16", "awq 4-bit, group 128"}
    assert {row["kv_cache_dtype"] for row in rows} == {"bfloat16", "fp8"}
    assert {row["gpu"] for row in rows} == {"a10g", "l4", "h100-sxm"}
    assert {row["model"] for row in rows} == {"openai-community/gpt2"}


def test_a_file_that_exists_is_a_model_and_not_a_gpu(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 100, "n_positions": 64}
    (tmp_path / "l4").mkdir()
    (tmp_path / "l4" / "config.json").write_text(json.dumps(config))
    assert [row["model"] for row in rows_of(capsys, "--gpu", "h100", "l4")] == ["l4"]


def test_a_count_in_the_gpus_name_is_the_tensor_parallel_size(capsys):
    (counted,) = rows_of(capsys, "llama-3.1-70b", "--ctx", "8k", "--gpu", "8xh200")
    (spelled,) = rows_of(capsys, "llama-3.1-70b", "--ctx", "8k", "--gpu", "h200", "--tp", "8")
    assert counted == spelled and counted["tensor_parallel_size"] == "8"
    (piped,) = rows_of(capsys, "llama-3.1-70b", "--ctx", "8k", "--gpu", "8xh200", "--pp", "2")
    assert (piped["tensor_parallel_size"], piped["pipeline_parallel_size"]) == ("4", "2")


def test_gpus_in_different_numbers_stand_in_one_table(printed_by):
    shown = printed_by("estimate llama-3.1-8b --ctx 8k --gpu h100,2xl4")
    assert "  2 x l4 " in shown and "  h100-sxm " in shown and "GiB per GPU" in shown


def test_nothing_fits_is_exit_code_1_after_the_table(capsys):
    assert main(["estimate", "llama-3.1-405b", "--gpu", "l4"]) == 1
    captured = capsys.readouterr()
    assert "the weights do not fit" in captured.out
    assert "error: meta-llama/Meta-Llama-3.1-405B does not fit on l4" in captured.err and "hint: " in captured.err
    assert main(["estimate", "llama-3.1-405b", "--gpu", "l4", "16xb200", "--ctx", "8k"]) == 0, "one of them fits"
    assert main(["estimate", "llama-3.1-405b"]) == 0, "no GPU was asked for"


@pytest.mark.parametrize("form", ["table", "csv", "md", "json"])
def test_a_context_beyond_the_models_positions_is_said_without_explain(said_by, form):
    assert "note: 256k tokens are beyond the 128k positions of meta-llama/Llama-3.1-8B" in said_by(
        "estimate", "llama-3.1-8b", "--ctx", "256k", "--gpu", "h200", "--format", form, code=0
    )


def test_a_gpu_without_bfloat16_is_sized_in_what_vllm_serves(capsys):
    (row,) = rows_of(capsys, "qwen3-0.6b", "--ctx", "1k", "--gpu", "t4")
    assert (row["dtype"], row["kv_cache_dtype"]) == ("float16", "float16")
    assert main(["estimate", "gemma-2-2b", "--ctx", "1k", "--gpu", "t4", "l4", "--json"]) == 0
    captured = capsys.readouterr()
    first, second = json.loads(captured.out)["deployments"]
    assert first["weight_bytes"] > 1.9 * second["weight_bytes"]
    assert "t4 has no bfloat16 and this model overflows in float16: vLLM serves in float32 there." in captured.err


def test_fp8_named_for_a_checkpoint_in_fp8_blocks_is_its_own_format(capsys):
    (named,) = rows_of(capsys, "deepseek-v3", "--quantization", "fp8", "--ctx", "8k", "--gpu", "8xh200")
    (published,) = rows_of(capsys, "deepseek-v3", "--ctx", "8k", "--gpu", "8xh200")
    assert named == published and named["weight_format"] == "fp8 8-bit, block 128 x 128"


def test_a_version_newer_than_the_newest_known_is_a_note(capsys):
    assert main(["estimate", "gpt2", "--gpu", "l4", "--engine", "vllm@0.99"]) == 0
    captured = capsys.readouterr()
    assert (
        f"vllm@{latest_vllm()}" in captured.out
        and "note: vLLM 0.99 is newer than the newest release known" in captured.err
    )


@pytest.mark.parametrize("form", ["table", "csv", "md", "json"])
def test_what_is_sized_by_its_name_is_said_once(capsys, form, monkeypatch):
    monkeypatch.setattr("kvplan.catalog.hub._hub_answers", lambda: False)
    assert main(["estimate", "Qwen/Qwen2.5-7B-Instruct-AWQ", "--gpu", "h100", "--format", form]) == 0
    captured = capsys.readouterr()
    sentence = "note: Qwen/Qwen2.5-7B-Instruct-AWQ is sized from its name alone"
    assert captured.out.count(sentence) + captured.err.count(sentence) == 1
