"""A deployment as what is applied: every format of ``plan --format`` that starts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.launch.compose import compose_file, docker_commands
from kvplan.planner.launch.helm import helm_values
from kvplan.planner.launch.kubernetes import kubernetes_manifests

__all__ = ["MANIFESTS", "compose_file", "docker_commands", "helm_values", "kubernetes_manifests"]

MANIFESTS: Final[dict[str, Callable[[PlannedDeployment, str], str]]] = {
    "docker": docker_commands,
    "compose": compose_file,
    "kubernetes": kubernetes_manifests,
    "helm": helm_values,
}
"""By format; each takes the deployment and the model as it was asked for."""
