"""What a rank has of a model: shapes that follow from the declared splits, and weights that are read in parts alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dense_models import DenseCheckpoint
from small_models import MIXTURES, Checkpoint

from kvplan.paths import profiles_dir
from kvplan_engine import EngineError
from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.checkpoints.dummy import fill_dummy
from kvplan_engine.checkpoints.loaders import read_config
from kvplan_engine.checkpoints.quantised.reader import Checkpoint as Opened
from kvplan_engine.checkpoints.safetensors import open_safetensors
from kvplan_engine.checkpoints.weights import Weights, allocate_weights, fill_weights
from kvplan_engine.description.division import (
    Rank,
    check_division,
    experts_of,
    rank_model,
    share_of,
    with_whole_experts,
)
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.parameters import Parameter, model_parameters

CPU = torch.device("cpu")


def joined(parameter: Parameter, parts: list[torch.Tensor]) -> torch.Tensor:
    """The whole parameter, of what each rank has; what several have must be the same."""
    whole = torch.full(parameter.shape, torch.nan)
    for index, part in enumerate(parts):
        share = share_of(parameter, Rank(index, len(parts)))
        rows = torch.tensor([row for run in share.rows for row in run], dtype=torch.long)
        columns = slice(None) if share.inputs is None else slice(share.inputs.start, share.inputs.stop)
        own, found = part[: len(rows)], whole[rows] if share.inputs is None else whole[rows][..., columns]
        assert torch.equal(own, torch.where(found.isnan(), own, found)), parameter.name
        if share.inputs is None:
            whole[rows] = own
        else:
            whole[..., columns] = own
        assert not part[len(rows) :].any(), f"{parameter.name}: rows that no token has"
    return whole


def parts_of(model: ModelDescription, count: int, fill: Callable[[Weights, Rank], None]) -> list[Weights]:
    ranks = Rank.all_of(count, 1)
    parts = [allocate_weights(rank_model(model, rank), torch.float32, CPU) for rank in ranks]
    for rank, part in zip(ranks, parts, strict=True):
        fill(part, rank)
    return parts


def test_shapes_of_every_architecture_follow_from_the_splits() -> None:
    seen: set[Any] = set()
    for file in sorted((profiles_dir() / "models").glob("*.json")):
        model = read_config(file.stem)
        if model.architecture in seen:
            continue
        try:
            check_shapes(model, 4)
        except EngineError:
            continue
        seen.add(model.architecture)
    assert len(seen) >= 30


def check_shapes(model: ModelDescription, count: int) -> None:
    for rank in Rank.all_of(count, 1):
        own = {each.name: each for each in model_parameters(first_layers(rank_model(model, rank)))}
        for parameter in model_parameters(first_layers(model)):
            share = share_of(parameter, rank)
            shape = (share.num_rows, *parameter.shape[1:])
            shape = shape if share.inputs is None else (*shape[:-1], len(share.inputs))
            assert own[parameter.name].shape == shape, f"{model.architecture}: {parameter.name}"


def first_layers(model: ModelDescription) -> ModelDescription:
    return replace(model, layers=model.layers[:3])


@pytest.mark.parametrize(("name", "count"), [("qwen1.5-moe-a2.7b", 8), ("gpt-oss-20b", 8), ("gemma-4-26b-a4b", 2)])
def test_shapes_where_experts_are_whole(name: str, count: int) -> None:
    """60 experts over 8 ranks; biases of experts lie with them."""
    model = with_whole_experts(read_config(name))
    check_shapes(model, count)
    for parameter in model_parameters(model):
        assert (parameter.split == "experts") == parameter.part.startswith("experts."), parameter.name


def test_the_first_ranks_have_one_expert_more_where_they_do_not_divide() -> None:
    held = [experts_of(10, rank) for rank in Rank.all_of(4, 1)]
    assert held == [range(3), range(3, 6), range(6, 8), range(8, 10)]


class Counting:
    """An open checkpoint, and how many elements of it are read."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.num_read = 0

    def read(self, name: str) -> torch.Tensor:
        tensor = self.opened.read(name)
        self.num_read += tensor.numel()
        return tensor

    def open_part(self, name: str) -> Any:
        assert self.opened.open_part is not None
        stored, counting = self.opened.open_part(name), self

        class Part:
            def get_shape(self) -> list[int]:
                return stored.get_shape()

            def __getitem__(self, place: Any) -> torch.Tensor:
                part = stored[place]
                counting.num_read += part.numel()
                return part

        return Part()

    def fill(self, weights: Weights, rank: Rank) -> None:
        fill_weights(weights, self.opened.parameters, self.read, "it", rank=rank, open_part=self.open_part)


def check_parts(model: ModelDescription, path: Path, count: int) -> None:
    """Ranks read what they have and no more, and together they have the whole model."""
    opened = Counting(open_safetensors(model, path))
    whole = allocate_weights(model, torch.float32, CPU)
    opened.fill(whole, Rank())

    def fill(part: Weights, rank: Rank) -> None:
        opened.num_read = 0
        opened.fill(part, rank)
        assert opened.num_read <= sum(tensor.numel() for tensor in part.values())

    parts = parts_of(model, count, fill)
    for parameter in model_parameters(model):
        assert torch.equal(joined(parameter, [part[parameter.name] for part in parts]), whole[parameter.name])


@pytest.mark.parametrize(("name", "count"), [("gpt2", 4), ("llama", 4), ("llama-tied", 2), ("qwen3", 2)])
def test_ranks_read_their_parts_alone(checkpoints: dict[str, Checkpoint], name: str, count: int) -> None:
    check_parts(read_config(checkpoints[name].path), checkpoints[name].path, count)


def test_ranks_read_their_parts_of_each_expert_alone(tmp_path: Path) -> None:
    path = DenseCheckpoint("qwen2_moe", tmp_path, MIXTURES).path
    check_parts(read_config(path), path, 4)


def test_ranks_read_whole_experts_alone(tmp_path: Path) -> None:
    """6 experts over 4 ranks."""
    path = DenseCheckpoint("mixtral", tmp_path, MIXTURES).path
    check_parts(read_config(path, whole_experts=True), path, 4)


def test_dummy_weights_of_ranks_are_parts_of_those_of_one_process() -> None:
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 64, "vocab_size": 333}
    config |= {"intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2}
    model = load_model_config({**config, "max_position_embeddings": 64, "tie_word_embeddings": False})
    whole = allocate_weights(model, torch.float32, CPU)
    fill_dummy(whole, model, 3)
    parts = parts_of(model, 4, lambda part, rank: fill_dummy(part, model, 3, rank))
    for parameter in model_parameters(model):
        assert torch.equal(joined(parameter, [part[parameter.name] for part in parts]), whole[parameter.name])


@pytest.mark.parametrize(
    ("name", "count", "sentence"),
    [
        ("smollm2-135m", 2, "9 attention heads cannot be divided over 2 ranks."),
        ("phi-4", 4, "10 KV heads cannot be divided over 4 ranks, nor each be held by as many of them."),
        (
            "deepseek-v3",
            2,
            "the engine does not divide DeepseekV3ForCausalLM over 2 ranks yet: it has latent attention.",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(name: str, count: int, sentence: str) -> None:
    with pytest.raises(EngineError) as caught:
        check_division(read_config(name), count)
    assert caught.value.message == sentence


def test_whole_experts_need_experts_and_one_for_each_rank() -> None:
    with pytest.raises(EngineError, match="is for mixtures of experts, and LlamaForCausalLM has none"):
        read_config("llama-3.1-8b", whole_experts=True)
    with pytest.raises(EngineError, match="8 whole experts cannot be divided over 16 ranks"):
        check_division(read_config("mixtral-8x22b", whole_experts=True), 16)
