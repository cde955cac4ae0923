"""Questions as links of the page and as words of the command, which are written apart: neither is made of the other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

LOGS = "tests/data/startup_logs"


@dataclass(frozen=True, slots=True)
class Asked:
    """One question. state: what stands in the link. log: the file whose text is pasted."""

    state: dict[str, str]
    words: tuple[str, ...]
    arguments: dict[str, Any]
    log: str | None = None

    @property
    def command(self) -> str:
        return self.words[0]

    @property
    def line(self) -> str:
        return "kvplan " + " ".join(self.words)

    @property
    def link(self) -> str:
        return "#" + urlencode(self.state)

    def log_text(self, root: Path) -> str | None:
        return None if self.log is None else (root / self.log).read_text(encoding="utf-8")

    def with_log(self, root: Path) -> dict[str, Any]:
        """The arguments as the planner takes them, a log as its text."""
        return self.arguments if self.log is None else {**self.arguments, "log": self.log_text(root)}


_SIZED = """
llama-3.1-8b h100-sxm 1 16k
llama-3.1-8b l4 1 8k kv_cache_dtype=fp8
llama-3.1-8b rtx-4090 2 32k gpu_memory_utilization=0.95
llama-3.1-70b h100-sxm 4 32k
llama-3.1-70b h200 2 8k quantization=fp8
qwen3-30b-a3b rtx-4090 1 16k quantization=awq
qwen3-30b-a3b l40s 2 32k
qwen3-32b a100-80gb 2 32k max_num_seqs=64
qwen3-235b-a22b h200 8 64k enable_expert_parallel=1
qwen3-next-80b h100-sxm 4 128k
qwen2.5-7b a10g 1 8k
qwen2.5-72b-instruct mi300x 1 16k
deepseek-v3 h200 8 64k kv_cache_dtype=fp8
deepseek-v3.2 b200 8 128k
deepseek-v2-lite l40s 1 16k
gemma-2-9b l4 1 8k
gemma-3-27b l40s 2 32k
gpt-oss-20b rtx-4090 1 64k
gpt-oss-120b b200 1 128k
mixtral-8x7b a100-80gb 2 16k
mistral-7b rtx-3090 1 16k enforce_eager=1
phi-4 l4 2 8k
falcon3-7b a10g 1 8k block_size=32
bloom h100-sxm 8 2k
gpt2 l4 1 1k
llama-3.1-8b h100-sxm 1 128k engine=vllm@0.19.0
qwen3-8b t4 1 4k
deepseek-r1 b200 8 32k max_num_batched_tokens=4096
falcon-mamba-7b l40s 1 16k
chatglm3-6b l40s 1 8k
"""
_PLANNED = """
llama-3.1-8b users=20 ctx_avg=4k gpu=l4,h100-sxm
llama-3.1-70b users=40 ctx_avg=4k gpu=h100-sxm,h200
qwen3-30b-a3b users=16 ctx_avg=8k gpu=rtx-4090,l40s slo=tpot:50
gpt2 users=4 ctx_avg=512 gpu=l4
gemma-2-9b request_rate=2 input_len=512 output_len=128 gpu=l40s
mixtral-8x7b users=8 ctx_avg=4k ctx_max=16k gpu=a100-80gb
"""
_LOGS = (
    "vllm-0.19-llama-3.1-8b-h100.log",
    "vllm-0.7-no-room.log",
    "vllm-0.10-refused-length.log",
    "vllm-0.27-qwen3.6-27b-fp8-h100.log",
)
_FLAGS = ("enable_expert_parallel", "enforce_eager")
_NUMBERS = ("max_num_seqs", "max_num_batched_tokens", "block_size", "users", "request_rate", "gpu_memory_utilization")


def _option(name: str, value: str) -> tuple[str, ...]:
    option = "--" + name.replace("_", "-")
    return (option,) if name in _FLAGS else (option, value)


def _argument(name: str, value: str) -> Any:
    if name in _FLAGS:
        return True
    if name == "gpu" and "," in value:
        return value.split(",")
    return float(value) if name in _NUMBERS and "." in value else int(value) if name in _NUMBERS else value


def _sized(line: str) -> Asked:
    model, gpu, count, ctx, *more = line.split()
    given = dict(each.split("=") for each in more)
    counted = gpu if count == "1" else f"{count}x{gpu}"
    words = ("estimate", model, "--gpu", counted, "--ctx", ctx)
    options = tuple(word for name, value in given.items() for word in _option(name, value))
    arguments = {"model": model, "gpu": counted, "ctx": ctx, **{name: _argument(name, given[name]) for name in given}}
    return Asked(
        {"tab": "size", "model": model, "gpu": gpu, "gpus": count, "ctx": ctx, **given}, words + options, arguments
    )


def _planned(line: str) -> Asked:
    model, *more = line.split()
    given = dict(each.split("=", 1) for each in more)
    options = tuple(word for name, value in given.items() for word in _option(name, value))
    arguments = {"model": model, **{name: _argument(name, given[name]) for name in given}}
    return Asked({"tab": "plan", "model": model, **given}, ("plan", model, *options), arguments)


def _explained(name: str) -> Asked:
    return Asked({"tab": "explain", "log": name}, ("explain", f"{LOGS}/{name}"), {}, f"{LOGS}/{name}")


QUESTIONS = [
    *map(_sized, _SIZED.strip().splitlines()),
    *map(_planned, _PLANNED.strip().splitlines()),
    *map(_explained, _LOGS),
]

_FIRST = "#tab=size&model=llama-3.1-8b&gpu=h100-sxm&ctx=16k"
_LACK = "#tab=size&model=qwen3-30b-a3b&gpu=rtx-4090&ctx=16k"
_SIDES = (
    "#tab=size&model=llama-3.1-70b&gpu=h200&gpus=2&ctx=8k"
    "&a.tab=size&a.model=llama-3.1-70b&a.gpu=h100-sxm&a.gpus=4&a.ctx=8k"
)
_PLAN = "#tab=plan&model=llama-3.1-70b&users=40&ctx_avg=4k&gpu=h100-sxm,h200&slo=tpot:50"
_PLANS = _PLAN.replace("h100-sxm,h200", "h200") + (
    "&a.tab=plan&a.model=llama-3.1-70b&a.users=40&a.ctx_avg=4k&a.gpu=h100-sxm&a.slo=tpot:50"
)

PICTURES = [
    *(
        {"name": f"web-{width}-{scheme}", "width": width, "scheme": scheme, "hash": _FIRST}
        for width in (1280, 400)
        for scheme in ("light", "dark")
    ),
    {"name": "web-does-not-fit", "width": 1280, "scheme": "light", "hash": _LACK},
    {"name": "web-compare", "width": 1280, "scheme": "dark", "hash": _SIDES},
    {"name": "web-plan", "width": 1280, "scheme": "light", "hash": _PLAN},
    {"name": "web-plan-400", "width": 400, "scheme": "dark", "hash": _PLAN},
    {"name": "web-compare-plans", "width": 1280, "scheme": "light", "hash": _PLANS},
    {"name": "web-explain", "width": 1280, "scheme": "dark", "hash": "#tab=explain"},
]
