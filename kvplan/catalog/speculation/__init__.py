"""Speculative decoding: what proposes tokens ahead of a model, as vLLM loads it (vllm/config/speculative.py).

config    ``--speculative-config``, vLLM's JSON, as settings
reading   from settings to the drafter (``catalog.spec.Drafter``): ``with_speculation``
heads     drafters that are less than a model: multi-token prediction, EAGLE, Medusa
"""
