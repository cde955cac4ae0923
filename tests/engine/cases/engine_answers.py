"""Engines of small models, over pools as small as a test needs them, and their answers."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from small_models import VOCAB_SIZE

from kvplan_engine import LLM, CompletionOutput, SamplingParams

NUM_TOKENS = 20
TOLERANCE = 1e-4
"""Of log-probabilities in float32."""
PROMPT_LENGTHS = (1, 5, 17, 33, 64, 40)  # ragged, a single token, longer than a chunk


def small_llm(path: Path, **settings: Any) -> LLM:
    """Return an engine in float32 on a CPU of half a GiB, where ``settings`` say nothing else."""
    return LLM(str(path), **({"dtype": "float32", "device": "cpu", "device_memory": "512MiB"} | settings))


class ByteTokenizer:
    """Token i is byte i mod 256, as in a byte-level vocabulary; counts what it is asked to decode."""

    def __init__(self) -> None:
        self.num_decoded = 0

    def decode(self, token_ids: list[int], **options: Any) -> str:
        self.num_decoded += len(token_ids)
        return bytes(token % 256 for token in token_ids).decode("utf-8", errors="replace")


def answers_with_text(llm: LLM, prompts: list[list[int]], params: Sequence[SamplingParams]) -> list[tuple[Any, ...]]:
    """Of each prompt's first sample: tokens, why and with what it ended, text, log-probabilities.

    With a tokenizer put into an engine whose checkpoint has none.
    """
    llm.engine._stops._tokenizer = ByteTokenizer()
    requests = [
        llm.engine.add_request(f"r{i}", prompt, own)
        for i, (prompt, own) in enumerate(zip(prompts, params, strict=True))
    ]
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
    found = []
    for request in requests:
        one = request.sequences[0]
        text = None if one.detokenizer is None else one.detokenizer.text
        found.append((one.output_token_ids, one.finish_reason, one.stop_match, text, one.logprobs))
    return found


def in_planes(blocks: torch.Tensor, num_planes: int) -> torch.Tensor:
    """A copy of ``blocks`` [num_blocks, size] as a pool [num_planes, num_blocks, size / num_planes]."""
    return blocks.view(len(blocks), num_planes, -1).transpose(0, 1).contiguous()


def ragged_prompts() -> list[list[int]]:
    return random_prompts(*PROMPT_LENGTHS, seed=0)


def random_prompts(*lengths: int, seed: int = 3, end: int = VOCAB_SIZE) -> list[list[int]]:
    """A prompt of each length, of tokens from 1 to ``end``."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, end, length).tolist() for length in lengths]


def drawn_prompts(lengths: Iterable[int], seed: int = 3) -> list[list[int]]:
    """As ``random_prompts``, by torch's generator."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths]


def branching_prompts(seed: int) -> list[list[int]]:
    """Three of their own, one more, and one that goes on from it."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(1, 384, 34).tolist()
    own = [rng.integers(1, 384, length).tolist() for length in (3, 50, 17)]
    return [*own, shared, shared + own[0]]


def answer(llm: LLM, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """Greedy answers; conftest checks every invariant after every step."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    requests = [llm.engine.add_request(f"r{i}", prompt, params) for i, prompt in enumerate(prompts)]
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
    return [request.sequences[0].output_token_ids for request in requests]


def logits_behind(model: torch.nn.Module, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """Float32 [tokens, vocabulary]: what transformers' model, all at once, has before each of the ``tokens``."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([prompt + tokens]), use_cache=False).logits
    return logits[0, len(prompt) - 1 : -1].float()


def check_logprobs(logits: torch.Tensor, sample: CompletionOutput) -> None:
    """The log-probabilities of a sample's tokens are those of ``logits``."""
    tokens = torch.tensor(sample.token_ids)
    assert sample.logprobs is not None
    found = torch.tensor([each[token] for token, each in zip(sample.token_ids, sample.logprobs, strict=True)])
    assert (found - logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]).abs().max() < TOLERANCE


def check_likeliest(model: torch.nn.Module, llm: LLM, prompts: list[list[int]], num_tokens: int) -> None:
    """Each token is transformers' likeliest after the prompt and the tokens before, with its log-probability."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, logprobs=1)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    for prompt, output in zip(prompts, outputs, strict=True):
        (sample,) = output.outputs
        logits = logits_behind(model, prompt, list(sample.token_ids))
        assert logits.argmax(-1).tolist() == list(sample.token_ids)
        check_logprobs(logits, sample)


def hold_blocks(llm: LLM, num_blocks: int) -> None:
    """Lower the utilization until the pool holds so many blocks: the way a user would get there."""
    memory = llm.engine.memory
    taken = memory.weight_bytes + memory.activation_bytes + memory.overhead_bytes + memory.graph_bytes
    wanted = taken + num_blocks * memory.block_bytes + memory.block_bytes // 2
    llm.engine.reconfigure(gpu_memory_utilization=wanted / memory.device_total_bytes)
    assert llm.engine.memory.num_blocks == num_blocks


def shrink_pool(llm: LLM, num_tokens: int) -> None:
    """Lower the utilization until the pool holds ``num_tokens`` tokens."""
    hold_blocks(llm, -(-num_tokens // llm.engine.memory.block_size))


def shrink(llm: LLM, num_sequences: float) -> None:
    """Lower the utilization until the pool holds so many of the longest sequences."""
    engine = llm.engine
    layout = engine.scheduler.pool.layout
    needed = layout.blocks_for(engine.max_model_len, engine.config.max_num_batched_tokens)
    shrink_pool(llm, num_tokens=int(num_sequences * needed) * layout.block_size)
