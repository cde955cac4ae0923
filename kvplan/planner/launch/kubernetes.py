"""Kubernetes: a Deployment with a Service, or a LeaderWorkerSet where one instance spans several nodes."""

from __future__ import annotations

import re
import shlex
from typing import Any

from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.launch.containers import (
    CACHE,
    SHARED_MEMORY,
    START_SECONDS,
    arguments,
    gpu_label,
    image,
    local_directory,
    object_name,
    plan_comments,
    yaml_text,
)
from kvplan.planner.launch.replicas import FIRST_PORT, vllm_processes

_NODE_CACHE = "/var/cache/huggingface"
"""On each node: what was downloaded once is there for the next pod."""
MOUNT = "hostPath volume"
_ACROSS_NODES = (
    "Between nodes NCCL takes the first network it finds. To name it, add NCCL_SOCKET_IFNAME (such as eth0) to env;",
    "with RDMA also NCCL_IB_HCA (such as mlx5), rdma/hca_shared_devices_a: 1 (or rdma/ib: 1, as your device plugin",
    "calls it) to resources.limits, and IPC_LOCK to securityContext.capabilities.add. NCCL_DEBUG=INFO tells it.",
    "Workers have no port to probe: one that exits restarts its whole group. LeaderWorkerSet: lws.sigs.k8s.io.",
)


def kubernetes_manifests(deployment: PlannedDeployment, model_id: str) -> str:
    """The workload and its Service, below comments with the plan."""
    name = object_name(model_id)
    labels = {"app.kubernetes.io/name": name}
    spans_nodes = deployment.choice.num_nodes > 1
    selector = {**labels, "role": "leader"} if spans_nodes else labels
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"selector": selector, "ports": [{"name": "http", "port": FIRST_PORT, "targetPort": FIRST_PORT}]},
    }
    workload = (_leader_worker_set if spans_nodes else _deployment)(deployment, model_id, name, labels)
    return plan_comments(deployment, model_id, *_more(deployment), mount=MOUNT) + yaml_text(workload, service)


def _more(deployment: PlannedDeployment) -> list[str]:
    label = gpu_label(deployment)
    lines = ["For a gated model: kubectl create secret generic hf-token --from-literal=token=hf_..."]
    lines.append(f"Downloads are kept in {_NODE_CACHE} of each node; put a PersistentVolumeClaim there to share them.")
    if label is None:
        lines.append(f"No label is known for {deployment.choice.gpu.id}: add a nodeSelector if the cluster has others.")
    else:
        lines.append(f"Nodes are chosen by {label[0]}: kubectl get nodes -L {label[0]}")
    return lines + (list(_ACROSS_NODES) if deployment.choice.num_nodes > 1 else [])


def _deployment(deployment: PlannedDeployment, model_id: str, name: str, labels: dict[str, str]) -> dict[str, Any]:
    command = ["vllm", "serve", *arguments(deployment, model_id)]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": deployment.replicas + deployment.num_spare,
            # No GPUs are free for a pod beside those that it replaces.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "selector": {"matchLabels": labels},
            "template": _pod(deployment, model_id, labels, command, serves=True),
        },
    }


def _leader_worker_set(
    deployment: PlannedDeployment, model_id: str, name: str, labels: dict[str, str]
) -> dict[str, Any]:
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
    deployment: PlannedDeployment, model_id: str, labels: dict[str, str], command: list[str], *, serves: bool
) -> dict[str, Any]:
    gpus = min(deployment.choice.layout.num_gpus, deployment.choice.gpu.max_gpus_per_node)
    resource = gpu_resource(deployment)
    container: dict[str, Any] = {
        "name": "vllm",
        "image": ":".join(image(deployment)),
        "command": command,
        "env": [
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}}}
        ],
        "resources": {"limits": {resource: gpus}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "cache", "mountPath": CACHE}],
        **(_probes() if serves else {}),
    }
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}},
        {"name": "cache", "hostPath": {"path": _NODE_CACHE, "type": "DirectoryOrCreate"}},
    ]
    directory = local_directory(model_id)
    if directory is not None:
        container["volumeMounts"].append({"name": "model", "mountPath": directory, "readOnly": True})
        volumes.append({"name": "model", "hostPath": {"path": directory, "type": "Directory"}})
    spec = {
        **_placed(deployment),
        "tolerations": [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
        "volumes": volumes,
    }
    return {"metadata": {"labels": labels}, "spec": spec}


def gpu_resource(deployment: PlannedDeployment) -> str:
    """What the vendor's device plugin offers; a slice by its profile, as NVIDIA's names it under "mixed"."""
    gpu = deployment.choice.gpu
    if gpu.part_of is not None:
        return f"nvidia.com/mig-{gpu.id.removeprefix(gpu.part_of + '-')}"
    return "amd.com/gpu" if gpu.vendor == "amd" else "nvidia.com/gpu"


def _probes() -> dict[str, Any]:
    """Return the probes of the pod that serves. One that hangs is restarted after a minute."""
    probe = {"httpGet": {"path": "/health", "port": FIRST_PORT}, "periodSeconds": 10}
    return {
        "ports": [{"name": "http", "containerPort": FIRST_PORT}],
        "startupProbe": {**probe, "failureThreshold": START_SECONDS // 10},
        "readinessProbe": {**probe, "timeoutSeconds": 5},
        "livenessProbe": {**probe, "timeoutSeconds": 10, "failureThreshold": 6},
    }


def _placed(deployment: PlannedDeployment) -> dict[str, Any]:
    """Nodes with this GPU: by the one label it has, or any of several."""
    label = gpu_label(deployment)
    if label is None:
        return {}
    name, values = label
    if len(values) == 1:
        return {"nodeSelector": {name: values[0]}}
    return {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": node_terms(name, values)}
            }
        }
    }


def node_terms(name: str, values: list[str]) -> list[dict[str, Any]]:
    """One term of a node affinity: the label has any of ``values``."""
    return [{"matchExpressions": [{"key": name, "operator": "In", "values": values}]}]
