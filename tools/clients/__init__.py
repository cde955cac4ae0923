"""What ``check_clients.py`` is made of: real clients, as published, against a server that is started for them.

findings     a check, and what all checks of one client showed
running      a client as a program
served       `kvplan serve` in a process of its own, and its counters
curl         the command line's client
sdk          OpenAI's Python client: plain, streamed, asynchronous
vllm_bench   `vllm bench serve`
guide_llm    GuideLLM
ai_perf      AIPerf
web_page     a page of another origin
prometheus   a Prometheus that scrapes while a load runs
dashboards   the queries in Grafana dashboards
perfetto     a trace of `kvplan profile` in Perfetto's own user interface
browser      Chromium, spoken to through a pipe
page         docs/clients.md
"""
