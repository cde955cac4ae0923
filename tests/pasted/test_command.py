"""``vllm serve ...`` as people paste it: what is read, what is named as ignored, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from data_rows import data_rows

from kvplan.cli import main
from kvplan.errors import UsageError
from kvplan.pasted.command import read_command
from kvplan.pasted.options import FLAGS, SETTING_OF, vllm_options

ROWS = data_rows("pasted_commands")


@pytest.mark.parametrize(("text", "expected"), ROWS["read"])
def test_a_command_is_read_as_vllm_reads_it(text: str, expected: dict[str, Any]) -> None:
    found = read_command(text)
    assert (found.model, found.settings) == ("org/m", expected)


def test_what_is_not_read_is_named_without_its_value() -> None:
    found = read_command("vllm serve m --api-key secret --port 80 --num-gpu-blocks-override 9 -O3 --port 81")
    assert found.ignored == ("--api-key", "--port")
    assert found.unmodelled == ("--num-gpu-blocks-override", "-O3")
    assert [note for note in found.notes if "secret" in note] == []


@pytest.mark.parametrize("length", ["auto", "-1"])
def test_a_length_that_vllm_shortens_is_not_said_to_change_figures(length: str) -> None:
    """vLLM's own count of a sequence that does not fit is the limit that ``estimate`` names."""
    found = read_command(f"vllm serve m --max-model-len {length}")
    assert (found.settings, found.unmodelled) == ({}, ())
    assert [note.partition(":")[0] for note in found.notes] == [f"--max-model-len {length}"]


def test_a_container_says_which_release_it_is() -> None:
    assert read_command("docker run vllm/vllm-openai:v0.11.0 --model m").version == "0.11.0"
    assert read_command("docker run vllm/vllm-openai:latest --model m").version is None


def test_keys_of_a_drafter_join_one_object() -> None:
    whole = """vllm serve m --speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'"""
    split = "vllm serve m --speculative-config.method ngram --speculative-config.num_speculative_tokens 3"
    objects = [json.loads(read_command(text).speculative_config or "") for text in (whole, split)]
    assert objects[0] == objects[1] == {"method": "ngram", "num_speculative_tokens": 3}


def test_formats_of_a_checkpoint_are_no_setting() -> None:
    found = read_command("vllm serve m --quantization awq_marlin")
    assert (found.settings, found.checkpoint_format) == ({}, "awq_marlin")


@pytest.mark.parametrize(("text", "message", "hint"), ROWS["refused"])
def test_what_cannot_be_read_is_refused_in_a_sentence(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_command(text)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_every_setting_that_is_read_is_an_option_of_vllm() -> None:
    """Names that only SGLang or reports use are for logs; the rest of both tables is vLLM's."""
    of_others = {"mem-fraction-static", "context-length", "chunked-prefill-size", "max-running-requests", "model-path"}
    of_others |= {f"{size}-size" for size in ("tp", "pp", "dp", "dcp", "ep")} | {"kv-cache-memory"}
    of_others |= {"disable-cuda-graph", "disable-radix-cache", "attn-dp-size", "attention-data-parallel-size"}
    options = vllm_options()
    named = {option.partition(".")[0].removeprefix("no-") for option in (*SETTING_OF, *FLAGS)}
    assert named - of_others - set(options.kinds) - set(options.short) == set()
    assert options.unmodelled <= set(options.kinds)
    assert set(options.short.values()) <= set(options.kinds)


SERVED = "vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 4 --max-model-len 32768 --kv-cache-dtype fp8"


def document(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"] if "--" not in words else [words[0], "--json", *words[1:]]) == 0
    return json.loads(capsys.readouterr().out)


def test_estimate_answers_a_command_as_it_answers_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    own = ("--tp", "4", "--ctx", "32768", "--kv-cache-dtype", "fp8", "--gpu", "h100")
    expected = document(capsys, "estimate", "meta-llama/Llama-3.1-70B", *own)
    assert document(capsys, "estimate", "--gpu", "h100", "--", *SERVED.split(), "--port", "80") == expected
    assert document(capsys, "estimate", SERVED, "--gpu", "h100") == expected
    overridden = document(capsys, "estimate", SERVED, "--gpu", "h100", "--ctx", "8192")
    assert overridden["context_tokens"] == 8192


def test_an_image_decides_the_release(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "estimate", "docker run vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B", "--gpu", "l40s")
    assert found["deployments"][0]["engine"] == "vllm@0.11.0"


def test_a_plan_keeps_the_settings_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    command = f"{SERVED} --max-num-seqs 64 --enforce-eager --gpu-memory-utilization 0.85"
    found = document(capsys, "plan", "--users", "20", "--gpu", "h100", "--like", command)
    assert found["deployments"]
    for each in found["deployments"]:
        line = each["commands"]["vllm"]
        assert f"{SERVED.partition(' --')[0]} --max-model-len 32768 --max-num-seqs 64 " in line
        for words in ("--tensor-parallel-size 4", "--kv-cache-dtype fp8", "--enforce-eager", "utilization 0.85"):
            assert words in line
        assert list(each["commands"]) == ["vllm"]


def test_batch_settings_that_a_command_leaves_out_are_the_engines(capsys: pytest.CaptureFixture[str]) -> None:
    """vllm/engine/arg_utils.py, get_batch_defaults: 8,192 tokens and 1,024 sequences for a server on an H100."""
    found = document(capsys, "plan", "--users", "20", "--gpu", "h100", "--like", SERVED)
    batches = {(each["max_num_batched_tokens"], each["max_num_seqs"]) for each in found["deployments"]}
    assert batches == {(8192, 1024)}


def test_a_plan_says_what_would_serve_without_them(capsys: pytest.CaptureFixture[str]) -> None:
    command = "vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192 -tp 8 --port 80"
    assert main(["plan", "--users", "8", "--gpu", "h100", "--like", command]) == 0
    out, err = capsys.readouterr()
    kept, free = out.split("\nWithout the command's settings:\n")
    assert kept.startswith("Rent 8 x h100-sxm") and "tp 8" in kept.splitlines()[0]
    assert free.lstrip().startswith("Rent 1 x h100-sxm")
    assert "--port" in err


def test_a_plan_keeps_the_drafter_and_the_offloaded_weights_of_a_command(
    capsys: pytest.CaptureFixture[str], printed_by: Callable[..., str], said_by: Callable[..., str]
) -> None:
    """Both were refused."""
    drafter = {"method": "mtp", "num_speculative_tokens": 1}
    command = "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --max-model-len 8192 --cpu-offload-gb 2 "
    command += f"--speculative-config '{json.dumps(drafter)}'"
    words = ["plan", "--users", "8", "--gpu", "h200", "--max-gpus", "8", "--like", command]
    assert "A plan with a drafter needs --acceptance-rate" in said_by(*words)
    out = printed_by(*words, "--acceptance-rate", "0.8")
    line = next(line for line in out.splitlines() if line.lstrip().startswith("vllm:"))
    assert json.loads(line.partition("--speculative-config '")[2].partition("'")[0]) == drafter
    assert "--cpu-offload-gb 2" in line and "Drafter: mtp, 1 draft token a step" in out
    assert "\nWithout the command's settings" in out  # with the drafter, but nothing offloaded
    other = json.dumps(drafter | {"num_speculative_tokens": 2})
    found = document(capsys, *words, "--acceptance-rate", "0.8", "--speculative-config", other)
    assert '"num_speculative_tokens": 2' in found["deployments"][0]["commands"]["vllm"]
