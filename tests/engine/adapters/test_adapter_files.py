"""Adapters that cannot be used are refused in one sentence; those of random weights need no files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from adapter_files import save_adapter
from safetensors.torch import load_file, save_file
from small_models import Checkpoint
from tiny_configs import llama_config

from kvplan_engine import LLM, EngineError, LoRARequest, SamplingParams
from kvplan_engine.adapters.library import dummy_adapter
from kvplan_engine.adapters.sites import sites_of, slot_bytes
from kvplan_engine.description.parameters import num_parameters

PARAMS = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
PROMPT = {"prompt_token_ids": [1, 2, 3]}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(checkpoint: Checkpoint) -> Iterator[LLM]:
    settings = {"dtype": "float32", "device": "cpu", "device_memory": "384MiB", "max_model_len": 96}
    with LLM(str(checkpoint.path), **settings, enable_lora=True, max_loras=2, max_lora_rank=8) as made:
        yield made


@pytest.fixture(scope="module")
def saved(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter without a fault."""
    return save_adapter(checkpoint.model, tmp_path_factory.mktemp("adapter"), seed=1)


def _edit_config(**changes: object) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        file = path / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return edit


def _edit_tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        file = path / "adapter_model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)

    return edit


def _truncate(path: Path) -> None:
    file = path / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _with(name: str, put: Callable[[Path], object]) -> Callable[[Path], None]:
    """Something else in the place of a file."""

    def replace(path: Path) -> None:
        (path / name).unlink()
        put(path / name)

    return replace


def _first(tensors: dict[str, torch.Tensor], ending: str) -> str:
    return next(name for name in tensors if name.endswith(ending))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: (path / "adapter_config.json").unlink(), "holds no adapter_config.json"),
        (lambda path: (path / "adapter_model.safetensors").unlink(), "holds no adapter_model.safetensors"),
        (lambda path: (path / "adapter_config.json").write_text("{"), "is not JSON"),
        (_truncate, "is damaged"),
        (_edit_config(peft_type="PROMPT_TUNING"), "is no LoRA"),
        (_edit_config(use_dora=True), "DoRA"),
        (_edit_config(bias="all"), "biases of its own"),
        (_edit_config(modules_to_save=["lm_head"]), "modules that it replaces"),
        (_edit_tensors(lambda tensors: tensors.pop(_first(tensors, "lora_A.weight"))), "lacks one half"),
        (_edit_tensors(lambda t: t[_first(t, "lora_B.weight")].fill_(torch.nan)), "not finite"),
        (_edit_tensors(lambda t: t.update({_first(t, "lora_A.weight"): torch.zeros(4, 7)})), "where this model's has"),
        (_edit_tensors(lambda t: t.update({"base_model.model.x.lora_A.weight": torch.zeros(4, 7)})), "has no slot"),
        (_edit_tensors(lambda t: t.update({"base_model.model.x.lora_embedding_A": torch.zeros(4, 7)})), "has a tensor"),
        (_edit_tensors(lambda t: t.update({"\x1b[2J../x": torch.zeros(1)})), r"has a tensor '\\x1b\[2J\.\./x', which"),
        (_edit_tensors(lambda t: t.update({_first(t, "lora_A.weight"): torch.zeros(0, 64)})), "where this model's has"),
        (_edit_tensors(lambda t: [t.update({name: value.long()}) for name, value in t.items()]), "of type int64"),
        (_edit_tensors(lambda t: [t.update({n: value.to(torch.float8_e5m2)}) for n, value in t.items()]), "of type"),
        (_edit_tensors(lambda t: t[_first(t, "lora_B.weight")].fill_(3e38)), "not finite"),
        (_edit_config(lora_alpha="8"), "lora_alpha of the adapter in .* is no number"),
        (_edit_config(lora_alpha=[8]), "is no number"),
        (_edit_config(lora_alpha=10**400), "is no number"),
        (_edit_config(lora_alpha=float("nan")), "is no number"),
        (_edit_config(alpha_pattern=["q_proj"]), "alpha_pattern of the adapter in .* is no object"),
        (_edit_config(alpha_pattern={"(": 1}), r"has '\(', which the engine does not run"),
        (_edit_config(alpha_pattern={"(a+)+$": 1}), "which the engine does not run"),
        (_edit_config(alpha_pattern={"q_proj": None}), "is no number"),
        (lambda path: (path / "adapter_config.json").write_text("[" * 100_000), "is not JSON"),
        (lambda path: (path / "adapter_config.json").write_bytes(b"\xff\xfe"), "is not JSON"),
        (_with("adapter_config.json", os.mkfifo), "adapter_config.json is not a regular file"),
        (_with("adapter_config.json", lambda place: place.symlink_to("/dev/zero")), "is not a regular file"),
        (_with("adapter_config.json", lambda place: place.symlink_to(place)), "holds no adapter_config.json"),
        (_with("adapter_model.safetensors", os.mkfifo), "adapter_model.safetensors is not a regular file"),
        (_with("adapter_model.safetensors", lambda place: place.mkdir()), "holds no|is not a regular file"),
    ],
)  # fmt: skip
def test_bad_files_are_refused(
    spoil: Callable[[Path], object], sentence: str, saved: Path, llm: LLM, tmp_path: Path
) -> None:
    path = copytree(saved, tmp_path / "adapter")
    spoil(path)
    with pytest.raises(EngineError, match=sentence):
        llm.generate(PROMPT, PARAMS, lora_request=LoRARequest("bad", str(path)))
    assert llm.engine.model.adapters is not None and "bad" not in llm.engine.model.adapters.names
    assert not llm.engine.has_unfinished_requests()


def test_a_rank_beyond_the_slots_is_refused_with_the_setting(checkpoint: Checkpoint, llm: LLM, tmp_path: Path) -> None:
    path = save_adapter(checkpoint.model, tmp_path / "adapter", seed=1, r=9)
    with pytest.raises(EngineError, match="rank 9, and max_lora_rank is 8") as caught:
        llm.engine.load_adapter(LoRARequest("large", str(path)))
    assert caught.value.hint == "set max_lora_rank=9"


def test_an_adapter_can_be_unloaded_once_nobody_uses_it(saved: Path, llm: LLM) -> None:
    request = LoRARequest("guest", str(saved))
    llm.engine.add_request("r", [1, 2, 3], PARAMS, lora_request=request)
    with pytest.raises(EngineError, match="unfinished"):
        llm.engine.unload_adapter("guest")
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
    llm.engine.unload_adapter("guest")
    with pytest.raises(EngineError, match="no adapter is called 'guest'"):
        llm.engine.unload_adapter("guest")


def test_an_engine_without_adapters_says_so(checkpoint: Checkpoint, saved: Path) -> None:
    settings = {"dtype": "float32", "device": "cpu", "device_memory": "384MiB", "max_model_len": 96}
    with LLM(str(checkpoint.path), **settings) as plain, pytest.raises(EngineError, match="serves none"):
        plain.generate(PROMPT, PARAMS, lora_request=LoRARequest("a", str(saved)))


def test_slots_are_part_of_the_weights(llm: LLM) -> None:
    model = llm.engine.model.config
    slots = slot_bytes(model, 4, max_loras=2, max_lora_rank=8)
    assert slots == 2 * 4 * 8 * 3 * ((3 * 64 + 128) + (64 + 64) + (2 * 64 + 224) + (112 + 64))
    assert llm.engine.memory.weight_bytes == num_parameters(model) * 4 + slots


def test_an_adapter_behind_links_is_read(saved: Path, llm: LLM, tmp_path: Path) -> None:
    """As a cache of the hub keeps them."""
    for file in saved.iterdir():
        (tmp_path / file.name).symlink_to(file)
    answers = [
        llm.generate(PROMPT, PARAMS, lora_request=LoRARequest(name, str(path)))[0].outputs[0].token_ids
        for name, path in (("plain", saved), ("linked", tmp_path))
    ]
    assert answers[0] == answers[1]


def test_a_pattern_names_endings_and_layers(saved: Path, llm: LLM, tmp_path: Path) -> None:
    """alpha of what it matches, as PEFT finds it: 0 is no correction at all."""
    path = copytree(saved, tmp_path / "adapter")
    _edit_config(alpha_pattern={r"layers\.\d+\..*": 0})(path)
    outputs = llm.generate([PROMPT] * 2, PARAMS, lora_request=[None, LoRARequest("off", str(path))])
    assert outputs[0].outputs[0].token_ids == outputs[1].outputs[0].token_ids


def test_names_and_paths_of_other_types() -> None:
    for name, path in (("a", None), (None, "a"), (5, "a"), ("a", ["a"])):
        with pytest.raises(EngineError, match="must be a text"):
            LoRARequest(name, path)  # type: ignore[arg-type]


LLAMA: dict[str, Any] = llama_config(vocab_size=160)
SETTINGS: dict[str, Any] = {"device": "cpu", "device_memory": "384MiB", "max_model_len": 64, "dtype": "float32"}
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=1)
FOUR_TOKENS = {"prompt_token_ids": [5, 6, 7, 8]}


def test_each_answers_in_its_own_way() -> None:
    with LLM(LLAMA, load_format="dummy", enable_lora=True, max_loras=2, max_lora_rank=8, **SETTINGS) as llm:
        first, second = (llm.engine.add_dummy_adapter(f"adapter-{seed}", seed) for seed in (1, 2))
        wanted = [None, first, second, first]
        outputs = llm.generate([FOUR_TOKENS] * 4, GREEDY, lora_request=wanted)
        answers = [each.outputs[0].cumulative_logprob for each in outputs]
    assert answers[1] == answers[3]
    assert len(set(answers)) == 3


def test_it_corrects_every_product_and_is_the_same_for_the_same_seed() -> None:
    with LLM(LLAMA, load_format="none", **SETTINGS) as llm:
        model = llm.engine.model.config
    one, again, other = (dummy_adapter(model, 4, "bfloat16", seed) for seed in (1, 1, 2))
    assert set(one.corrections) == {(site.name, each) for site in sites_of(model) for each in range(len(site.segments))}
    for key, found in one.corrections.items():
        assert torch.equal(found.down, again.corrections[key].down)
        assert not torch.equal(found.up, other.corrections[key].up)
    assert one.digest == again.digest != other.digest
    held = {found.down.untyped_storage().data_ptr(): found.down.untyped_storage().nbytes() for found in
            one.corrections.values()}  # fmt: skip
    assert sum(held.values()) < num_parameters(model)


def test_only_counted_they_have_names_alone() -> None:
    with LLM(LLAMA, load_format="none", enable_lora=True, max_loras=2, max_lora_rank=8, **SETTINGS) as llm:
        request = llm.engine.add_dummy_adapter("adapter-1", 1)
        assert llm.engine.load_adapter(request).name == "adapter-1"


def test_without_slots_there_are_none() -> None:
    with LLM(LLAMA, load_format="dummy", **SETTINGS) as llm, pytest.raises(EngineError, match="serves none"):
        llm.engine.add_dummy_adapter("adapter-1")
