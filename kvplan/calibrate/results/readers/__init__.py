"""A reader for each format in which benchmarks save results: recognises it, and makes loads or timed batches of it.

kvplan_sweep.py   a folder of ``kvplan sweep`` with another engine
vllm_serve.py     ``vllm bench serve --save-result``, and ``kvplan load --json``; a folder of ``vllm bench sweep serve``
vllm_forward.py   ``vllm bench forward --output-json``: exact batches
guidellm.py       GuideLLM's report
aiperf.py         AIPerf's profile export
fields.py         typed values of JSON that others wrote

``reading.py`` above them chooses the reader. Of its neighbours a reader knows only
``outcome.py`` and ``served.py``.
"""
