"""``kvplan estimate`` as users run it: exit codes, what stands on stdout, one sentence on stderr."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from kvplan.cli import main

ROOT = Path(__file__).parents[2]


def estimate(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    code = main(["estimate", *arguments, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if any(each["fits"] for each in found["deployments"]) else 1)
    return found


def test_json_follows_the_contract(capsys):
    answer = estimate(capsys, "llama-3.1-8b", "--ctx", "32k", "--gpu", "a100-80gb-sxm", "--engine", "kvplan")
    assert answer["schema"] == "kvplan.estimate/1"
    assert answer["model"]["num_parameters"] == 8_030_261_248
    assert answer["model"]["weight_bytes"] == 16_060_522_496
    assert answer["kv_cache"]["bytes_per_token"] == 131_072
    assert answer["kv_cache"]["logical_bytes"] == 4 * 2**30
    (deployment,) = answer["deployments"]
    assert deployment["fits"] and deployment["limit"] is None
    assert deployment["num_blocks"] == deployment["kv_pool_bytes"] // (131_072 * 16)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not valid JSON"),
        ("[]", "is not a JSON object"),
        ("{}", "neither 'architectures' nor 'model_type'"),
        ('{"architectures": ["BertForMaskedLM"], "model_type": "bert"}', "not a causal language model"),
        (
            '{"architectures": ["NeverHeardOfForCausalLM"], "model_type": "never"}',
            "Unknown architecture NeverHeardOfForCausalLM",
        ),
        ('{"architectures": ["LlamaForCausalLM"], "hidden_size": -4096}', "'hidden_size' is -4096"),
        ('{"architectures": ["LlamaForCausalLM"], "hidden_size": "4096"}', "'hidden_size' is '4096'"),
        ('{"architectures": ["LlamaForCausalLM"]}', "has no 'hidden_size'"),
    ],
)
def test_malformed_configs_are_refused_by_name(capsys, tmp_path, content, sentence):
    (tmp_path / "config.json").write_text(content)
    assert main(["estimate", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and sentence in captured.err and "Traceback" not in captured.err


def test_an_assumption_fills_a_gap_and_is_reported(capsys, said_by, tmp_path):
    config = json.loads((ROOT / "profiles/models/llama-2-7b.json").read_text())["config"]
    del config["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "--assume vocab_size=VALUE" in said_by("estimate", str(tmp_path), code=1)
    answer = estimate(capsys, str(tmp_path), "--assume", "vocab_size=32000")
    assert answer["model"]["num_parameters"] == 6_738_415_616
    assert any("vocab_size" in sentence for sentence in answer["assumptions"])


def test_explain_shows_every_formula_and_every_assumption(printed_by):
    words = "estimate gemma-3-27b --ctx 32k --gpu h100-sxm --max-num-batched-tokens 1024 --explain"
    text = printed_by(words)
    for line in (
        "81,920 B per token = 10 layers x 2 (K, V) x 16 KV heads x 128 x 2 B",
        "425,984 B per token up to 1,024 tokens = 52 layers x 2 (K, V) x 16 KV heads x 128 x 2 B",
        "admission: 3,206 blocks in 7 groups x 1,310,720 B = 4,202,168,320 B "
        "(with 2,048 tokens in flight: 2 batches of 1,024)",
        "in addition, vision tower: 416,866,032 parameters",
        "Assumptions:",
    ):
        assert line in text, line
    assert "\n\n\n" not in text


def test_tokens_in_flight_are_said_where_a_window_holds_them(printed_by):
    text = printed_by("estimate llama-3.1-8b --ctx 16k --gpu h100-sxm l4 --explain")
    assert text.count("admission: 1,024 blocks x 2,097,152 B = 2,147,483,648 B\n") == 1 and "in flight" not in text
    words = "estimate gemma-3-27b --ctx 32k --gpu h100-sxm --engine vllm@0.25 --explain"
    assert "(with 8,192 tokens in flight)" in printed_by(words)


def test_more_at_once_than_vllm_counts_is_explained(printed_by):
    printed = []
    for words in ("gemma-3-27b --ctx 8k", "llama-3.1-8b --ctx 8k", "gemma-3-27b --max-num-seqs 2 --ctx 8k"):
        printed.append(printed_by(f"estimate {words} --gpu h100"))
    assert "13 at once: vLLM counts 3.3, each with a step's tokens in its windows" in " ".join(printed[0].split())
    assert not any("vLLM counts" in each for each in printed[1:])


@pytest.mark.parametrize("form", ["csv", "md", "table", "json"])
def test_every_format_names_the_gpu(capsys, form):
    assert main(["estimate", "gpt2", "--gpu", "l4", "--format", form]) == 0
    captured = capsys.readouterr()
    assert "l4" in captured.out and captured.err == ""


def test_bytes_are_per_gpu_when_ranks_share_the_model(capsys):
    two, eight = (
        estimate(capsys, "llama-3.1-70b", "--ctx", "8k", "--gpu", "h200", "--tp", ranks)["deployments"][0]
        for ranks in ("2", "8")
    )
    assert eight["tensor_parallel_size"] == 8
    assert 0.24 < eight["weight_bytes"] / two["weight_bytes"] < 0.26
    assert eight["max_concurrency"] > 4 * two["max_concurrency"] > 0


def test_models_and_gpus_are_listed(answer_of, printed_by):
    rows = answer_of("models gpt2")["models"]
    assert {"gpt2"} <= {row["name"] for row in rows} and all(row["source"] for row in rows)
    assert all(row["memory_bytes"] > 2**36 for row in answer_of("gpus h100")["gpus"])
    assert "DeepseekV3ForCausalLM" in printed_by("models --architectures")


def test_the_version_and_a_call_without_a_command(printed_by, said_by):
    assert printed_by("--version").startswith("kvplan ")
    assert "error: " in said_by("nonsense")


def test_without_towers_more_is_left_for_the_cache(capsys):
    arguments = ("gemma-3-27b-it", "--ctx", "8k", "--gpu", "h100-sxm")
    (whole,) = estimate(capsys, *arguments)["deployments"]
    (text,) = estimate(capsys, *arguments, "--language-model-only")["deployments"]
    assert text["weight_bytes"] < whole["weight_bytes"]
    assert text["kv_cache_tokens"] > whole["kv_cache_tokens"]


def test_what_a_sequence_needs_to_be_admitted_is_what_the_deployment_divides_by(answer_of, printed_by):
    """Two batches are in flight from 0.26 on, of as many tokens as the GPU's default; GPUs may differ."""
    document = answer_of("estimate gemma-3-27b --ctx 32k --gpu h100-sxm")
    cache, deployment = document["kv_cache"], document["deployments"][0]
    assert cache["in_flight_tokens"] == 2 * deployment["max_num_batched_tokens"]
    assert deployment["kv_pool_bytes"] / cache["admission_bytes"] == pytest.approx(
        deployment["max_concurrency"], rel=0.01
    )
    assert "4.85 GiB to 10.48 GiB must be free to admit it" in printed_by(
        "estimate gemma-3-27b --ctx 32k --gpu h100-sxm,l40s"
    )


def test_index_keys_are_paged_as_vllm_stores_them(answer_of):
    document = answer_of("estimate deepseek-v3.2 --ctx 32k --gpu 8xh200")
    cache, deployment = document["kv_cache"], document["deployments"][0]
    assert cache["admission_bytes"] == cache["logical_bytes"] == (70272 + 61 * 132) * 32768
    assert deployment["kv_pool_bytes"] / cache["admission_bytes"] == pytest.approx(
        deployment["max_concurrency"], rel=0.01
    )


def test_the_cache_of_glm_5_is_in_8_bits_on_blackwell(answer_of):
    def tokens(*words):
        return answer_of("estimate", "glm-5-fp8", "--ctx", "32k", *words)["deployments"][0]["kv_cache_tokens"]

    in_16_bits = tokens("--gpu", "8xb200", "--kv-cache-dtype", "bfloat16")
    assert tokens("--gpu", "8xb200") > 1.5 * in_16_bits
    assert tokens("--gpu", "8xb200", "--engine", "vllm@0.31") == pytest.approx(in_16_bits, rel=0.02)


def test_latents_are_whole_heads_in_vllm_before_0_7_1(answer_of):
    """The pool and what one token takes of it are of one layout: heads of 192 elements, padded to 256."""
    document = answer_of("estimate deepseek-v2-lite --ctx 16k --gpu a100 --engine vllm@0.7")
    cache, deployment = document["kv_cache"], document["deployments"][0]
    assert cache["bytes_per_token"] == 27 * 2 * 16 * 256 * 2
    assert cache["paged_bytes"] == cache["logical_bytes"] == cache["bytes_per_token"] * 16384
    assert deployment["kv_pool_bytes"] / cache["admission_bytes"] == pytest.approx(
        deployment["max_concurrency"], rel=0.01
    )
    assert (
        answer_of("estimate deepseek-v2-lite --gpu a100 --engine vllm@0.7.1")["kv_cache"]["bytes_per_token"]
        == 27 * 576 * 2
    )


def test_weights_that_do_not_fit_lack_their_own_bytes_only(answer_of):
    deployment = answer_of("estimate llama-3.1-70b --gpu l4", code=1)["deployments"][0]
    lacking = (deployment["weight_bytes"] - deployment["budget_bytes"]) / 2**30
    assert deployment["limit"] == f"the weights do not fit: {lacking:.2f} GiB short"


def test_explain_says_how_weights_in_few_bits_and_slots_are_counted(printed_by):
    words = [
        "estimate",
        "llama-3.1-8b",
        "--ctx",
        "8k",
        "--gpu",
        "l4",
        "--quantization",
        "gptq",
        "--group-size",
        "64",
        "--max-loras",
        "2",
        "--explain",
    ]
    out = printed_by(*words, "--engine", "kvplan")
    assert "4 bit a weight, 16-bit scale and 4-bit zero point for each 64 weights of an output" in out
    assert "in kvplan's engine: matrices of attention, MLPs and experts 4 bit a weight, float32 scale" in out
    assert "2 x 16 x 2,621,440 x 2 B" in out
    assert "in kvplan's engine" not in printed_by(*words)


def test_a_group_size_goes_to_the_formats_that_have_groups(printed_by):
    words = "estimate llama-3.1-8b --ctx 8k --gpu l4 --group-size 32 --format csv --quantization none,gptq,fp8"
    rows = list(csv.DictReader(printed_by(words).splitlines()))
    assert [row["weight_format"].partition(" 4-bit, ")[2] for row in rows] == ["", "group 32", ""]


def test_towers_that_are_left_out_are_not_named(printed_by):
    assert "in addition, vision tower" in printed_by("estimate qwen3-vl-8b --ctx 8k --gpu h100")
    assert "vision tower" not in printed_by("estimate qwen3-vl-8b --ctx 8k --gpu h100 --language-model-only")


def test_states_keep_their_dtype(capsys):
    assert main(["estimate", "mamba-2.8b", "--ctx", "2k", "--gpu", "h100", "--kv-cache-dtype", "fp8"]) == 0
    printed = capsys.readouterr()
    assert "nothing for a further token (bfloat16)" in printed.out
    assert "keeps states and no keys: --kv-cache-dtype fp8 changes nothing" in printed.err


def test_no_speeds_of_a_load_that_the_positions_cannot_hold(capsys, printed_by):
    assert "prompts of 512" not in printed_by("estimate whisper-large-v3 --gpu l4 --explain")
    found = estimate(capsys, "whisper-large-v3", "--gpu", "l4", "--encoder-tokens", "750")
    assert found["deployments"][0]["fits"] and found["deployments"][0]["performance"] is None
    asked = estimate(capsys, "whisper-large-v3", "--ctx", "448", "--gpu", "l4", "--encoder-tokens", "750")
    assert asked["deployments"][0]["performance"]["input_tokens"] == 448 - 128


def test_more_encoder_tokens_than_the_encoder_gives_are_noted(said_by):
    assert "5,000 is more than the 1,500 that openai/whisper-large-v3 gives a sequence" in said_by(
        "estimate whisper-large-v3 --ctx 448 --gpu l4 --encoder-tokens 5000", code=0
    )
