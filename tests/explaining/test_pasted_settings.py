"""Settings as people paste them beside a log, and how engines, torch and drivers word refusals and pools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data_rows import data_rows

import kvplan
from kvplan.cli import main
from kvplan.errors import UsageError
from kvplan.explaining.explanation import LogAccount, explain_log, of_engine
from kvplan.explaining.startup_log import StartupLog, parse_startup_log
from kvplan.settings import KNOBS, ServingSettings
from kvplan.units import GIB

ROWS = data_rows("pasted_settings")
POOL = "INFO Available KV cache memory: 22.5 GiB\n"


def read(text: str) -> StartupLog:
    return parse_startup_log(f"{text}\n{POOL}")


def stated(log: StartupLog) -> dict[str, Any]:
    return {name: getattr(log.settings, name) for name in KNOBS if getattr(log.settings, name) != KNOBS[name].default}


@pytest.mark.parametrize(("text", "settings"), ROWS["commands"], ids=range(len(ROWS["commands"])))
def test_a_pasted_command_is_read(text: str, settings: dict[str, Any]) -> None:
    log = read(text)
    assert (log.model, stated(log)) == ("org/m", settings)


@pytest.mark.parametrize(("text", "settings"), ROWS["sglang"])
def test_a_pasted_command_of_sglang_is_read(text: str, settings: dict[str, Any]) -> None:
    log = parse_startup_log(f"{text}\nKV Cache is allocated. #tokens: 9, K size: 1.0 GB, V size: 1.0 GB")
    assert (log.engine, log.model, stated(log)) == ("sglang", "org/m", settings)


@pytest.mark.parametrize(
    "text",
    [
        "To maintain the same effective KV cache size as before, increase --gpu-memory-utilization to 0.9362.",
        "Decrease `--gpu-memory-utilization` (e.g. `--gpu-memory-utilization 0.5`) or reduce memory.",
        "--gpu-memory-utilization 0.85 fixes it",
        "Replace gpu_memory_utilization config with `--kv-cache-memory=52830620611` (49.2 GiB) to fit.",
        "INFO 08-23 09:40:11 [x.py:1] use --max-num-seqs 3 --tensor-parallel-size 8",
        "ValueError: Try --max-num-seqs 3 --tensor-parallel-size 8",
    ],
)
def test_advice_is_nobodys_setting(text: str) -> None:
    assert stated(read(text)) == {}


def test_a_drafters_model_and_what_was_taken_out_are_not_what_is_served() -> None:
    """A file of services with two speculative configurations, before the log."""
    log = read(
        'command:\n  - "--model"\n  - "org/m"\n  - "--speculative-config"\n'
        """  # - '{"method":"dflash","model":"org/drafts","num_speculative_tokens":6}' # slower\n"""
        """  - '{"method":"mtp","model":"org/others","num_speculative_tokens":3}'\n"""
        "(EngineCore pid=2) INFO 05-30 [core.py:1] Initializing a V1 LLM engine (v0.22.0) with config: model='org/m', "
    )
    assert (log.model, log.settings.num_speculative_tokens) == ("org/m", 3)


@pytest.mark.parametrize(("text", "settings"), ROWS["engine_lines"])
def test_settings_that_an_engine_states_in_words(text: str, settings: dict[str, Any]) -> None:
    assert stated(read(text)) == settings


@pytest.mark.parametrize(("text", "version"), ROWS["versions"])
def test_a_release_is_read_off_banners_packages_and_images(text: str, version: str | None) -> None:
    assert read(text).version == version


def test_places_that_disagree_are_told() -> None:
    log = read("vllm serve org/m --gpu-memory-utilization 0.8\nnon-default args: {'gpu_memory_utilization': 0.9}")
    assert log.settings.gpu_memory_utilization == 0.9
    said = "A pasted command has --gpu-memory-utilization 0.8; the engine printed 0.9, which counts."
    assert log.notes == (said,)
    twice = read("max_num_seqs=8\nmax_num_seqs=16")
    assert twice.notes == ("The log has --max-num-seqs 8 and 16: 8, which stands first, counts.",)


@pytest.mark.parametrize(
    ("text", "is_set"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True vllm serve org/m", True),
        ("    environment:\n      - PYTORCH_ALLOC_CONF: 'max_split_size_mb:64,expandable_segments:True'", True),
        ("If memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid it", False),
        ("is incompatible with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True and", False),
        ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False", False),
    ],
)
def test_segments_that_grow_are_read_where_they_are_set(text: str, is_set: bool) -> None:
    assert read(text).settings.expandable_segments is is_set


def test_a_step_of_the_defaults_is_not_the_servers() -> None:
    """The beginning of logs/vllm_server.log of faradawn/bench3 (0.11.2 on a GPU of 141 GB)."""
    log = read(
        "INFO 11-28 15:27:15 [scheduler.py:216] Chunked prefill is enabled with max_num_batched_tokens=2048.\n"
        "(APIServer pid=155) INFO 11-28 15:27:15 [api_server.py:1977] vLLM API server version 0.11.2\n"
        "(APIServer pid=155) INFO 11-28 15:27:22 [scheduler.py:216] Chunked prefill is enabled with "
        "max_num_batched_tokens=8192.\n"
    )
    assert (log.settings.max_num_batched_tokens, log.notes) == (8192, ())


def test_a_sentence_that_a_page_broke_is_whole_again() -> None:
    refused = (
        "▎ ValueError: To serve at least one request with the model's max seq len (196608),\n▎ 23.25 GiB KV cache is\n"
        "▎ needed, which is larger than the available KV cache memory (22.5 GiB). Based on the\n"
        "▎ available memory, the estimated maximum\n▎ model length is 190272.\n"
    )
    log = parse_startup_log(refused)
    assert log.largest_max_model_len == 190272
    assert (log.memory.needed_kv_bytes, log.memory.kv_pool_bytes) == (23.25 * 2**30, 22.5 * 2**30)


def test_a_sentence_that_a_terminal_cut_within_words_is_whole_again() -> None:
    sentence = (
        "ValueError: To serve at least one request with the model's max seq len (100000), (4.26 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (4.25 GiB). Based on the available memory, the "
        "estimated maximum model length is 99840."
    )
    cut = "\n".join(sentence[start : start + 80] for start in range(0, len(sentence), 80))
    log = parse_startup_log(cut)
    assert (log.largest_max_model_len, log.memory.needed_kv_bytes) == (99840, round(4.26 * 2**30))


def test_colours_are_no_part_of_a_log() -> None:
    assert parse_startup_log(
        "\x1b[1;36m(EngineCore pid=1)\x1b[0;0m Available \x1b[0mKV cache memory: 2.5 GiB"
    ).has_figures


WORDINGS = data_rows("log_wordings")
LOGS = Path(__file__).resolve().parents[1] / "data" / "startup_logs"


def explained(text: str) -> LogAccount:
    return explain_log(parse_startup_log(text), None, None)


def sentences(answer: LogAccount) -> str:
    return "\n".join(change.sentence for change in answer.changes)


@pytest.mark.parametrize(("text", "words"), WORDINGS["refusals"], ids=range(len(WORDINGS["refusals"])))
def test_a_refusal_is_seen_and_answered(text: str, words: str) -> None:
    answer = explained(f"Model loading took 3.0 GiB\n{text}" if "oad" not in text else text)
    assert answer.log.stopped is not None
    assert words in sentences(answer)


@pytest.mark.parametrize(
    ("text", "stopped"),
    [
        ("Traceback (most recent call last):\n  File x\nKeyError: 'layers.0'", "KeyError: 'layers.0'"),
        ("(EngineCore pid=1) ERROR 06-01 [core.py:1] pydantic.ValidationError: no", "pydantic.ValidationError: no"),
        ("(EngineCore pid=1) WARNING 06-01 [import_utils.py:408] AssertionError: odd", None),
        ("Application startup complete.\nKeyError: 'of a request'", None),
    ],
)
def test_an_error_that_stands_alone_has_ended_the_engine(text: str, stopped: str | None) -> None:
    assert parse_startup_log(f"Model loading took 3.0 GiB\n{text}").stopped == stopped


@pytest.mark.parametrize(("text", "pool_gib", "tokens"), WORDINGS["sglang_pools"])
def test_sglangs_pools_are_read(text: str, pool_gib: float | None, tokens: int | None) -> None:
    log = parse_startup_log(text)
    assert log.engine == "sglang" and log.kv_cache_tokens == tokens
    pool = log.memory.kv_pool_bytes
    assert pool is pool_gib is None or (pool or 0) / GIB == pytest.approx(pool_gib, abs=0.001)


@pytest.mark.parametrize(("text", "pool_gib", "is_given"), WORDINGS["vllm_pools"])
def test_vllms_pools_are_read(text: str, pool_gib: float, is_given: bool) -> None:
    log = parse_startup_log(text)
    assert (log.memory.kv_pool_bytes, log.has_given_pool) == (round(pool_gib * GIB), is_given)


@pytest.mark.parametrize(
    "text",
    [
        "Tried to allocate 2.00 GiB. GPU 0 has a total capacty of 23.65 GiB of which 1.50 GiB is free.",
        "Tried to allocate 2.00 GiB (GPU 0; 23.65 GiB total capacity; 21.00 GiB already allocated; 1.50 GiB free; 1)",
        "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.50 GiB is free. Including",
    ],
)
def test_torch_words_a_refusal_by_its_release(text: str) -> None:
    memory = parse_startup_log(f"torch.cuda.OutOfMemoryError: CUDA out of memory. {text}").memory
    figures = (memory.total_bytes, memory.free_bytes, memory.tried_bytes)
    assert [round((number or 0) / GIB, 2) for number in figures] == [23.65, 1.5, 2.0]


def test_a_given_pool_is_what_is_lowered() -> None:
    """A share of the GPU has no effect beside --kv-cache-memory-bytes."""
    answer = explained(
        "reserved 3.0 GiB memory for KV Cache as specified by kv_cache_memory_bytes config and skipped profiling\n"
        "CUDA out of memory. Tried to allocate 2.00 GiB.\nin capture_model"
    )
    assert "lower --kv-cache-memory-bytes or --max-num-seqs" in sentences(answer)


def test_an_option_counts_before_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    log = str(LOGS / "vllm-0.22-stated-utilization.log")
    options = ("--gpu", "l40s", "--gpu-memory-utilization", "0.9", "--tp", "2", "--engine", "vllm@0.25")
    assert main(["explain", log, *options]) == 0
    shown = capsys.readouterr()
    assert "vllm 0.25: Qwen/Qwen2.5-7B-Instruct on l40s" in shown.out
    assert "use 4 GPUs in all instead of 2: --tensor-parallel-size 4" in shown.out
    assert "--gpu-memory-utilization 0.9 is taken as given; the log has 0.95." in shown.err
    assert "Version 0.25 is taken as given; the log has 0.22.0." in shown.err


def test_the_python_call_takes_settings_too() -> None:
    answer = kvplan.explain(LOGS / "vllm-0.22-stated-utilization.log", gpu="l40s", tensor_parallel_size=2)
    assert answer.answer.log.settings.tensor_parallel_size == 2
    with pytest.raises(UsageError, match="has no argument 'acceptance_rate'"):
        kvplan.explain(LOGS / "vllm-0.22-stated-utilization.log", acceptance_rate=0.5)


def test_the_settings_that_were_read_are_shown(printed_by: Callable[..., str]) -> None:
    shown = " ".join(printed_by("explain", str(LOGS / "vllm-0.27-qwen3.8-27b-gb10.log")).split())
    assert "settings read: --gpu-memory-utilization 0.92, --max-model-len 786432, --no-enable-prefix-caching" in shown
    read = kvplan.explain(LOGS / "sglang-qwq-32b-tp4-l4.log").to_dict()["settings"]
    assert (read["tensor_parallel_size"], read["gpu_memory_utilization"]) == (4, 0.85)
    assert "--mem-fraction-static 0.85" in " ".join(
        printed_by("explain", str(LOGS / "sglang-qwq-32b-tp4-l4.log")).split()
    )


def test_another_engine_than_the_logs_is_refused() -> None:
    log = parse_startup_log("Available KV cache memory: 2.0 GiB")
    with pytest.raises(UsageError, match="The log is one of vllm, not of sglang"):
        of_engine(log, "sglang")
    assert of_engine(log, "vllm@0.25").version == "0.25"


def test_a_checkpoint_in_another_format_is_named_and_gets_no_advice() -> None:
    """The weights alone would take more than the GPUs have, and yet there is a KV cache."""
    text = "vllm serve org/m -tp 2 --gpu-memory-utilization 0.8\nvLLM 0.29.1\nAvailable KV cache memory: 22.5 GiB"
    kvplan_says = kvplan.explain(text, model="minimax-m2.7", gpu="gb10", quantization="none")
    assert kvplan_says.changes == ()
    assert any("name its format with --quantization" in note for note in kvplan_says.notes)
    in_four_bits = kvplan.explain(text, model="minimax-m2.7", gpu="gb10", quantization="awq")
    assert not any("name its format" in note for note in in_four_bits.notes)


def test_given_settings_replace_those_that_were_read() -> None:
    log = parse_startup_log("max_num_seqs=8\nAvailable KV cache memory: 2.0 GiB")
    answer = explain_log(log, None, None, ServingSettings(max_num_seqs=16))
    assert answer.log.settings.max_num_seqs == 16
    assert answer.notes[0] == "--max-num-seqs 16 is taken as given; the log has 8."
