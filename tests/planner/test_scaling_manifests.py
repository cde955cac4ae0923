"""KEDA and HPA lines for a replica policy, by the structure that each of them demands."""

from __future__ import annotations

from typing import Any

import yaml

from kvplan.fleet.scaling.policy import ReplicaPolicy, Trigger
from kvplan.planner.launch.scaling import query, scaling_manifests

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
