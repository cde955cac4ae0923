"""A deployment as Docker Compose or Kubernetes manifests, with health checks and one address before all replicas.

What they start is the model that was asked for. One that lies in a directory is mounted at the same path.
"""

from __future__ import annotations

import re
import shlex
from pathlib import PurePath
from typing import Any

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.errors import KvplanError
from kvplan.planner.choices.deployment import Deployment
from kvplan.planner.launch.engines import checkpoint_name, vllm_command
from kvplan.planner.launch.replicas import FIRST_PORT, Process, vllm_processes

_NGINX_IMAGE = "nginx:stable"
_CACHE = "/root/.cache/huggingface"
_START_SECONDS = 1800
"""How long loading may take before a container counts as failed."""
_SHARED_MEMORY = "16Gi"


def compose_file(deployment: Deployment, model_id: str) -> str:
    """``docker compose up``: one service for each replica, and nginx before them where there are several.

    KvplanError where the replicas need more than one node.
    """
    if deployment.num_nodes > 1:
        raise KvplanError(
            f"{deployment.name} fills {deployment.num_nodes} nodes; Docker Compose starts containers on one.",
            hint="use --format kubernetes, or limit the plan: --nodes 1, --max-gpus",
        )
    processes = vllm_processes(deployment, model_id)
    alone = len(processes) == 1
    services: dict[str, Any] = {}
    for process in processes:
        service = {
            "image": _image(deployment),
            "command": [word.replace("$", "$$") for word in _arguments(deployment, model_id)],
            "ipc": "host",
            "environment": ["HF_TOKEN"],
            "volumes": [f"${{HOME}}/.cache/huggingface:{_CACHE}", *_bound(model_id)],
            "healthcheck": {
                "test": ["CMD", "curl", "-f", f"http://localhost:{FIRST_PORT}/health"],
                "interval": "10s",
                "start_period": f"{_START_SECONDS}s",
            },
            "deploy": {"resources": {"reservations": {"devices": [_devices(process)]}}},
            "restart": "unless-stopped",
        }
        if alone:
            service["ports"] = [f"{FIRST_PORT}:{FIRST_PORT}"]
        services[f"vllm-{process.replica}"] = service
    document: dict[str, Any] = {"services": services}
    if not alone:
        services["balancer"] = {
            "image": _NGINX_IMAGE,
            "ports": [f"{FIRST_PORT}:80"],
            "configs": [{"source": "balancer", "target": "/etc/nginx/conf.d/default.conf"}],
            "depends_on": {name: {"condition": "service_healthy"} for name in list(services)},
        }
        document["configs"] = {"balancer": {"content": _nginx(list(services)[:-1])}}
    return _comments(deployment, model_id, "bind mount") + _yaml(document)


def _local_directory(model_id: str) -> str | None:
    """The directory to mount for a model that is a path: its own, or that of its file; None for a hub id."""
    path = PurePath(model_id)
    if not path.is_absolute():
        return None
    return str(path.parent if path.suffix.casefold() in (".gguf", ".json") else path)


def _bound(model_id: str) -> list[dict[str, Any]]:
    directory = _local_directory(model_id)
    if directory is None:
        return []
    path = directory.replace("$", "$$")
    return [{"type": "bind", "source": path, "target": path, "read_only": True}]


def _comments(deployment: Deployment, model_id: str, mount: str) -> str:
    """What a reader has to know of the model: whose shape was sized, and where its files must be."""
    spec, lines = deployment.choice.weights.spec, []
    if spec.sized_as is not None:
        lines.append(f"sized as {spec.sized_as}")
    if _local_directory(model_id) is not None:
        lines.append(f"The model's directory is a {mount}: it must be there on every node that serves.")
    return "".join(f"# {line}\n" for line in lines)


def kubernetes_manifests(deployment: Deployment, model_id: str) -> str:
    """A Deployment with a Service; a LeaderWorkerSet where one instance spans several nodes."""
    name, comments = _object_name(model_id), _comments(deployment, model_id, "hostPath volume")
    labels = {"app.kubernetes.io/name": name}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"selector": labels, "ports": [{"name": "http", "port": FIRST_PORT, "targetPort": FIRST_PORT}]},
    }
    if deployment.choice.num_nodes > 1:
        service["spec"]["selector"] = {**labels, "role": "leader"}  # type: ignore[index]
        return comments + _yaml(_leader_worker_set(deployment, model_id, name, labels), service)
    workload = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": deployment.replicas + deployment.num_spare,
            "selector": {"matchLabels": labels},
            "template": _pod(
                deployment, model_id, labels, ["vllm", "serve", *_arguments(deployment, model_id)], serves=True
            ),
        },
    }
    return comments + _yaml(workload, service)


def _leader_worker_set(deployment: Deployment, model_id: str, name: str, labels: dict[str, str]) -> dict[str, Any]:
    """Groups of pods, one on each node: the first serves, the others work for it (lws.sigs.k8s.io)."""
    leader, worker = (process.command for process in vllm_processes(deployment, model_id)[:2])
    leader = leader.replace("$NODE_0", "$(LWS_LEADER_ADDRESS)")
    # A worker's place in its group is known to its shell alone.
    first = f"$((LWS_WORKER_INDEX * {deployment.choice.layout.data_parallel_size // deployment.choice.num_nodes}))"
    worker = worker.replace("$NODE_0", "$LWS_LEADER_ADDRESS")
    worker = re.sub(r"--node-rank \d+", "--node-rank $LWS_WORKER_INDEX", worker)
    worker = re.sub(r"--data-parallel-start-rank \d+", f"--data-parallel-start-rank {first}", worker)
    shell = ["/bin/sh", "-c", worker]
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": deployment.replicas + deployment.num_spare,
            "leaderWorkerTemplate": {
                "size": deployment.choice.num_nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _pod(
                    deployment, model_id, {**labels, "role": "leader"}, shlex.split(leader), serves=True
                ),
                "workerTemplate": _pod(deployment, model_id, labels, shell, serves=False),
            },
        },
    }


def _pod(
    deployment: Deployment, model_id: str, labels: dict[str, str], command: list[str], *, serves: bool
) -> dict[str, Any]:
    gpus = min(deployment.choice.layout.num_gpus, deployment.choice.gpu.max_gpus_per_node)
    container: dict[str, Any] = {
        "name": "vllm",
        "image": _image(deployment),
        "command": command,
        "env": [
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}}}
        ],
        "resources": {"limits": {_resource(deployment.choice.gpu): gpus}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    if serves:
        probe = {"httpGet": {"path": "/health", "port": FIRST_PORT}, "periodSeconds": 10}
        container["ports"] = [{"containerPort": FIRST_PORT}]
        container["startupProbe"] = {**probe, "failureThreshold": _START_SECONDS // 10}
        container["readinessProbe"] = probe
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _SHARED_MEMORY}},
    ]
    directory = _local_directory(model_id)
    if directory is not None:
        container["volumeMounts"].append({"name": "model", "mountPath": directory, "readOnly": True})
        volumes.append({"name": "model", "hostPath": {"path": directory, "type": "Directory"}})
    return {"metadata": {"labels": labels}, "spec": {"containers": [container], "volumes": volumes}}


def _resource(gpu: GpuProfile) -> str:
    """What a pod asks for; a slice by its profile, as NVIDIA's device plugin names it under its strategy "mixed"."""
    if gpu.part_of is not None:
        return f"nvidia.com/mig-{gpu.id.removeprefix(gpu.part_of + '-')}"
    return "amd.com/gpu" if gpu.vendor == "amd" else "nvidia.com/gpu"


def _image(deployment: Deployment) -> str:
    repository = "rocm/vllm" if deployment.choice.gpu.vendor == "amd" else "vllm/vllm-openai"
    return (
        f"{repository}:latest"
        if deployment.choice.gpu.vendor == "amd"
        else f"{repository}:v{deployment.prediction.version}"
    )


def _arguments(deployment: Deployment, model_id: str) -> list[str]:
    """What follows ``vllm serve``."""
    return shlex.split(vllm_command(deployment, checkpoint_name(deployment, model_id)))[2:]


def _devices(process: Process) -> dict[str, Any]:
    """``0:1``: the second MIG slice of the first GPU."""
    ids = [f"0:{gpu}" if process.has_slice else str(gpu) for gpu in process.gpus]
    return {"driver": "nvidia", "device_ids": ids, "capabilities": ["gpu"]}


def _nginx(services: list[str]) -> str:
    servers = "".join(f"  server {name}:{FIRST_PORT};\n" for name in services)
    return (
        f"upstream vllm {{\n  least_conn;\n{servers}}}\n"
        "server {\n  listen 80;\n  location / {\n    proxy_pass http://vllm;\n    proxy_buffering off;\n"
        "    proxy_read_timeout 1h;\n  }\n}\n"
    )


def _object_name(model_id: str) -> str:
    """``meta-llama/Llama-3.1-8B`` -> ``llama-3-1-8b``: lower-case letters, digits and hyphens, a letter first."""
    last = model_id.rsplit("/", 1)[-1].lower()
    name = re.sub(r"[^a-z0-9]+", "-", last.removesuffix(".gguf").removesuffix(".json")).strip("-")
    name = name if name[:1].isalpha() else f"model-{name}"
    return name[:50].rstrip("-")


def _yaml(*documents: dict[str, Any]) -> str:
    import yaml

    return yaml.safe_dump_all(documents, sort_keys=False, width=120)
