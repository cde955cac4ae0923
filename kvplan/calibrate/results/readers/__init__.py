"""A reader for each format in which benchmarks save results: recognises it, and makes loads or timed batches of it.

kvplan_sweep.py   a folder of ``kvplan sweep`` with another engine
vllm_bench.py     ``vllm bench``: serve (and ``kvplan load --json``), a folder of sweep serve, exact batches of forward
guidellm.py       GuideLLM's report
aiperf.py         AIPerf's profile export
fields.py         typed values of JSON that others wrote

``reading.py`` above them chooses the reader. Of its neighbours a reader knows only
``outcome.py`` and ``served.py``.
"""
