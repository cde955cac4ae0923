"""What LoRA adapters cost: a workload with 8 of them mixed in every step beside the same without any.

    python benchmarks/lora_throughput.py [--model llama-135m] [--dtype float32|bfloat16] [--adapters 8] [--rank 16]

Three engines with dummy weights take turns, each round in another order: one that serves no adapters, one with empty
slots, and one whose requests each have one of the adapters. Printed: tokens/s of each, the median over the rounds, and
the ratio to the first. On a busy machine give the command priority (``chrt -f 10``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))

from decode_step import MODELS

from kvplan_engine import LLM, LoRARequest, SamplingParams
from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.checkpoints.families import names_of
from kvplan_engine.checkpoints.parameters import stored_parameters

NUM_REQUESTS, PROMPT_TOKENS, ANSWER_TOKENS, ROUNDS = 64, 64, 64, 3


def write_adapter(folder: Path, model: dict, rank: int, seed: int) -> LoRARequest:
    """Random A and B for every projection of attention and MLP."""
    description = load_model_config(model)
    names, _ = names_of(description)
    assert names is not None
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for stored in stored_parameters(description, names):
        if stored.parameter.part not in ("qkv", "output", "up", "down") or stored.parameter.leaf != "weight":
            continue
        for source in stored.sources:
            stem = "base_model.model." + source.name.removesuffix(".weight")
            tensors[f"{stem}.lora_A.weight"] = torch.randn(rank, stored.shape[1], generator=generator) * 0.01
            tensors[f"{stem}.lora_B.weight"] = torch.randn(source.num_rows, rank, generator=generator) * 0.01
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))
    return LoRARequest(folder.name, str(folder))


def tokens_per_second(llm: LLM, adapters: list[LoRARequest | None]) -> float:
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(1, 1000, (NUM_REQUESTS, PROMPT_TOKENS), generator=generator).tolist()
    wanted = [adapters[index % len(adapters)] for index in range(NUM_REQUESTS)]
    params = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
    start = time.perf_counter()
    llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, lora_request=wanted)
    return NUM_REQUESTS * ANSWER_TOKENS / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="llama-135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    given = parser.parse_args()
    model = MODELS[given.model]
    common = {"load_format": "dummy", "device": "cpu", "dtype": given.dtype, "device_memory": "3GiB"}
    common |= {"max_model_len": 256, "max_num_seqs": NUM_REQUESTS, "enable_prefix_caching": False}
    slots = {"enable_lora": True, "max_loras": given.adapters, "max_lora_rank": given.rank}
    with tempfile.TemporaryDirectory() as folder:
        own = [write_adapter(Path(folder) / f"a{i}", model, given.rank, i) for i in range(given.adapters)]
        plain, served = LLM(model, **common), LLM(model, **common, **slots)
        cases = {
            "without": lambda: tokens_per_second(plain, [None]),
            "empty slots": lambda: tokens_per_second(served, [None]),
            f"{given.adapters} adapters": lambda: tokens_per_second(served, list(own)),
        }
        found: dict[str, list[float]] = {name: [] for name in cases}
        for number in range(ROUNDS + 1):
            for name in list(cases) if number % 2 else reversed(list(cases)):
                rate = cases[name]()
                if number:  # the first round warms up
                    found[name].append(rate)
    base = statistics.median(found["without"])
    for name, rates in found.items():
        ratios = [rate / other for rate, other in zip(rates, found["without"], strict=True)]
        print(f"{name:12} {statistics.median(rates):8.1f} tokens/s   {statistics.median(ratios):.3f} of {base:.1f}")


if __name__ == "__main__":
    main()
