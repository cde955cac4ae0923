"""The questions that tools/behaviour.py asks, section by section, and their answers as JSON documents."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

Answers = dict[str, Any]

ENGINES = ("kvplan", "vllm", "vllm@0.6", "vllm@0.11", "vllm@0.19")
CONTEXT_TOKENS = 4096
GPUS = ("h100-sxm", "l4", "mi300x")

VARIANTS = (
    "--tp 2 --gpu a100-80gb-sxm",
    "--tp 4 --kv-cache-dtype fp8 --gpu l40s",
    "--pp 2 --block-size 32 --gpu h200",
    "--quantization fp8 --gpu h100-sxm --max-num-seqs 64",
    "--quantization int4 --dtype float16 --gpu rtx-3090",
    "--gpu b200 --tp 8 --gpu-memory-utilization 0.8 --max-num-batched-tokens 16384",
    "--device-memory 60GiB --language-model-only --explain --gpu h100-sxm",
    "--engine kvplan --gpu cpu --dtype float32",
)
"""What every architecture is also asked."""

PLANS = (
    "llama-3.1-8b --users 32 --ctx-avg 4k --gpu l4 --gpu h100-sxm",
    "llama-3.1-8b --users 100 --ctx-avg 4k --ctx-max 32k --gpu h100-sxm --worst-case",
    "llama-3.1-70b --request-rate 2 --input-len 1k --output-len 300 --gpu h100-sxm mi300x --slo ttft:2000 tpot:80",
    "llama-3.1-70b --users 16 --ctx-avg 8k --max-gpus 4 --quantization fp8 --kv-cache-dtype fp8 --gpu h200",
    "gpt2 --users 200 --ctx-avg 512 --gpu l4",
    "gemma-3-27b --users 20 --ctx-avg 16k --gpu a100-80gb-sxm --gpu-memory-utilization 0.85",
    "deepseek-v3 --users 64 --ctx-avg 8k --max-gpus 16 --gpu h200",
    "gpt-oss-120b --users 40 --ctx-avg 8k --slo e2el:20000 --gpu h100-sxm --gpu b200",
    "jamba-v0.1 --users 10 --ctx-avg 32k --gpu h100-sxm",
    "qwen3-next-80b-a3b --users 50 --ctx-avg 16k --gpu h100-sxm --engine vllm@0.11",
    "mixtral-8x22b-instruct --users 8 --ctx-avg 8k --gpu l40s --slo mlperf:llama3.1-8b",
    "llama-3.1-405b --users 8 --ctx-avg 8k --max-gpus 2 --gpu l4",
)

_MACHINE = "--device cpu --dtype float32 --no-rerun --load-format dummy"
SWEEPS = (
    "--model gpt2 --device-memory 2GiB --gpu-memory-utilization 0.2,0.5 --max-num-seqs 1,4 --block-size 16 "
    "--max-model-len 64,128 --max-num-batched-tokens 64 --num-prompts 4 --input-len 8..32 --output-len 2..6",
    "--model {small} --device-memory 160MiB --gpu-memory-utilization 0.82,0.834,0.838,0.9 --max-num-seqs 2,8 "
    "--block-size 8,32 --max-model-len 96,256 --max-num-batched-tokens 32 --num-prompts 16 --input-len 24..80 "
    "--output-len 8..40 --num-prefixes 2 --prefix-len 16 --seed 3",
    "--model {small} --device-memory 160MiB --gpu-memory-utilization 0.8..1.0+0.05 --max-num-seqs 4 "
    "--boundary gpu_memory_utilization --block-size 16 --max-model-len 128 --kv-cache-dtype auto,fp8 "
    "--num-prompts 6 --input-len 32 --output-len 8",
)
_NOT_REPEATABLE = re.compile(
    r"run_id|trial_id|started_at|device_name|engine_version|duration|other_cpu_pct|learned_time_factor|usd_per_mtok_out"
    r"|.*_ms|.*_throughput|.*_seconds|gpu_clock_.*|(activation_)?peak_.*bytes|kv_usage_mean|kv_usage_p95|internal_frag_bytes_mean"
    r"|frag_pct|kv_waste_pct|commit|.*_over_pred|contiguous_utilization_pct|request_goodput|goodput_pct|slo_pass"
)
"""Columns that hold times, figures weighted by time, bytes that the operating system counts, ids or dates."""

_SIZES = {"num_hidden_layers": 2, "vocab_size": 384, "max_position_embeddings": 256}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": 128,
        "n_head": 4,
        "n_layer": 2,
        "vocab_size": 384,
        "n_positions": 256,
    },
    "llama": _SIZES
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 448,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
    "qwen3": _SIZES
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 128,
        "intermediate_size": 224,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    },
}
KEPT_STATS = (
    "num_blocks",
    "num_preemptions",
    "num_swaps",
    "recomputed_tokens",
    "num_steps",
    "num_cached_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "swapped_out_blocks",
    "swapped_in_blocks",
)
NUM_POOL_TOKENS = 384


def ask(section: str, root: Path, plans: Sequence[str] = PLANS) -> Answers:
    """The answers of one section; ``root`` is the checkout whose tests/data is read. plans: questions of that one."""
    sections: dict[str, Callable[[Path], Answers]] = {
        "catalog": lambda _: {command: _kvplan(command, "--json") for command in ("models", "gpus")},
        "estimate": lambda _: _estimates(),
        "plan": lambda _: {question: _plan(question) for question in plans},
        "explain": _explanations,
        "scores": lambda _: _scores(),
        "sweep": lambda _: _sweeps(),
        "tokens": lambda _: _tokens(),
    }
    return sections[section](root)


# ---- the command line


def _kvplan(*words: str) -> Answers:
    """Exit code and, where there is one, the JSON document of one command. It runs in this process, for speed."""
    from kvplan.cli import main

    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
        code = main(list(words))
    return {"exit_code": code, "answer": json.loads(output.getvalue()) if code == 0 or output.getvalue() else None}


def _estimates() -> Answers:
    """Every shipped model as it stands, and one model of every architecture under all engines and variants."""
    shipped = _kvplan("models", "--json")["answer"]["models"]
    answers = {model["name"]: _estimate(model["name"], "--gpu h100-sxm") for model in shipped}
    first_of = {model["architecture"]: model for model in reversed(shipped)}
    gpus = " ".join(f"--gpu {gpu}" for gpu in GPUS)
    for model in first_of.values():
        context = min(CONTEXT_TOKENS, model["max_position_embeddings"] or CONTEXT_TOKENS)
        for options in (*(f"--engine {engine} {gpus}" for engine in ENGINES), *VARIANTS):
            answers[f"{model['name']} {options}"] = _estimate(model["name"], f"--ctx {context} {options}")
    return answers


def _estimate(name: str, options: str) -> Answers:
    return _kvplan("estimate", name, *options.split(), "--no-calibration", "--json")


def _plan(question: str) -> Answers:
    return _kvplan("plan", *question.split(), "--json")


def _explanations(root: Path) -> Answers:
    logs = sorted((root / "tests" / "data" / "startup_logs").glob("*.log"))
    return {log.name: _kvplan("explain", str(log), "--json") for log in logs}


def _scores() -> Answers:
    """What the scoring script of the recorded checkout prints, line by line."""
    tree = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0])
    script = next(
        file for folder in ("tools", "tests/tools") if (file := tree / folder / "score_vllm_startups.py").is_file()
    )
    command = [sys.executable, str(script), "--rows", "--groups"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tree)
    return {"lines": done.stdout.splitlines()}


def _sweeps() -> Answers:
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small"
        small.mkdir()
        (small / "config.json").write_text(json.dumps(CONFIGS["llama"]))
        return {
            options: _sweep_rows(options.format(small="small"), Path(folder), f"run-{number}")
            for number, options in enumerate(SWEEPS)
        }


def _sweep_rows(options: str, folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of one sweep in the order of its design, less what differs from run to run."""
    words = [*options.split(), *_MACHINE.split(), "--out", name]
    done = subprocess.run(
        [sys.executable, "-m", "kvplan", "sweep", *words, "--json"], cwd=folder, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"error: the sweep `{options}` ended with {done.returncode}: {done.stderr}")
    with (folder / name / "results.csv").open(newline="", encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["trial_number"]))
    return [{key: value for key, value in row.items() if not _NOT_REPEATABLE.fullmatch(key)} for row in rows]


# ---- the engine


def _tokens() -> Answers:
    """Greedy answers and beams of small random models under every combination of what must not change them."""
    import torch

    torch.set_num_threads(1)
    answers = {}
    cells = product(CONFIGS, ("float32", "bfloat16"), (1, 16, 32), (False, True), (32, 256), (None, "4MiB"))
    for family, dtype, block_size, caching, batched_tokens, swap in cells:
        settings = {
            "dtype": dtype,
            "block_size": block_size,
            "enable_prefix_caching": caching,
            "max_num_batched_tokens": batched_tokens,
            "swap_space": swap or 0,
            "preemption_mode": "swap" if swap else "recompute",
        }
        name = " ".join(str(value) for value in (family, *settings.values()))
        answers[name] = _answers_of(CONFIGS[family], settings)
    return answers


def _answers_of(config: dict[str, Any], settings: dict[str, Any]) -> Answers:
    from kvplan_engine import LLM, BeamSearchParams, SamplingParams

    common = {"load_format": "dummy", "device": "cpu", "gpu_memory_utilization": 1.0, "max_num_seqs": 8, **settings}
    with LLM(model=config, device_memory="512MiB", **common) as llm:
        memory = llm.get_stats()["memory"]
    pool = NUM_POOL_TOKENS // settings["block_size"] * memory["block_bytes"]
    total = pool + sum(memory[f"{part}_bytes"] for part in ("weight", "activation", "overhead"))
    with LLM(model=config, device_memory=total, **common) as llm:
        prompts = _prompts()
        greedy = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True))
        beams = llm.beam_search(prompts[:2], BeamSearchParams(beam_width=3, max_tokens=12))
        stats = llm.get_stats()
    return {
        "greedy": [" ".join(map(str, output.outputs[0].token_ids)) for output in greedy],
        "beams": [[" ".join(map(str, beam.tokens)) for beam in output.sequences] for output in beams],
        "stats": {key: stats[key] for key in KEPT_STATS},
        "memory": {key: value for key, value in stats["memory"].items() if key != "activation_peak_bytes"},
    }


def _prompts() -> Sequence[dict[str, list[int]]]:
    """Ten prompts of 5 to 95 tokens; the second half begins as the first does, for the prefix cache to find."""
    shared = [(11 * position + 7) % 384 for position in range(40)]
    own = [[(7 * index + position * position + 3) % 384 for position in range(5 + 10 * index)] for index in range(10)]
    return [{"prompt_token_ids": (shared if index >= 5 else []) + ids} for index, ids in enumerate(own)]
