"""``import kvplan``: the commands' answers as objects, to the byte, from the standard library alone."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data_rows import data_rows

import kvplan
from kvplan.cli import main
from kvplan.errors import KvplanError, UsageError

ROOT = Path(__file__).resolve().parents[1]
LOG = ROOT / "tests/data/startup_logs/vllm-0.19-llama-3.1-8b-h100.log"
QUESTIONS = data_rows("questions")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(list(words))
    return capsys.readouterr().out


@pytest.mark.parametrize(("model", "asked", "words"), QUESTIONS["estimates"])
def test_an_estimate_is_the_commands(
    model: str, asked: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, command = kvplan.estimate(model, **asked), ["estimate", model, *shlex.split(words)]
    assert str(found) == printed(capsys, *command)
    assert found.to_dict() == json.loads(printed(capsys, *command, "--json"))
    assert list(found.to_frame()["gpu"]) == [each.gpu for each in found.deployments]


def test_attributes_have_types_and_units() -> None:
    found = kvplan.estimate("llama-3.1-8b", gpu="h100", ctx="16k")
    (h100,) = found.deployments
    assert (found.kv_bytes_per_token, found.context_tokens, found.num_parameters) == (131_072, 16_384, 8_030_261_248)
    assert h100.fits
    assert h100.kv_cache_tokens // found.context_tokens == int(h100.max_concurrency)
    assert "serves in float16" in kvplan.estimate("llama-3.1-8b", gpu="v100-32gb", ctx="8k").notes[0]


@pytest.mark.parametrize(("asked", "words"), QUESTIONS["plans"])
def test_a_plan_is_the_commands(asked: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, command = kvplan.plan("llama-3.1-8b", **asked), ["plan", "llama-3.1-8b", *shlex.split(words)]
    assert str(found) == printed(capsys, *command)
    assert found.to_dict() == json.loads(printed(capsys, *command, "--json"))
    assert found.problem is None
    assert len(found.to_frame()) == len(found.deployments)


def test_a_load_that_nothing_serves_is_an_answer() -> None:
    found = kvplan.plan("llama-3.1-70b", users=400, ctx_avg="32k", gpu="l4", max_gpus=1)
    assert found.deployments == ()
    assert "No deployment" in (found.problem or "")
    assert str(found).startswith(f"{found.problem}\nhint: ")
    with pytest.raises(KvplanError, match="No deployment"):
        _ = found.best


def test_a_plan_like_a_command_keeps_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192 --max-num-seqs 32 --enforce-eager"
    found = kvplan.plan(like=line, users=20, gpu="h100")
    assert found.to_dict() == json.loads(
        printed(capsys, "plan", "--like", line, "--users", "20", "--gpu", "h100", "--json")
    )
    assert "--max-num-seqs 32" in found.to_dict()["deployments"][0]["commands"]["vllm"]
    with pytest.raises(UsageError, match="Missing argument 'MODEL'"):
        kvplan.plan(users=4)


def test_a_cache_is_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "documents.jsonl"
    rows = (
        {
            "timestamp": 9000 * place,
            "input_length": 4096,
            "output_length": 64,
            "hash_ids": [8 * (place % 9) + each for each in range(8)],
        }
        for place in range(36)
    )
    trace.write_text("\n".join(map(json.dumps, rows)))
    words = ["cache", str(trace), "llama-3.1-8b", "--gpu", "l40s", "--host-memory", "16GiB", "--replicas", "2"]
    found = kvplan.cache(trace, "llama-3.1-8b", gpu="l40s", host_memory="16GiB", replicas=2)
    assert str(found) == printed(capsys, *words)
    assert json.dumps(found.to_dict(), indent=2, ensure_ascii=False) + "\n" == printed(capsys, *words, "--json")
    assert found.num_requests == 36 and [each.gpu.gpu.id for each in found.curves] == ["l40s", "l40s"]
    assert found.curves[0].asked.size_bytes == 16 * 2**30
    assert any("--kv-offloading-size" in line for each in found.settings for line in each.lines)
    frame = found.to_frame()
    assert list(frame.columns) == printed(capsys, *words, "--format", "csv").splitlines()[0].split(",")
    with pytest.raises(UsageError, match=r"kvplan\.cache has no argument 'max_num_seq'"):
        kvplan.cache(trace, "gpt2", max_num_seq=4)
    with pytest.raises(UsageError, match=r"kvplan\.cache has no argument 'device_memory'"):
        kvplan.cache(trace, "gpt2", device_memory="40GiB")
    with pytest.raises(UsageError, match=r"^nvme: "):
        kvplan.cache(trace, "gpt2", nvme="much")


def test_an_explanation_is_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for found in (kvplan.explain(LOG), kvplan.explain(LOG.read_text(encoding="utf-8"))):
        assert str(found) == printed(capsys, "explain", str(LOG))
        assert found.to_dict() == json.loads(printed(capsys, "explain", str(LOG), "--json"))
    with pytest.raises(KvplanError, match="says nothing about memory"):
        kvplan.explain("a\nb")


def test_models_and_gpus_are_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for command, found in (("models", kvplan.models("llama")), ("gpus", kvplan.gpus("h100"))):
        search = "llama" if command == "models" else "h100"
        assert str(found) == printed(capsys, command, search)
        assert found.to_dict() == json.loads(printed(capsys, command, search, "--json"))
        assert len(found) == len(found.to_frame()) > 1
    assert kvplan.gpus("h100")[0].memory_bytes > 0
    assert [each.id for each in kvplan.gpus("h100-3g.40gb")] == ["h100-sxm-3g.40gb"]
    with pytest.raises(UsageError, match="no GPU profile named 'h1000'"):
        kvplan.gpus("h1000")
    with pytest.raises(UsageError, match=r"No model's name contains 'nosuch'\."):
        kvplan.models("nosuch")


def test_the_room_of_estimates_is_the_function_too() -> None:
    from kvplan.estimate.answer import make_estimate

    assert callable(make_estimate)
    assert callable(kvplan.estimate)
    assert kvplan.estimate("gpt2", gpu="l4").model == "openai-community/gpt2"


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (
            lambda: kvplan.estimate("gpt2", tp=3),
            "kvplan.estimate has no argument 'tp'.",
            "did you mean tensor_parallel_size?",
        ),
        (
            lambda: kvplan.estimate("gpt2", gpu_mem=0.9),
            "kvplan.estimate has no argument 'gpu_mem'.",
            "did you mean gpu_memory_utilization?",
        ),
        (
            lambda: kvplan.plan("gpt2", ctx="8k"),
            "kvplan.plan has no argument 'ctx'.",
            "did you mean ctx_avg or ctx_max?",
        ),
        (
            lambda: kvplan.plan("gpt2", users=4, slo={"ttft": 500}),  # type: ignore[arg-type]
            "slo must be text or a list, got {'ttft': 500}.",
            'for example slo="ttft:500 tpot:50"',
        ),
        (
            lambda: kvplan.explain(5),  # type: ignore[arg-type]
            "log must be text or a path, got 5.",
            'for example log=pathlib.Path("start.log"), or the text of a log',
        ),
        (
            lambda: kvplan.plan("gpt2", users=4, price=3.0),  # type: ignore[arg-type]
            "price must be a dict, got 3.0.",
            'for example price={"h100": 2.5}',
        ),
        (
            lambda: kvplan.estimate("gpt2", gpu=True),  # type: ignore[arg-type]
            "gpu must be text or a list, got True.",
            'for example gpu="h100", or ["l4", "8xh200"]',
        ),
        (
            lambda: kvplan.estimate("gpt2", gpu_memory_utilization=1.5),
            "gpu_memory_utilization must be above 0 and at most 1, got 1.5.",
            "for example gpu_memory_utilization=0.9",
        ),
        (
            lambda: kvplan.plan("gpt2", users=4, slo="first:500"),
            "'first:500' is not a service level.",
            None,
        ),
        (
            lambda: kvplan.estimate("gpt2", ctx="8k", gpu="l4"),
            "openai-community/gpt2 has 1,024 positions; a context of 8,192 is beyond them.",
            "use ctx=1024 or less",
        ),
        (lambda: kvplan.estimate(), "No model is given.", 'for example kvplan.estimate("llama-3.1-8b")'),
        (
            lambda: kvplan.plan("gpt2", users=4, max_gpus=2.5),
            "max_gpus must be a whole number, got 2.5.",
            "for example max_gpus=4",
        ),  # type: ignore[arg-type]
        (lambda: kvplan.estimate("gpt2", enforce_eager="on"), "enforce_eager is yes or no, got 'on'.", "false or true"),
        (
            lambda: kvplan.plan("gpt2", users=4, like="ls"),
            "The pasted command does not start vLLM's server.",
            "for example vllm serve Qwen/Qwen3-8B --max-model-len 32768",
        ),
        (lambda: kvplan.models(5), "search must be text, got 5.", None),  # type: ignore[arg-type]
    ],
)
def test_errors_name_arguments(call: Callable[[], object], message: str, hint: str | None) -> None:
    with pytest.raises(KvplanError) as caught:
        call()
    assert caught.value.message == str(caught.value) == message
    assert hint is None or caught.value.hint == hint
    if hint is not None and sys.version_info >= (3, 11):
        assert caught.value.__notes__ == [f"hint: {hint}"]
    assert "--" not in (caught.value.hint or "").partition("vllm serve")[0]


def test_flags_and_assumptions_are_read_as_the_command_reads_them() -> None:
    graphs = [
        kvplan.estimate("gpt2", gpu="l4", enforce_eager=each).deployments[0].graph_bytes
        for each in ("false", False, "true", True)
    ]
    assert graphs[0] == graphs[1] > graphs[2] == graphs[3] == 0
    assumed = kvplan.estimate("llama-3.1-8b", gpu="h100", ctx="1k", assume={"num_key_value_heads": 4})
    assert assumed.kv_bytes_per_token == 65_536


def test_a_plan_without_deployments_says_in_arguments_what_would_help() -> None:
    nothing = kvplan.plan("llama-3.1-70b", users=4, ctx_avg="8k", gpu="l4", max_gpus=1)
    with pytest.raises(KvplanError) as caught:
        _ = nothing.best
    hint = caught.value.hint or ""
    assert "--" not in hint and ("max_gpus" in hint or "leave out gpu" in hint)


def test_a_frame_without_pandas_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"to_frame\(\) needs pandas") as caught:
        kvplan.gpus("h100").to_frame()
    assert caught.value.hint == "pip install pandas"


def test_nothing_but_the_standard_library_is_loaded() -> None:
    program = (
        "import sys; before = {name.partition('.')[0] for name in sys.modules}; import kvplan\n"
        "str(kvplan.estimate('llama-3.1-8b', gpu='h100')); str(kvplan.plan('gpt2', users=4, gpu='l4'))\n"
        f"str(kvplan.explain({str(LOG)!r})); str(kvplan.models('gpt2')); str(kvplan.gpus())\n"
        "tops = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(tops - set(sys.stdlib_module_names) - {'kvplan', '__main__', *before}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


PAGE = (ROOT / "docs/python.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_page_runs(number: int) -> None:
    exec(compile(EXAMPLES[number], f"docs/python.md, example {number + 1}", "exec"), {})


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4
