"""Adapters mixed in one batch answer as PEFT's models do: greedy tokens and their log-probabilities, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from adapter_files import save_adapter
from engine_answers import check_logprobs, drawn_prompts, logits_behind, shrink_pool, small_llm
from gguf_files import GgufCheckpoint
from peft import PeftModel
from small_models import Checkpoint

from kvplan_engine import LLM, LoRARequest, SamplingParams

NUM_TOKENS = 8
PROMPT_LENGTHS = (1, 5, 17, 40, 61, 33, 9, 25)
PARAMS = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=1)


def engine_of(path: Path, **settings: object) -> LLM:
    usual = {"device_memory": "384MiB", "max_num_batched_tokens": 24, "max_num_seqs": 6, "max_model_len": 96}
    return small_llm(path, **usual | {"block_size": 3, "enable_lora": True} | settings)


def prompts() -> list[list[int]]:
    return drawn_prompts(PROMPT_LENGTHS, seed=5)


def check(llm: LLM, checkpoint: Checkpoint | GgufCheckpoint, wanted: Sequence[LoRARequest | None]) -> None:
    """Every prompt with its adapter, all in one call, against PEFT one by one."""
    texts = prompts()[: len(wanted)]
    found = llm.generate([{"prompt_token_ids": each} for each in texts], PARAMS, lora_request=wanted)
    for prompt, request, output in zip(texts, wanted, found, strict=True):
        (answer,) = output.outputs
        tokens = list(answer.token_ids)
        logits = _logits(checkpoint, request, prompt, tokens)
        assert logits.argmax(-1).tolist() == tokens
        check_logprobs(logits, answer)


def _logits(
    checkpoint: Checkpoint | GgufCheckpoint, request: LoRARequest | None, prompt: list[int], tokens: list[int]
) -> torch.Tensor:
    if request is None:
        return logits_behind(checkpoint.model, prompt, tokens)
    adapted = PeftModel.from_pretrained(checkpoint.model, request.path)
    logits = logits_behind(adapted, prompt, tokens)
    adapted.unload()
    return logits


def adapters_of(checkpoint: Checkpoint | GgufCheckpoint, folder: Path, number: int) -> list[LoRARequest]:
    """Of ranks 1 to 8, some of attention alone, with both ways to scale."""
    made = []
    for index in range(number):
        options = {"r": 1 + index % 8, "use_rslora": index % 3 == 2}
        if index % 4 == 1 and "q_proj" in str(list(checkpoint.model.state_dict())):
            options["target_modules"] = ["q_proj", "v_proj"]
        elif "q_proj" not in str(list(checkpoint.model.state_dict())):
            options["target_modules"] = ["c_attn", "c_proj", "c_fc"]
        path = save_adapter(checkpoint.model, folder / f"adapter-{index}", seed=index, **options)
        made.append(LoRARequest(f"adapter-{index}", str(path)))
    return made


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "glm4"])
def test_adapters_in_one_batch_answer_as_pefts(name: str, tmp_path: Path) -> None:
    """Three adapters and the model itself, longer than a step, in a pool that preempts; again from the prefix cache."""
    checkpoint = Checkpoint(name, tmp_path / "model")
    own = adapters_of(checkpoint, tmp_path, 3)
    with engine_of(checkpoint.path, max_loras=3) as llm:
        shrink_pool(llm, num_tokens=99)
        wanted = [own[0], None, own[1], own[2], own[0], None, own[2], own[1]]
        check(llm, checkpoint, wanted)
        assert llm.get_stats()["num_preemptions"] > 0
        check(llm, checkpoint, wanted)


def test_eight_adapters_take_turns_in_two_slots(tmp_path: Path) -> None:
    checkpoint = Checkpoint("llama", tmp_path / "model")
    own = adapters_of(checkpoint, tmp_path, 8)
    with engine_of(checkpoint.path, max_loras=2, max_cpu_loras=8, swap_space="16MiB") as llm:
        shrink_pool(llm, num_tokens=99)
        check(llm, checkpoint, own)


def test_eight_adapters_in_one_step(tmp_path: Path) -> None:
    checkpoint = Checkpoint("qwen2", tmp_path / "model")
    own = adapters_of(checkpoint, tmp_path, 8)
    with engine_of(checkpoint.path, max_loras=8, max_num_batched_tokens=256) as llm:
        check(llm, checkpoint, own)


def test_rows_in_several_formats_are_corrected_together(tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint("q4_k_m", tmp_path)
    own = adapters_of(checkpoint, tmp_path, 2)
    with engine_of(checkpoint.path, max_loras=2) as llm:
        check(llm, checkpoint, [own[0], None, own[1]])


def test_kv_of_an_adapter_is_never_served_to_another(tmp_path: Path) -> None:
    """The same prompt with each adapter finds what it left behind, and nothing else."""
    checkpoint = Checkpoint("llama", tmp_path / "model")
    own = adapters_of(checkpoint, tmp_path, 2)
    prompt = {"prompt_token_ids": prompts()[3]}
    with engine_of(checkpoint.path, max_loras=2) as llm:
        first = [llm.generate(prompt, PARAMS, lora_request=each)[0].num_cached_tokens for each in (None, *own)]
        again = [llm.generate(prompt, PARAMS, lora_request=each)[0].num_cached_tokens for each in (None, *own)]
    assert first == [0, 0, 0]
    assert again == [39, 39, 39]


def test_kv_that_an_adapter_decodes_is_never_served_to_another(tmp_path: Path) -> None:
    """Of a prompt shorter than a block: the first block fills while decoding."""
    checkpoint = Checkpoint("llama", tmp_path / "model")
    (own,) = adapters_of(checkpoint, tmp_path, 1)
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    prompt = prompts()[3][:2]
    with engine_of(checkpoint.path, max_loras=1) as llm:
        (answer,) = llm.generate({"prompt_token_ids": prompt}, params, lora_request=own)
        text = {"prompt_token_ids": [*prompt, *answer.outputs[0].token_ids][:50]}
        found = [llm.generate(text, params, lora_request=each)[0].num_cached_tokens for each in (None, own)]
    assert found[0] == 0
    assert found[1] in range(32, 50), "its own next turn finds what it computed"
