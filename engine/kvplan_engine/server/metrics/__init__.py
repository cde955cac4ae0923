"""What /metrics shows: vLLM 0.33's names, labels and buckets to the letter, and kvplan's own under ``kvplan:``.

histogram   counts per bucket; observing costs a bisection, since some are observed for every token
buckets     vLLM's
state       one engine's numbers: updated from its frames and from finished answers
server      the numbers of all engines, and those of the API process
families    Prometheus' families, with a sample for each engine
engine_page what is shown of each engine
exposition  the numbers as Prometheus' text
"""
