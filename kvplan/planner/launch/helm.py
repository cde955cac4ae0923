"""Values for the Helm chart of vLLM's production stack (github.com/vllm-project/production-stack, helm/values.yaml)."""

from __future__ import annotations

from typing import Any, Final

from kvplan.errors import KvplanError
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.launch.containers import (
    START_SECONDS,
    arguments,
    gpu_label,
    image,
    local_directory,
    object_name,
    plan_comments,
    yaml_text,
)
from kvplan.planner.launch.engines import checkpoint_name
from kvplan.planner.launch.kubernetes import MOUNT, gpu_resource, node_terms
from kvplan.units import GIB

_OWN: Final = {
    "--max-model-len": ("maxModelLen", int),
    "--max-num-seqs": ("maxNumSeqs", int),
    "--gpu-memory-utilization": ("gpuMemoryUtilization", float),
    "--tensor-parallel-size": ("tensorParallelSize", int),
    "--dtype": ("dtype", str),
}
"""Options that the chart has values of its own for; the others are ``extraArgs``."""
_PREFIXES: Final = ("--enable-prefix-caching", "--no-enable-prefix-caching")
_HOST_GIB: Final = 16
_USAGE: Final = (
    "helm repo add vllm https://vllm-project.github.io/production-stack",
    "helm install NAME vllm/vllm-stack -f THIS_FILE",
    "For a gated model: create the secret hf-token, and set hf_token: {secretName: hf-token, secretKey: token}.",
)


def helm_values(deployment: PlannedDeployment, model_id: str) -> str:
    """Values of the chart. KvplanError where an instance spans nodes: the chart joins them by Ray, a plan does not."""
    if deployment.choice.num_nodes > 1:
        raise KvplanError(
            f"An instance of {deployment.choice.name} spans {deployment.choice.num_nodes} nodes; the chart joins them "
            "by Ray, which was not planned.",
            hint="use --format kubernetes, or limit the plan: --nodes 1",
        )
    values = {
        "servingEngineSpec": {
            "runtimeClassName": "",
            "strategy": {"type": "Recreate"},  # no GPUs are free for pods beside those that they replace
            "startupProbe": {"periodSeconds": 10, "failureThreshold": START_SECONDS // 10},
            "modelSpec": [_model(deployment, model_id)],
        },
        "routerSpec": {"enableRouter": True, "routingLogic": "roundrobin"},
    }
    return plan_comments(deployment, model_id, *_USAGE, mount=MOUNT) + yaml_text(values)


def _model(deployment: PlannedDeployment, model_id: str) -> dict[str, Any]:
    repository, tag = image(deployment)
    num_gpus = deployment.choice.layout.num_gpus
    weights_gib = deployment.prediction.rank.weight_bytes * num_gpus / GIB
    replicas = deployment.replicas + deployment.num_spare
    model: dict[str, Any] = {
        "name": object_name(model_id),
        "repository": repository,
        "tag": tag,
        "modelURL": checkpoint_name(deployment, model_id),
        "replicaCount": replicas,
        "requestCPU": 2 + num_gpus,  # vLLM's least: an API server, an engine core, a worker for each GPU
        "requestMemory": f"{_HOST_GIB + 8 * num_gpus}Gi",
        "requestGPU": num_gpus,
        "requestGPUType": gpu_resource(deployment),
        "shmSize": f"{_HOST_GIB}Gi",
        "vllmConfig": _config(arguments(deployment, model_id)[1:]),
    }
    label, directory = gpu_label(deployment), local_directory(model_id)
    if label is not None:
        model["nodeSelectorTerms"] = node_terms(*label)
    if directory is None:
        model["pvcStorage"] = f"{round(1.5 * weights_gib) + 10}Gi"
        model["pvcAccessMode"] = ["ReadWriteMany" if replicas > 1 else "ReadWriteOnce"]
        return model
    model["extraVolumes"] = [{"name": "model", "hostPath": {"path": directory, "type": "Directory"}}]
    model["extraVolumeMounts"] = [{"name": "model", "mountPath": directory, "readOnly": True}]
    return model


def _config(words: list[str]) -> dict[str, Any]:
    """``vllmConfig`` from vLLM's options. The chart switches prefix caching off where its value does not say on."""
    config: dict[str, Any] = {"enablePrefixCaching": _PREFIXES[1] not in words}
    rest = [word for word in words if word not in _PREFIXES]
    extra = []
    while rest:
        word = rest.pop(0)
        if word in _OWN:
            name, kind = _OWN[word]
            config[name] = kind(rest.pop(0))
        else:
            extra.append(word)
    return config | ({"extraArgs": extra} if extra else {})
