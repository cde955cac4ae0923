"""``kvplan estimate`` as users run it: exit codes, what stands on stdout, one sentence on stderr, and no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvplan.cli import main

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvplan", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def estimate(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main(["estimate", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_llama_at_32k_prints_the_formula_with_its_numbers():
    done = run("estimate", "llama-3.1-8b", "--ctx", "32k")
    assert done.returncode == 0 and done.stderr == ""
    assert "full attention: 131,072 B per token = 32 layers x 2 (K, V) x 8 KV heads x 128 x 2 B" in done.stdout
    assert "One sequence of 32k tokens: 4.00 GiB" in done.stdout
    assert "14.96 GiB" in done.stdout and "h100-sxm" in done.stdout


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


def test_no_heavy_module_is_imported():
    code = (
        "import sys; from kvplan.cli import main; assert main(['estimate', 'gpt2', '--json']) == 0;"
        "heavy = {'torch', 'transformers', 'numpy', 'pandas', 'matplotlib', 'huggingface_hub'} & set(sys.modules);"
        "sys.stderr.write(repr(sorted(heavy)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr == "[]"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["gpt3"], 2, "No model is known as 'gpt3'."),
        (["gpt2", "--ctx", "banana"], 2, "'banana' is not a number of tokens."),
        (["gpt2", "--gpu-memory-utilization", "1.7"], 2, "--gpu-memory-utilization is 1.7"),
        (["gpt2", "--block-size", "0"], 2, "--block-size is 0"),
        (["gpt2", "--gpu", "h1000"], 2, "There is no GPU profile named 'h1000'."),
        (["gpt2", "--dtype", "float7"], 2, "--dtype does not know 'float7'."),
        (["gpt2", "--ctx", "32k"], 1, "has 1,024 positions"),
        (["gpt2", "--frobnicate"], 2, "No such option: --frobnicate"),
        ([], 2, "Missing argument 'MODEL'"),
    ],
)
def test_bad_input_is_one_sentence_and_a_hint(capsys, arguments, code, sentence):
    assert main(["estimate", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    error, hint = captured.err.splitlines()
    assert error.startswith("error: ") and sentence in error
    assert hint.startswith("hint: ")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not valid JSON"),
        ("[]", "holds no JSON object"),
        ("{}", "neither 'architectures' nor 'model_type'"),
        ('{"architectures": ["BertForMaskedLM"], "model_type": "bert"}', "not a causal language model"),
        (
            '{"architectures": ["NeverHeardOfForCausalLM"], "model_type": "never"}',
            "NeverHeardOfForCausalLM is not known",
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


def test_an_assumption_fills_a_gap_and_is_reported(capsys, tmp_path):
    config = json.loads((ROOT / "profiles/models/llama-2-7b.json").read_text())["config"]
    del config["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["estimate", str(tmp_path)]) == 1
    assert "--assume vocab_size=VALUE" in capsys.readouterr().err
    answer = estimate(capsys, str(tmp_path), "--assume", "vocab_size=32000")
    assert answer["model"]["num_parameters"] == 6_738_415_616
    assert any("vocab_size" in sentence for sentence in answer["assumptions"])


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m kvplan models --json | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "0" and done.stderr == ""
