"""Settings that a person pastes beside a log, in the forms of shells, containers, notebooks and reports."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.explaining.startup_log import StartupLog, parse_startup_log
from kvplan.settings import KNOBS

POOL = "INFO Available KV cache memory: 22.5 GiB\n"
TP2 = {"tensor_parallel_size": 2}


def read(text: str) -> StartupLog:
    return parse_startup_log(f"{text}\n{POOL}")


def stated(log: StartupLog) -> dict[str, Any]:
    return {name: getattr(log.settings, name) for name in KNOBS if getattr(log.settings, name) != KNOBS[name].default}


COMMANDS = [
    (
        "$ vllm serve org/m --tensor-parallel-size 2 --gpu-memory-utilization 0.8 --max-model-len 196608",
        TP2 | {"gpu_memory_utilization": 0.8, "max_model_len": 196608},
    ),
    (
        "python3 -m vllm.entrypoints.openai.api_server --model=org/m -pp 8 -dp=4 -tp=2 -dcp 2 --max_num_seqs 16",
        TP2
        | {
            "pipeline_parallel_size": 8,
            "data_parallel_size": 4,
            "decode_context_parallel_size": 2,
            "max_num_seqs": 16,
        },
    ),
    (
        "docker run --gpus all -p 8000:8000 \\\n  vllm/vllm-openai:v0.26.0 \\\n  --model org/m \\\n  -tp 2 \\\n"
        "  --kv-cache-dtype fp8 \\\n  --enforce-eager",
        TP2 | {"kv_cache_dtype": "fp8", "enforce_eager": True},
    ),
    (
        '    command:\n      - --model\n      - org/m\n      - --tensor-parallel-size\n      - "2"\n'
        "      - --max-model-len=16384    # caps the window, to save memory\n      # - --max-num-seqs=4",
        TP2 | {"max_model_len": 16384},
    ),
    (
        '        args:\n          [\n            "--model", "org/m",\n            "--tensor-parallel-size", "2",\n'
        '            "--max-num-seqs",\n            "8"\n          ]',
        TP2 | {"max_num_seqs": 8},
    ),
    ("    command: --model org/m --dtype auto --tensor-parallel-size 2", TP2),
    ("      - vllm serve org/m\n        --tensor-parallel-size 2\n        --max-num-seqs 8", TP2 | {"max_num_seqs": 8}),
    ("On two of them (TP=2) I serve:\n--model org/m", TP2),
    ("ExecStart=/usr/bin/vllm serve org/m --tensor-parallel-size 2", TP2),
    (
        "model: org/m\ntensor-parallel-size: 2\ngpu-memory-utilization: 0.8\nenforce-eager: true",
        TP2 | {"gpu_memory_utilization": 0.8, "enforce_eager": True},
    ),
    (
        "GPU_MEMORY_UTILIZATION=0.95\nexport MAX_MODEL_LEN=32768\n--model org/m",
        {"gpu_memory_utilization": 0.95, "max_model_len": 32768},
    ),
    ("I serve org/m with `--tensor-parallel-size 2` and get:\n--model org/m", TP2),
    ('llm = LLM(model="org/m", tensor_parallel_size=2, max_model_len=4096)', TP2 | {"max_model_len": 4096}),
    (
        "vllm serve org/m --max-model-len 32k --max-num-batched-tokens 2K",
        {"max_model_len": 32000, "max_num_batched_tokens": 2048},
    ),
    ("vllm serve org/m --kv-cache-memory-bytes 3G", {"kv_cache_memory_bytes": 3 * 1024**3}),
    (
        'vllm serve org/m --speculative-config \'{"method": "mtp", "num_speculative_tokens": 3}\' -tp 2',
        TP2 | {"num_speculative_tokens": 3},
    ),
    (
        "vllm serve org/m --no-enable-prefix-caching --enable-expert-parallel",
        {"enable_prefix_caching": False, "enable_expert_parallel": True},
    ),
]


@pytest.mark.parametrize(("text", "settings"), COMMANDS, ids=range(len(COMMANDS)))
def test_a_pasted_command_is_read(text: str, settings: dict[str, Any]) -> None:
    log = read(text)
    assert (log.model, stated(log)) == ("org/m", settings)


SGLANG = [
    (
        "docker run lmsysorg/sglang:v0.5.9-cu130 python3 -m sglang.launch_server --model-path org/m --tp 2 "
        "--mem-fraction-static 0.8 --context-length 32768 --max-running-requests 16 --chunked-prefill-size 4096",
        {
            "gpu_memory_utilization": 0.8,
            "max_model_len": 32768,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 4096,
            "tensor_parallel_size": 2,
        },
    ),
    (
        "sglang serve --model-path org/m --tp-size=8 --dp-size 8 --disable-radix-cache",
        {"tensor_parallel_size": 8, "data_parallel_size": 8, "enable_prefix_caching": False},
    ),
]


@pytest.mark.parametrize(("text", "settings"), SGLANG)
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


ENGINE_LINES = [
    (
        "The current --gpu-memory-utilization=0.9500 is equivalent to --gpu-memory-utilization=0.9417 without",
        {"gpu_memory_utilization": 0.95},
    ),
    (
        "is disabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0). CUDA graph memory profiling is disabled. Consider "
        "increasing --gpu-memory-utilization from 0.8650 to 0.9152.",
        {"gpu_memory_utilization": 0.865, "estimate_cudagraphs": False},
    ),
    ("Initial free memory: 78.5 GiB; Requested memory: 0.900000 (util), 71.3 GiB", {"gpu_memory_utilization": 0.9}),
    ("Auto-fit max_model_len: reduced from 262144 to 180224 to fit in available", {"max_model_len": 180224}),
    (
        "compilation_config={'compile_ranges_endpoints': [512, 4096], 'max_cudagraph_capture_size': 128}",
        {"max_num_batched_tokens": 4096, "max_num_seqs": 64},
    ),
    ("--compilation-config x compilation_config={'max_cudagraph_capture_size': 128}", {}),
    ("compilation_config={'max_cudagraph_capture_size': 512}", {}),
]


@pytest.mark.parametrize(("text", "settings"), ENGINE_LINES)
def test_settings_that_an_engine_states_in_words(text: str, settings: dict[str, Any]) -> None:
    assert stated(read(text)) == settings


VERSIONS = [
    ("(APIServer pid=1) INFO 06-01 [utils.py:299]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.26.0", "0.26.0"),
    ("    image: vllm/vllm-openai:v0.25.1-cu129", "0.25.1"),
    ("rocm/vllm:rocm6.4.1_vllm_0.9.1_20250715", "0.9.1"),
    ("vLLM Version: 0.10.2", "0.10.2"),
    ("vllm==0.27.0", "0.27.0"),
    ("On an H100 with vLLM `0.28.0`, it refuses.", "0.28.0"),
    ("vllm-0.15.2rc1.dev93+g11a4c9d30.cu128-cp312-cp312-linux_x86_64.whl", "0.15.2rc1.dev93+g11a4c9d30.cu128"),
    ("CUDA version 13.1, Python version: 3.12.3, driver version 580.95", None),
]


@pytest.mark.parametrize(("text", "version"), VERSIONS)
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
