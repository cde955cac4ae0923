"""Which replica a request goes to.

interface          what a router is asked, and what it may look at
named              routers by name, and what is known of each
in_turn            round robin, and the replica with the least in hand; vLLM's balancer over data-parallel engines
llm_d              llm-d's endpoint picker, with a memory of its own or with the engines' events
sglang             SGLang's router, cache_aware
dynamo             NVIDIA Dynamo's KV router
production_stack   vLLM's production stack, prefixaware
own                the router of ``kvplan serve``
prefixes           what a router remembers of prompts that it sent somewhere
"""
