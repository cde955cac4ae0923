"""The parts of tools/check_cache.py, which tests use too.

prompts      a trace's requests as token ids, shortened
own_engine   what kvplan's own engine finds of them, in its pool, in host memory and on disk
own_rule     the same by the rule of its tiers, block by block
vllm_host    what vLLM's own manager of host memory finds of them
vllm_pool    what vLLM's own block manager finds of them with windows
"""
