"""What ``plan --format docker, compose, kubernetes, helm`` prints, by the structure that each of them demands."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from kvplan import __version__
from kvplan.catalog.devices.gpus import find_gpu, load_gpus
from kvplan.catalog.models import resolve_model
from kvplan.errors import KvplanError
from kvplan.fleet.scaling.policy import ReplicaPolicy, Trigger
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.launch.containers import _labels
from kvplan.planner.launch.manifests import MANIFESTS, compose_file, docker_commands, helm_values, kubernetes_manifests
from kvplan.planner.launch.scaling import query, scaling_manifests
from kvplan.planner.question.request import ParallelSizes, PlanRequest
from kvplan.planner.search.plan import make_plan

LLAMA = "meta-llama/Llama-3.1-8B"


def planned(gpu: str, *, model: str = "llama-3.1-8b", tensor: int = 1, **asked: Any) -> PlannedDeployment:
    request = PlanRequest(
        gpus=(find_gpu(gpu),),
        sizes=asked.pop("sizes", ParallelSizes(tensor=(tensor,), pipeline=(1,))),
        **({"num_users": 8, "average_context": 4096} | asked),
    )
    return make_plan(resolve_model(model), request).deployments[0]


@pytest.fixture(scope="module")
def one() -> PlannedDeployment:
    return planned("h100-sxm", tensor=2)


@pytest.fixture(scope="module")
def several() -> PlannedDeployment:
    return planned("l40s", num_users=40, average_context=8192, num_spare_replicas=1)


@pytest.fixture(scope="module")
def over_nodes() -> PlannedDeployment:
    return planned("h100-sxm", model="deepseek-v3", sizes=ParallelSizes(), max_gpus=16)


def container_of(template: dict[str, Any]) -> dict[str, Any]:
    (found,) = template["spec"]["containers"]
    return found


def probes(container: dict[str, Any]) -> list[str]:
    return [name for name in ("startupProbe", "readinessProbe", "livenessProbe") if name in container]


def check_pod(template: dict[str, Any]) -> None:
    """core/v1: every mount has its volume, every volume one source, and what is asked for is a whole number of GPUs."""
    spec, container = template["spec"], container_of(template)
    names = [volume["name"] for volume in spec["volumes"]]
    assert len(set(names)) == len(names)
    assert {mount["name"] for mount in container["volumeMounts"]} == set(names)
    assert all(len(volume) == 2 for volume in spec["volumes"])
    assert all(isinstance(word, str) for word in container["command"])
    (resource, count), *rest = container["resources"]["limits"].items()
    assert not rest and isinstance(count, int) and count > 0
    assert spec["tolerations"] == [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    for name in probes(container):
        probe = container[name]
        assert probe["httpGet"] == {"path": "/health", "port": container["ports"][0]["containerPort"]}
        assert all(isinstance(value, int) for key, value in probe.items() if key != "httpGet")


@pytest.mark.parametrize("format", list(MANIFESTS))
def test_comments_tell_the_plan_and_no_date(format: str, one: PlannedDeployment) -> None:
    text = MANIFESTS[format](one, LLAMA)
    first, second = text.splitlines()[:2]
    assert first == f"# kvplan {__version__}: {LLAMA} on {one.name}, ${one.usd_per_hour:,.2f} per hour"
    assert f"{one.prediction.kv_cache_tokens:,} tokens of KV cache" in second and "TTFT" in second
    assert MANIFESTS[format](one, LLAMA) == text


@pytest.mark.parametrize("format", ["compose", "kubernetes", "helm"])
def test_yaml_has_no_anchors(format: str, several: PlannedDeployment) -> None:
    text = MANIFESTS[format](several, LLAMA)
    events = list(yaml.parse(text, Loader=yaml.SafeLoader))
    assert [event for event in events if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None)] == []


def test_a_deployment_of_kubernetes_is_whole(several: PlannedDeployment) -> None:
    workload, service = yaml.safe_load_all(kubernetes_manifests(several, LLAMA))
    template = workload["spec"]["template"]
    check_pod(template)
    assert workload["spec"]["replicas"] == several.replicas + 1
    assert template["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L40S"}
    assert probes(container_of(template)) == ["startupProbe", "readinessProbe", "livenessProbe"]
    assert {"name": "cache", "mountPath": "/root/.cache/huggingface"} in container_of(template)["volumeMounts"]
    assert template["metadata"]["labels"].items() >= service["spec"]["selector"].items()
    assert workload["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_workers_of_a_group_are_chosen_alike_and_have_no_port(over_nodes: PlannedDeployment) -> None:
    text = kubernetes_manifests(over_nodes, "deepseek-ai/DeepSeek-V3")
    workload, service = yaml.safe_load_all(text)
    templates = workload["spec"]["leaderWorkerTemplate"]
    leader, worker = templates["leaderTemplate"], templates["workerTemplate"]
    for each in (leader, worker):
        check_pod(each)
        assert each["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert len(probes(container_of(leader))) == 3 and probes(container_of(worker)) == []
    assert leader["metadata"]["labels"].items() >= service["spec"]["selector"].items()
    comments = [line for line in text.splitlines() if line.startswith("#")]
    for word in ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "rdma/", "IPC_LOCK"):
        assert any(word in line for line in comments)


def test_gpus_of_amd_are_chosen_by_their_device_ids() -> None:
    found = planned("mi300x")
    workload, _ = yaml.safe_load_all(kubernetes_manifests(found, LLAMA))
    template = workload["spec"]["template"]
    check_pod(template)
    (term,) = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term == {
        "matchExpressions": [{"key": "amd.com/gpu.device-id", "operator": "In", "values": ["74a1", "74b5"]}]
    }
    assert container_of(template)["image"].startswith("vllm/vllm-openai-rocm:v")
    service = yaml.safe_load(compose_file(found, LLAMA))["services"]["vllm-0"]
    assert service["devices"] == ["/dev/kfd", "/dev/dri"] and "deploy" not in service
    assert "--device=/dev/kfd" in docker_commands(found, LLAMA) and "--gpus" not in docker_commands(found, LLAMA)


def test_labels_are_of_known_gpus() -> None:
    known = {gpu.id for gpu in load_gpus() if not gpu.is_cpu}
    for labels in _labels().values():
        assert set(labels) <= known
        # core/v1: a label's value has 63 characters at most, letters, digits, and "-", "_", "." between them
        for values in labels.values():
            assert all(len(value) <= 63 and value.replace("-", "").isalnum() for value in values)


def runs(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if words[:2] == ["docker", "run"]:
            yield words


def test_docker_runs_one_container_for_each_replica(several: PlannedDeployment) -> None:
    found = list(runs(docker_commands(several, LLAMA)))
    assert len(found) == several.replicas + 1
    gpus = [words[words.index("--gpus") + 1] for words in found]
    assert gpus == [f'"device={place}"' for place in range(len(found))]
    for words in found:
        port = words[words.index("--port") + 1]
        assert words[words.index("--publish") + 1] == f"{port}:{port}"
        image = words.index(next(word for word in words if word.startswith("vllm/vllm-openai:v")))
        assert words[image + 1] == LLAMA
    assert docker_commands(several, LLAMA).splitlines()[-1].startswith("vllm-router ")


def test_docker_names_the_node_of_each_process(over_nodes: PlannedDeployment) -> None:
    text = docker_commands(over_nodes, "deepseek-ai/DeepSeek-V3")
    assert "# node 0\n" in text and "# node 1\n" in text
    first, second = runs(text)
    assert "--network=host" in first and "--headless" not in first
    assert "--headless" in second and "--publish" not in second


CHART: dict[str, type | tuple[type, ...]] = {
    "name": str, "repository": str, "tag": str, "modelURL": str, "replicaCount": int, "requestCPU": int,
    "requestMemory": str, "requestGPU": (int, str), "requestGPUType": str, "shmSize": str, "pvcStorage": str,
    "pvcAccessMode": list, "extraVolumes": list, "extraVolumeMounts": list, "nodeSelectorTerms": list,
    "vllmConfig": dict,
}  # fmt: skip
"""Of helm/values.schema.json of github.com/vllm-project/production-stack (chart 0.1.12): items of modelSpec."""
CONFIG: dict[str, type | tuple[type, ...]] = {
    "enablePrefixCaching": bool, "maxModelLen": int, "maxNumSeqs": int, "dtype": str, "tensorParallelSize": int,
    "gpuMemoryUtilization": (int, float, str), "extraArgs": list,
}  # fmt: skip


def test_values_for_helm_fit_the_chart(several: PlannedDeployment) -> None:
    values = yaml.safe_load(helm_values(several, LLAMA))
    assert set(values) == {"servingEngineSpec", "routerSpec"}
    (model,) = values["servingEngineSpec"]["modelSpec"]
    for found, schema in ((model, CHART), (model["vllmConfig"], CONFIG)):
        assert set(found) <= set(schema)
        assert [name for name, value in found.items() if not isinstance(value, schema[name])] == []
    assert all(isinstance(word, str) for word in model["vllmConfig"].get("extraArgs", []))
    assert (model["replicaCount"], model["requestGPU"]) == (several.replicas + 1, 1)
    assert model["vllmConfig"]["maxModelLen"] == several.prediction.settings.serving.max_model_len
    assert model["pvcAccessMode"] == ["ReadWriteMany"]


def test_values_for_helm_say_all_that_the_command_says(one: PlannedDeployment) -> None:
    """What the chart starts (helm/templates/deployment-vllm-multi.yaml) is the plan's command, in another order."""
    (model,) = yaml.safe_load(helm_values(one, LLAMA))["servingEngineSpec"]["modelSpec"]
    config = model["vllmConfig"]
    names = {
        "maxModelLen": "--max-model-len",
        "dtype": "--dtype",
        "tensorParallelSize": "--tensor-parallel-size",
        "maxNumSeqs": "--max-num-seqs",
        "gpuMemoryUtilization": "--gpu-memory-utilization",
    }
    started = [word for key, option in names.items() if key in config for word in (option, str(config[key]))]
    started += config.get("extraArgs", [])
    (words,) = runs(docker_commands(one, LLAMA))
    planned = words[words.index(LLAMA) + 1 : words.index("--port")]
    assert sorted(started) == sorted(planned)


def test_a_chart_that_joins_nodes_otherwise_is_not_filled_in(over_nodes: PlannedDeployment) -> None:
    with pytest.raises(KvplanError, match="spans 2 nodes") as caught:
        helm_values(over_nodes, "deepseek-ai/DeepSeek-V3")
    assert "--format kubernetes" in (caught.value.hint or "")


@pytest.mark.parametrize("format", list(MANIFESTS))
def test_a_local_model_is_mounted_where_it_lies(format: str, one: PlannedDeployment) -> None:
    text = MANIFESTS[format](one, "/models/my llama")
    assert text.count("/models/my llama") >= 3
    if format == "docker":
        (words,) = runs(text)
        assert words[words.index("--volume") + 1] == "/models/my llama:/models/my llama:ro"


def test_each_format_is_printed_alone(printed_by: Callable[..., str]) -> None:
    words = ["plan", "llama-3.1-8b", "--users", "4", "--ctx-max", "4k", "--gpu", "h100", "--format"]
    for format in MANIFESTS:
        assert printed_by(*words, format).startswith(f"# kvplan {__version__}: ")


MODEL = "meta-llama/Llama-3.1-8B"


def documents(policy: ReplicaPolicy, version: str = "0.33.0") -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(scaling_manifests(MODEL, MODEL, version, policy)))


def policy(*triggers: Trigger, num_spare: int = 0) -> ReplicaPolicy:
    return ReplicaPolicy(2, 12, triggers, 240.0, num_spare)


def test_keda_has_vllms_metrics_and_the_policys_thresholds() -> None:
    keda = documents(policy(Trigger("waiting", 5.0), Trigger("kv_usage", 0.7)))[0]
    assert (keda["apiVersion"], keda["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    assert keda["spec"]["scaleTargetRef"] == {"name": "llama-3-1-8b"}
    assert (keda["spec"]["minReplicaCount"], keda["spec"]["maxReplicaCount"]) == (2, 12)
    found = [(each["metadata"]["query"], each["metadata"]["threshold"]) for each in keda["spec"]["triggers"]]
    assert found == [
        ('sum(vllm:num_requests_waiting{model_name="meta-llama/Llama-3.1-8B"})', "5"),
        ('sum(vllm:kv_cache_usage_perc{model_name="meta-llama/Llama-3.1-8B"})', "0.7"),
    ]


def test_what_was_played_is_what_is_pasted() -> None:
    """Limits and windows of the policy, and not those that a cluster may have set otherwise."""
    keda, plain, _ = documents(policy(Trigger("in_flight", 32.0)))
    behavior = keda["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior == plain["spec"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 300
    assert behavior["scaleUp"]["policies"] == [
        {"type": "Percent", "value": 100, "periodSeconds": 15},
        {"type": "Pods", "value": 4, "periodSeconds": 15},
    ]


def test_the_plain_autoscaler_asks_for_what_its_adapter_gives() -> None:
    _, plain, adapter = documents(policy(Trigger("kv_usage", 0.7), Trigger("in_flight", 32.0)))
    assert (plain["apiVersion"], plain["kind"]) == ("autoscaling/v2", "HorizontalPodAutoscaler")
    asked = [each["external"]["metric"]["name"] for each in plain["spec"]["metrics"]]
    assert asked == [each["name"]["as"] for each in adapter["rules"]["external"]]
    targets = [each["external"]["target"] for each in plain["spec"]["metrics"]]
    assert targets == [
        {"type": "AverageValue", "averageValue": "700m"},
        {"type": "AverageValue", "averageValue": "32"},
    ]


def test_a_spare_replica_is_its_target_more() -> None:
    assert query(Trigger("waiting", 5.0), "m", "0.33.0", 1) == 'sum(vllm:num_requests_waiting{model_name="m"}) + 5'


def test_releases_before_0_9_called_the_gauge_otherwise() -> None:
    assert "gpu_cache_usage_perc" in query(Trigger("kv_usage", 0.7), "m", "0.8.5")
    assert "kv_cache_usage_perc" in query(Trigger("kv_usage", 0.7), "m", "0.9.0")


def test_tokens_in_flight_are_llm_ds() -> None:
    """guides/workload-autoscaling/keda-epp-token-aware of llm-d: no metric of vLLM counts them."""
    found = policy(Trigger("prompt_tokens", 12000.0), num_spare=1)
    keda, plain, adapter = documents(found)
    (trigger,) = keda["spec"]["triggers"]
    assert trigger["metadata"]["query"] == "sum(llm_d_epp_inflight_tokens) + 12000"
    assert trigger["metadata"]["threshold"] == "12000"
    assert plain["spec"]["metrics"][0]["external"]["target"]["averageValue"] == "12000"
    assert adapter["rules"]["external"][0]["seriesQuery"] == '{__name__="llm_d_epp_inflight_tokens"}'
    text = scaling_manifests(MODEL, MODEL, "0.33.0", found)
    assert "2 to 12 replicas by 12,000 prompt tokens" in text and "endpoint picker" in text
