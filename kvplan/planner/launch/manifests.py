"""A deployment as what is applied: every format of ``plan --format`` that starts it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, Final

from kvplan.errors import KvplanError
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.launch.containers import (
    CACHE,
    START_SECONDS,
    arguments,
    entry_point,
    gpu_label,
    image,
    local_directory,
    object_name,
    plan_comments,
    yaml_text,
)
from kvplan.planner.launch.engines import checkpoint_name
from kvplan.planner.launch.kubernetes import MOUNT, gpu_resource, kubernetes_manifests, node_terms
from kvplan.planner.launch.replicas import FIRST_PORT, Process, balancer_command, vllm_processes
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


_NGINX_IMAGE = "nginx:stable"
_MOUNT = "bind mount"
_AMD_DEVICES = ("/dev/kfd", "/dev/dri")
"""What a container needs of a host with AMD's GPUs (docs.vllm.ai, "Installation", ROCm)."""


def compose_file(deployment: PlannedDeployment, model_id: str) -> str:
    """``docker compose up``: one service for each replica, and nginx before them where there are several.

    KvplanError where the replicas need more than one node.
    """
    if deployment.num_nodes > 1:
        raise KvplanError(
            f"{deployment.name} fills {deployment.num_nodes} nodes; Docker Compose starts containers on one.",
            hint="use --format kubernetes, or limit the plan: --nodes 1, --max-gpus",
        )
    processes = vllm_processes(deployment, model_id)
    services = {f"vllm-{each.replica}": _service(deployment, model_id, each) for each in processes}
    document: dict[str, Any] = {"services": services}
    if len(processes) == 1:
        services["vllm-0"]["ports"] = [f"{FIRST_PORT}:{FIRST_PORT}"]
    else:
        services["balancer"] = {
            "image": _NGINX_IMAGE,
            "ports": [f"{FIRST_PORT}:80"],
            "configs": [{"source": "balancer", "target": "/etc/nginx/conf.d/default.conf"}],
            "depends_on": {name: {"condition": "service_healthy"} for name in list(services)},
        }
        document["configs"] = {"balancer": {"content": _nginx(list(services)[:-1])}}
    return plan_comments(deployment, model_id, mount=_MOUNT) + yaml_text(document)


def _service(deployment: PlannedDeployment, model_id: str, process: Process) -> dict[str, Any]:
    service = {
        "image": ":".join(image(deployment)),
        "command": [word.replace("$", "$$") for word in (*entry_point(deployment), *arguments(deployment, model_id))],
        "ipc": "host",
        "environment": ["HF_TOKEN"],
        "volumes": [f"${{HOME}}/.cache/huggingface:{CACHE}", *_bound(model_id)],
        "healthcheck": {
            "test": ["CMD", "curl", "-f", f"http://localhost:{FIRST_PORT}/health"],
            "interval": "10s",
            "start_period": f"{START_SECONDS}s",
        },
        "restart": "unless-stopped",
    }
    if deployment.choice.gpu.vendor == "amd":
        visible = ",".join(map(str, process.gpus))
        service["environment"] = ["HF_TOKEN", f"HIP_VISIBLE_DEVICES={visible}"]
        return service | {"devices": list(_AMD_DEVICES), "group_add": ["video"], "cap_add": ["SYS_PTRACE"]}
    devices = [{"driver": "nvidia", "device_ids": process.device_ids, "capabilities": ["gpu"]}]
    return service | {"deploy": {"resources": {"reservations": {"devices": devices}}}}


def _bound(model_id: str) -> list[dict[str, Any]]:
    directory = local_directory(model_id)
    if directory is None:
        return []
    path = directory.replace("$", "$$")
    return [{"type": "bind", "source": path, "target": path, "read_only": True}]


def _nginx(services: list[str]) -> str:
    servers = "".join(f"  server {name}:{FIRST_PORT};\n" for name in services)
    return (
        f"upstream vllm {{\n  least_conn;\n{servers}}}\n"
        "server {\n  listen 80;\n  location / {\n    proxy_pass http://vllm;\n    proxy_buffering off;\n"
        "    proxy_read_timeout 1h;\n  }\n}\n"
    )


def docker_commands(deployment: PlannedDeployment, model_id: str) -> str:
    """One ``docker run`` for each process, by node, and what spreads requests over the replicas."""
    lines = []
    for process in vllm_processes(deployment, model_id):
        if deployment.num_nodes > 1:
            lines.append(f"# node {process.node}")
        lines.append(_run(deployment, model_id, process))
    balancer = balancer_command(deployment, model_id)
    if balancer is not None:
        lines += ["# before them, a balancer (pip install vllm-router)", balancer]
    return plan_comments(deployment, model_id, mount=_MOUNT) + "\n".join(lines) + "\n"


def _run(deployment: PlannedDeployment, model_id: str, process: Process) -> str:
    gpus = ",".join(map(str, process.gpus))
    words = ["docker", "run", "--detach", "--name", f"vllm-{process.replica}", "--ipc=host", "--restart=unless-stopped"]
    if deployment.choice.gpu.vendor == "amd":
        words += [f"--device={device}" for device in _AMD_DEVICES]
        words += ["--group-add=video", "--cap-add=SYS_PTRACE", "--env", f"HIP_VISIBLE_DEVICES={gpus}"]
    else:
        words += ["--gpus", f'"device={",".join(process.device_ids)}"']
    if deployment.choice.num_nodes > 1:
        words.append("--network=host")  # its nodes find each other by the hosts' addresses
    elif process.port is not None:
        words += ["--publish", f"{process.port}:{process.port}"]
    words += ["--env", "HF_TOKEN"]
    directory = local_directory(model_id)
    if directory is not None:
        words += ["--volume", f"{directory}:{directory}:ro"]
    line = " ".join(map(shlex.quote, words))
    # What follows `vllm serve` is quoted already, and may hold the variable $NODE_0.
    served = process.command if entry_point(deployment) else process.command.removeprefix("vllm serve ")
    return f'{line} --volume "$HOME/.cache/huggingface:{CACHE}" {":".join(image(deployment))} {served}'


__all__ = ["MANIFESTS", "compose_file", "docker_commands", "helm_values", "kubernetes_manifests"]

MANIFESTS: Final[dict[str, Callable[[PlannedDeployment, str], str]]] = {
    "docker": docker_commands,
    "compose": compose_file,
    "kubernetes": kubernetes_manifests,
    "helm": helm_values,
}
"""By format; each takes the deployment and the model as it was asked for."""
