"""kvplan: KV-cache capacity planner and profiler for LLM serving. Importing it never imports torch."""

__version__ = "0.1.0"
