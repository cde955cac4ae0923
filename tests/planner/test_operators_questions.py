"""Questions as operators put them, at the first command: what is known to be right stands in the answer.

What is right follows from arithmetic, from vLLM's source or documentation, or from published systems; each says which.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from kvplan.catalog.models import resolve_model
from kvplan.cli import main

LLAMA = "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        # 30.5 G parameters of a byte are 29 GiB, of which a 24 GiB card holds none beside a cache
        ("estimate Qwen/Qwen3-30B-A3B-FP8 --gpu 4090 --ctx 32k", 1, r"29\.0\d GiB"),
        # 70 B in 16 bits for 300 users within a second: not on eight H100
        (
            "plan llama-3.3-70b --users 300 --slo ttft:1000 --gpu h100 --budget 60",
            0,
            r"Rent 1[26] x h100-sxm(?s:.*)Keeps average TTFT within 1,000 ms",
        ),
        # MXFP4 by Marlin pads 2,880 to 3,072 and 1,440 to 1,536
        ("estimate gpt-oss-120b --gpu 2xa100-40gb", 1, r"34\.3\d"),
        # two checkpoints and no base model in the command
        (
            "plan meta-llama/Llama-3.1-8B-Instruct --gpu l40s --users 10",
            0,
            r"vllm serve meta-llama/Llama-3\.1-8B-Instruct ",
        ),
        # 12 requests/s of 3,000 prompt tokens are 36,864 tokens/s to read: more than one H100 reads
        ("plan llama-3.1-8b --request-rate 12 --input-len 3k --output-len 400 --gpu h100", 0, r"Rent [23] x h100-sxm"),
        # 80 % found leaves a fifth to read
        (
            "plan llama-3.1-8b --users 50 --input-len 3k --output-len 400 --prefix-hit-rate 0.8 --gpu h100",
            0,
            r"Prefix cache: 2,458 of a prompt's 3,072 tokens \(80 %\)",
        ),
        # vLLM's share is of the whole memory: 0.92 x (44.42 - 6) / 44.42
        ("estimate llama-3.1-8b --gpu l40s --reserve 6GiB --ctx 8k", 0, r"gpu_memory_utilization 0\.795 "),
        ("estimate llama-3.1-8b qwen3-8b --gpu h100 --share-gpu --ctx 8k", 0, r"Qwen3-8B"),
        ("plan llama-3.1-8b --users 8 --ctx-avg 4k --gpu h100 --format docker", 0, r"docker run .* vllm/vllm-openai:v"),
        ("estimate qwen3-4b --gpu h100-2g.20gb --ctx 4k", 0, r"of 132 multiprocessors"),
        ("plan llama-3.1-8b --users 8 --ctx-avg 4k --gpu p5.48xlarge", 0, r"Rent 8 x h100-sxm at \$55\.04/h"),
        # vLLM's page on installation: 7.5 or higher from 0.21 on; CUDA 13's wheels hold nothing for 7.0
        ("plan llama-3.1-8b --gpu v100-32gb --users 4", 2, r"--engine vllm@0\.19"),
        ("estimate llama-3.1-8b --gpu jetson", 2, r"Jetson modules have no profile"),
        ("estimate llama-3.1-8b --gpu tpu-v5e", 2, r"hint: "),
        # 256 experts of 8-bit blocks of 128: a slice of 192 is none
        ("estimate qwen3-235b-a22b-fp8 --gpu 8xh100 --ctx 8k", 2, r"128"),
        # 671 GB do not fit eight H100; two nodes by stages
        ("plan deepseek-v3 --gpu h100 --max-gpus 16 --users 64 --ctx-avg 4k", 0, r"--nnodes 2"),
        # Little's law: some 200 of 600 who pause 20 s wait at a time
        (
            "plan llama-3.1-8b --users 600 --think-time 20s --input-len 1k --output-len 200 --gpu h100",
            0,
            r"Rent 1 x h100-sxm",
        ),
        (f"estimate --ctx 8k -- vllm serve {LLAMA} --tensor-parallel-size 2 --port 80", 0, rf"{LLAMA}: "),
        (f"plan --like 'vllm serve {LLAMA} --max-model-len 8192' --users 20 --gpu l40s", 0, r"Rent \d x l40s"),
        ("plan llama-3.1-8b --users 8 --ctx-avg 4k --gpu h100 --slo 'TTFT<1s' --budget '$60'", 0, r"within 1,000 ms"),
        (
            "plan llama-3.1-8b --users 40 --ctx-avg 4k --gpu h100 --api-price in=0.05,out=0.08",
            0,
            r"Renting pays from [\d,]+ requests",
        ),
        # a step of eight GB200 is as long as one of eight B200: NVLink joins the rack
        (
            "plan deepseek-r1 --gpu gb200 --max-gpus 72 --users 500 --input-len 4k --output-len 1k",
            0,
            r"Rent (8|12|16) x gb200",
        ),
        # vLLM keeps 70,272 bytes of latents a token and 61 x 132 of the indexer's keys
        ("estimate deepseek-v3.2 --gpu 8xh200 --ctx 64k", 0, r"78,324 B per token"),
        # the layer that drafts is 11.6 G parameters of a byte over 8 GPUs, some of them in 16 bits
        ("estimate deepseek-v3.2 --gpu 8xh200 --ctx 64k --num-speculative-tokens 1", 0, r"h200 +139\.80 +8[12]\.\d\d "),
        # 141 GB of weights and a cache: not on one of 192 GB beside a step of 20 users in 10 tokens/s each
        ("plan llama-3.1-70b --gpu mi300x --users 20 --ctx-avg 4k", 0, r"Rent 2 x mi300x"),
        # 10 of 62 layers keep all tokens, 52 the last 1,024
        ("estimate gemma-3-27b --quantization int4 --gpu rtx-4090 --ctx 8k", 0, r"at most 416\.00 MiB"),
        ("plan llama-3.1-8b --users 8 --ctx-avg 4k --gpu h100 --format helm", 0, r"(?m)^servingEngineSpec:$"),
        ("estimate llama-3.1-8b --gpu m3-max", 2, r"Apple's GPUs .* llama\.cpp"),
        # 37 GiB of weights over two cards of 44 GiB hold eight prompts of 16k, 2.5 GiB of cache for 8k each, just so
        (
            "plan llama-3.3-70b --quantization int4 --gpu l40s --max-gpus 2 --users 8 --ctx-avg 16k",
            0,
            r"50 % sure[\s\S]*<an int4 build of[\s\S]*int4, fp8 KV .* 99 %",
        ),
        ("estimate llama-3.3-70b --quantization awq --gpu 2x4090 --ctx 8k", 1, r"longest sequence that fits"),
        # 12 of 48 layers keep all of a million tokens: 12 x 2 x 8 x 128 x 2 B each
        ("estimate llama-4-scout --gpu 8xh200 --ctx 1M", 0, r"(?s)49,152 B per token.* 14\.\d"),
        # 36 x 64 x 128 x 128 x 4 B
        ("estimate qwen3.5-122b-a10b --gpu 8xh100 --ctx 32k", 0, r"144\.00 MiB per sequence"),
        ("estimate llama-3.2-1b --gpu t4 --ctx 2k", 0, r"no bfloat16: vLLM serves in float16"),
        # the cheapest that people can read: 10 tokens/s
        ("plan qwen3-32b --users 50 --ctx-avg 8k --ctx-max 32k --gpu rtx-3090,l40s,h100", 0, r"TPOT p50 \d\d \("),
        # two replicas write more than one of two GPUs at the same price
        (
            "plan llama-3.1-8b --users 200 --ctx-avg 4k --gpu a100-80gb-sxm --max-gpus 2",
            0,
            r"2 replicas, tp 1.*[\s\S]*--max-num-batched-tokens (8192|16384)",
        ),
        (
            "plan llama-3.1-8b --users 200 --ctx-avg 4k --gpu a100-80gb-sxm --tp 2 --max-gpus 2 --slo ttft:2000",
            0,
            r"Keeps average TTFT within 2,000 ms",
        ),
    ],
)
def test_the_first_command_answers(words: str, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(words)) == code
    printed = capsys.readouterr()
    assert re.search(said, printed.out + printed.err), printed.out[:600] + printed.err[:600]


def test_a_trace_is_a_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Azure's columns; 40 requests in 10 s, each of 1,000 and 100 tokens."""
    lines = [f"2024-05-10 00:00:{index / 4:09.6f},1000,100" for index in range(40)]
    path = tmp_path / "azure.csv"
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
    assert main(["plan", "llama-3.1-8b", "--workload", str(path), "--gpu", "h100"]) == 0
    assert "Rent 1 x h100-sxm" in capsys.readouterr().out


def test_a_directory_is_served_where_it_lies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fine-tune that somebody has."""
    folder = tmp_path / "ft"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(resolve_model("llama-3.1-8b").raw_config))
    assert main(["plan", str(folder), "--users", "4", "--ctx-avg", "4k", "--gpu", "h100"]) == 0
    assert f"vllm serve {folder} " in capsys.readouterr().out
