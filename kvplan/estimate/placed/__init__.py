"""A deployment as it is sized under an engine: what the engine's prediction gives a person, its limit and its notes.

placement    the values: one sized deployment, and how many sequences it holds
vllm, kvplan, sglang    what each engine's prediction makes of them
"""
