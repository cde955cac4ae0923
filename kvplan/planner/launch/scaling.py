"""Replicas by a policy: KEDA's ScaledObject, and the HorizontalPodAutoscaler for those who have a Prometheus adapter.

Both name the Deployment of ``kubernetes_manifests``. Metrics are vLLM's, summed over its pods by Prometheus.
"""

from __future__ import annotations

from typing import Any, Final

from kvplan.catalog.releases.facts import release_number
from kvplan.fleet.scaling.policy import Direction, MetricName, ReplicaPolicy, Trigger
from kvplan.planner.launch.containers import object_name, yaml_text

PROMETHEUS: Final = "http://prometheus-operated.monitoring.svc:9090"
"""The service that the Prometheus operator makes for its instances, where these are in the namespace monitoring."""
_FIRST_KV_CACHE_USAGE: Final = "0.9.0"
"""Before it the gauge was gpu_cache_usage_perc (profiles/metrics.json)."""
_DRAIN_SECONDS: Final = 600
_ADAPTED: Final[dict[MetricName, str]] = {
    "waiting": "vllm_requests_waiting",
    "in_flight": "vllm_requests_in_flight",
    "kv_usage": "vllm_kv_cache_usage",
    "prompt_tokens": "llm_d_inflight_tokens",
}
_TOKENS_IN_FLIGHT: Final = "llm_d_epp_inflight_tokens"
"""A gauge of llm-d's endpoint picker, whose labels name no model."""


def scaling_manifests(model_id: str, served: str, version: str, policy: ReplicaPolicy) -> str:
    """KEDA's object, and behind it the same as a plain HorizontalPodAutoscaler with its adapter's rules.

    served: the name that vLLM ``version`` serves the model under, a label of its metrics.
    """
    name = object_name(model_id)
    keda = yaml_text(_scaled_object(name, policy, served, version))
    plain = yaml_text(_autoscaler(name, policy), _adapter_rules(policy, version))
    instead = "# Without KEDA, in its place; rules go into the values of prometheus-adapter.\n"
    return f"{_comments(policy)}{keda}---\n{instead}{plain}"


def _comments(policy: ReplicaPolicy) -> str:
    lines = [
        f"{policy.text}; a new one was planned to serve after {policy.cold_start_seconds:,.0f} s.",
        f"serverAddress is where the Prometheus operator puts its service: {PROMETHEUS}; yours may differ.",
        f"A pod that goes has 30 s to finish its requests unless its template says terminationGracePeriodSeconds: "
        f"{_DRAIN_SECONDS}.",
    ]
    if any(each.metric == "prompt_tokens" for each in policy.triggers):
        lines.append(
            f"{_TOKENS_IN_FLIGHT} is of llm-d's endpoint picker (inflight-load-producer), one of them: give its "
            "namespace where several share a Prometheus."
        )
    if policy.num_spare:
        lines.append(f"{policy.num_spare} more than the metrics ask for: its target is added to each sum.")
    return "".join(f"# {line}\n" for line in lines)


def query(trigger: Trigger, served: str, version: str, num_spare: int = 0) -> str:
    """PromQL for the sum over all replicas."""
    label = f'{{model_name="{served}"}}'
    waiting, running = f"sum(vllm:num_requests_waiting{label})", f"sum(vllm:num_requests_running{label})"
    texts: dict[MetricName, str] = {
        "waiting": waiting,
        "in_flight": f"{waiting} + {running}",
        "kv_usage": f"sum(vllm:{_kv_usage(version)}{label})",
        "prompt_tokens": f"sum({_TOKENS_IN_FLIGHT})",
    }
    spare = f" + {num_spare * trigger.target:g}" if num_spare else ""
    return texts[trigger.metric] + spare


def _kv_usage(version: str) -> str:
    number, first = release_number(version), release_number(_FIRST_KV_CACHE_USAGE)
    is_old = number is not None and first is not None and number < first
    return "gpu_cache_usage_perc" if is_old else "kv_cache_usage_perc"


def _scaled_object(name: str, policy: ReplicaPolicy, served: str, version: str) -> dict[str, Any]:
    triggers = [
        {
            "type": "prometheus",
            "metricType": "AverageValue",
            "metadata": {
                "serverAddress": PROMETHEUS,
                "query": query(each, served, version, policy.num_spare),
                "threshold": f"{each.target:g}",
            },
        }
        for each in policy.triggers
    ]
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"name": name},
            "minReplicaCount": policy.min_replicas,
            "maxReplicaCount": policy.max_replicas,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(policy)}},
            "triggers": triggers,
        },
    }


def _behavior(policy: ReplicaPolicy) -> dict[str, Any]:
    return {"scaleUp": _direction(policy.up), "scaleDown": _direction(policy.down)}


def _direction(direction: Direction) -> dict[str, Any]:
    kinds = {"pods": "Pods", "percent": "Percent"}
    return {
        "stabilizationWindowSeconds": round(direction.stabilization_seconds),
        "selectPolicy": "Max",
        "policies": [
            {"type": kinds[each.kind], "value": each.value, "periodSeconds": round(each.seconds)}
            for each in direction.limits
        ],
    }


def _autoscaler(name: str, policy: ReplicaPolicy) -> dict[str, Any]:
    metrics = [
        {
            "type": "External",
            "external": {
                "metric": {"name": _ADAPTED[each.metric]},
                "target": {"type": "AverageValue", "averageValue": _quantity(each.target)},
            },
        }
        for each in policy.triggers
    ]
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": policy.min_replicas,
            "maxReplicas": policy.max_replicas,
            "metrics": metrics,
            "behavior": _behavior(policy),
        },
    }


def _quantity(target: float) -> str:
    """``5``; ``700m`` for 0.7, as Kubernetes writes what is no whole number."""
    return f"{target:.0f}" if target == round(target) else f"{round(1000 * target)}m"


def _adapter_rules(policy: ReplicaPolicy, version: str) -> dict[str, Any]:
    """What prometheus-adapter needs to give these metrics (its helm values)."""
    series: dict[MetricName, str] = {
        "waiting": "vllm:num_requests_waiting",
        "in_flight": "vllm:num_requests_running",
        "kv_usage": f"vllm:{_kv_usage(version)}",
        "prompt_tokens": _TOKENS_IN_FLIGHT,
    }
    matched = "{<<.LabelMatchers>>}"
    rules = []
    for each in policy.triggers:
        text = f"sum({series[each.metric]}{matched})"
        if each.metric == "in_flight":
            text += f" + sum(vllm:num_requests_waiting{matched})"
        if policy.num_spare:
            text += f" + {policy.num_spare * each.target:g}"
        rules.append(
            {
                "seriesQuery": f'{{__name__="{series[each.metric]}"}}',
                "resources": {"overrides": {"namespace": {"resource": "namespace"}}},
                "name": {"as": _ADAPTED[each.metric]},
                "metricsQuery": text,
            }
        )
    return {"rules": {"external": rules}}
