"""What was asked for is what commands and manifests serve: an id as the hub spells it, a path as an absolute one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import find_profile, profiles, resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.launch.engines import launch_commands
from kvplan.planner.launch.manifests import compose_file, kubernetes_manifests
from kvplan.planner.question.request import PlanRequest
from kvplan.planner.search.plan import make_plan

PROFILE_OF = {each: profile["id"] for profile in profiles() for each in (profile["id"], *profile["aliases"])}
HUB_IDS = [each for each in PROFILE_OF if "/" in each]
LOADED = ("vllm", "sglang", "tensorrt-llm", "tgi", "kvplan")
"""Engines whose command names what is loaded; llama.cpp's names a file made of it."""


@pytest.fixture(scope="module")
def deployment() -> PlannedDeployment:
    request = PlanRequest(gpus=(find_gpu("h100-sxm"),), num_users=4, average_context=1024)
    return make_plan(resolve_model("llama-3.1-8b"), request).deployments[0]


def of(deployment: PlannedDeployment, spec: ModelSpec) -> PlannedDeployment:
    """The same deployment, of another model: what is loaded depends on its identity alone."""
    weights = replace(deployment.choice.weights, spec=spec)
    return replace(deployment, choice=replace(deployment.choice, weights=weights))


def test_every_alias_is_served_as_itself(deployment: PlannedDeployment) -> None:
    assert len(HUB_IDS) > 200
    for hub_id in HUB_IDS:
        spec = resolve_model(hub_id)
        found = of(deployment, spec)
        commands = launch_commands(found, spec.served_id)
        for engine in (name for name in LOADED if name in commands):
            assert hub_id in shlex.split(commands[engine]), (hub_id, engine)
        if "vllm" in commands:
            assert shlex.split(commands["vllm"])[:3] == ["vllm", "serve", hub_id]
        profile_id = PROFILE_OF[hub_id]
        assert spec.sized_as == (profile_id if profile_id.casefold() != hub_id.casefold() else None)


def test_manifests_serve_what_the_command_serves(deployment: PlannedDeployment) -> None:
    """Of every eighth alias: they take the same id as the commands, which are tried with all, and YAML is slow."""
    for hub_id in HUB_IDS[::8]:
        spec = resolve_model(hub_id)
        found = of(deployment, spec)
        service = yaml.safe_load(compose_file(found, spec.served_id))["services"]["vllm-0"]
        assert service["command"][0] == hub_id
        workload = next(yaml.safe_load_all(kubernetes_manifests(found, spec.served_id)))
        command = workload["spec"]["template"]["spec"]["containers"][0]["command"]
        assert command[:3] == ["vllm", "serve", hub_id]


@pytest.mark.parametrize(
    ("typed", "served"),
    [
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("llama-2-7b-chat", "meta-llama/Llama-2-7b-chat-hf"),
        ("llama-3-8b-instruct", "meta-llama/Meta-Llama-3-8B-Instruct"),
        ("pythia-1.4b", "EleutherAI/pythia-1.4b-deduped"),
        ("gpt2", "openai-community/gpt2"),
        ("META-LLAMA/llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("meta-llama/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B"),
        ("Qwen/Qwen3-8B-AWQ", "Qwen/Qwen3-8B-AWQ"),
    ],
)
def test_short_names_and_spellings(typed: str, served: str) -> None:
    """A short name is the profile's id, or the alias that it ends; an id is spelt as its owner spells it."""
    assert resolve_model(typed).served_id == served


def test_what_gave_the_shape_stands_beside(printed_by: Callable[..., str]) -> None:
    asked, shape = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"
    question = f"plan {asked} --gpu l40s --users 10"
    shown = printed_by(question)
    assert shown.splitlines()[0].endswith(f"for 10 users of {asked} (sized as {shape}).")
    assert f"vllm serve {asked} --max-model-len" in shown
    assert f"{shape} " not in shown
    document = json.loads(printed_by(f"{question} --json"))
    assert (document["model"]["id"], document["model"]["sized_as"]) == (asked, shape)
    assert all(command.split()[2] == asked for command in [document["deployments"][0]["commands"]["vllm"]])
    assert printed_by(f"{question} --format kubernetes").startswith(f"# sized as {shape}\n")
    assert printed_by(f"estimate {asked} --gpu l40s --ctx 4k").startswith(f"{asked} (sized as {shape}): Llama")
    model = json.loads(printed_by(f"estimate {asked} --gpu l40s --ctx 4k --json"))["model"]
    assert (model["id"], model["sized_as"]) == (asked, shape)
    several = printed_by(f"estimate {asked} gpt2 --gpu l40s --ctx 1k")
    assert f"\n{asked} (sized as {shape})\n" in several


def model_folder(where: Path, name: str = "my model") -> Path:
    profile = find_profile("qwen3-8b")
    assert profile is not None
    folder = where / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(profile["config"]))
    return folder


def volumes(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in document["spec"]["template"]["spec"]["volumes"] if each["name"] == "model"]


@pytest.mark.parametrize("typed", ["./my model", "my model/config.json", "sub/../my model"])
def test_a_directory_is_served_from_where_it_is(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed_by: Callable[..., str]
) -> None:
    folder = model_folder(tmp_path)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    question = f"plan {shlex.quote(typed)} --gpu l40s --users 4"
    shown = printed_by(f"{question} --explain")
    for words in (f"vllm serve '{folder}' ", f"--model-path '{folder}' ", f"trtllm-serve '{folder}' "):
        assert words in shown
    workload = next(yaml.safe_load_all(printed_by(f"{question} --format kubernetes")))
    assert volumes(workload) == [{"name": "model", "hostPath": {"path": str(folder), "type": "Directory"}}]
    container = workload["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "model", "mountPath": str(folder), "readOnly": True} in container["volumeMounts"]
    composed = printed_by(f"{question} --format compose")
    assert composed.startswith("# The model's directory is a bind mount: it must be there on every node")
    service = yaml.safe_load(composed)["services"]["vllm-0"]
    assert service["command"][0] == str(folder)
    bound = {"type": "bind", "source": str(folder), "target": str(folder), "read_only": True}
    assert bound in service["volumes"]


def test_a_gguf_file_is_served_with_the_tokenizer_of_its_base(deployment: PlannedDeployment, tmp_path: Path) -> None:
    spec = replace(
        resolve_model("llama-3.1-8b"),
        served=str(tmp_path / "x-Q4_K_M.gguf"),
        tokenizer="meta-llama/Llama-3.1-8B-Instruct",
    )
    found = of(deployment, spec)
    commands = launch_commands(found, spec.served_id)
    assert f"vllm serve {spec.served} " in commands["vllm"]
    assert " --tokenizer meta-llama/Llama-3.1-8B-Instruct " in commands["vllm"]
    assert f"llama-server --model {spec.served} " in commands["llama.cpp"]
    assert "tensorrt-llm" not in commands and "tgi" not in commands
    workload = next(yaml.safe_load_all(kubernetes_manifests(found, spec.served_id)))
    assert volumes(workload) == [{"name": "model", "hostPath": {"path": str(tmp_path), "type": "Directory"}}]


def test_a_config_by_itself_names_no_checkpoint(tmp_path: Path, printed_by: Callable[..., str]) -> None:
    config = (model_folder(tmp_path) / "config.json").rename(tmp_path / "qwen.json")
    assert f"vllm serve '<the checkpoint of {config}>' " in printed_by(f"plan {config} --gpu l40s --users 4")


def test_another_format_is_a_build_of_what_was_asked_for(printed_by: Callable[..., str]) -> None:
    question = "plan meta-llama/Llama-3.1-70B-Instruct --gpu h100-sxm --users 4 --max-gpus 2"
    assert "vllm serve '<an awq build of meta-llama/Llama-3.1-70B-Instruct>' " in printed_by(
        f"{question} --quantization awq"
    )
    eight = printed_by(f"{question} --quantization fp8")
    assert "vllm serve meta-llama/Llama-3.1-70B-Instruct " in eight and "--quantization fp8" in eight
