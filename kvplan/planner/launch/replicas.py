"""Every process of a deployment: one command for each replica and node, and what spreads requests over the replicas."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.launch.engines import checkpoint_name, vllm_command

FIRST_PORT = 8000


@dataclass(frozen=True, slots=True)
class Process:
    """One ``vllm serve`` on one node. ``gpus``: indices on that node; ``port`` None where it serves no requests.

    has_slice: the index is that of a MIG slice of a GPU, which CUDA knows by its UUID.
    """

    replica: int
    node: int
    gpus: tuple[int, ...]
    port: int | None
    command: str
    has_slice: bool = False

    @property
    def device_ids(self) -> list[str]:
        """Ids as Docker names them; ``0:1`` is the second MIG slice of the first GPU."""
        return [f"0:{gpu}" if self.has_slice else str(gpu) for gpu in self.gpus]

    @property
    def line(self) -> str:
        """With the GPUs that it may see; ``$MIG_0`` stands for the UUID of the first slice (nvidia-smi -L)."""
        if self.has_slice:
            return f"CUDA_VISIBLE_DEVICES=$MIG_{self.gpus[0]} {self.command}"
        return f"CUDA_VISIBLE_DEVICES={','.join(map(str, self.gpus))} {self.command}"


def vllm_processes(deployment: PlannedDeployment, model_id: str) -> tuple[Process, ...]:
    """The processes of all replicas, spare ones included; replicas fill one node after the other.

    Instances over several nodes follow vLLM's pages on parallel scaling (``--nnodes``) and on data parallel deployment
    (``--data-parallel-start-rank``); ``$NODE_0`` stands for the address of the instance's first node.
    """
    command = vllm_command(deployment, checkpoint_name(deployment, model_id))
    replicas = deployment.replicas + deployment.num_spare
    if deployment.choice.num_nodes > 1:
        return tuple(process for replica in range(replicas) for process in _over_nodes(deployment, command, replica))
    return tuple(_on_a_node(deployment, command, replica) for replica in range(replicas))


def _on_a_node(deployment: PlannedDeployment, command: str, replica: int) -> Process:
    size, per_node = deployment.choice.layout.num_gpus, deployment.choice.gpu.max_gpus_per_node
    fits = max(per_node // size, 1)
    node, place = divmod(replica, fits)
    gpus = tuple(range(place * size, (place + 1) * size))
    port = FIRST_PORT + 1 + place if fits > 1 else FIRST_PORT
    has_slice = deployment.choice.gpu.part_of is not None
    return Process(replica, node, gpus, port, f"{command} --port {port}", has_slice)


def _over_nodes(deployment: PlannedDeployment, command: str, replica: int) -> list[Process]:
    layout, per_node = deployment.choice.layout, deployment.choice.gpu.max_gpus_per_node
    count = deployment.choice.num_nodes
    all_gpus = tuple(range(min(per_node, layout.num_gpus)))
    found = []
    for node in range(count):
        if layout.data_parallel_size > 1:
            local = layout.data_parallel_size // count
            words = ["--data-parallel-size-local", str(local), "--data-parallel-address", "$NODE_0"]
            words += ["--data-parallel-rpc-port", "13345"]
            words += ["--headless", "--data-parallel-start-rank", str(node * local)] if node else []
        else:
            words = ["--nnodes", str(count), "--node-rank", str(node), "--master-addr", "$NODE_0"]
            words += ["--headless"] if node else []
        port = None if node else FIRST_PORT
        line = f"{command} {' '.join(words)}" + (f" --port {port}" if port is not None else "")
        found.append(Process(replica, replica * count + node, all_gpus, port, line))
    return found


def balancer_command(deployment: PlannedDeployment, model_id: str) -> str | None:
    """The router of vLLM's production stack (``pip install vllm-router``) before the replicas; None for one replica."""
    serving = [process for process in vllm_processes(deployment, model_id) if process.port is not None]
    if len(serving) < 2:
        return None
    name = checkpoint_name(deployment, model_id)
    nodes = {process.node for process in serving}
    hosts = {node: "localhost" if len(nodes) == 1 else f"$NODE_{node}" for node in nodes}
    urls = ",".join(f"http://{hosts[process.node]}:{process.port}" for process in serving)
    models = ",".join([name] * len(serving))
    port = FIRST_PORT if len(nodes) == 1 else 8080
    # Double quotes: the addresses of nodes are variables that the shell fills in.
    return (
        f'vllm-router --port {port} --service-discovery static --static-backends "{urls}" '
        f"--static-models {shlex.quote(models)} --routing-logic roundrobin"
    )
