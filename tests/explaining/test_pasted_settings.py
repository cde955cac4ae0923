"""Settings that a person pastes beside a log, in the forms of shells, containers, notebooks and reports."""

from __future__ import annotations

from typing import Any

import pytest
from data_rows import data_rows

from kvplan.explaining.startup_log import StartupLog, parse_startup_log
from kvplan.settings import KNOBS

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
