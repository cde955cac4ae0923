"""What /metrics shows: vLLM 0.33's names, labels and buckets to the letter, and kvplan's own under ``kvplan:``.

histogram   counts per bucket; observing costs a bisection, since some are observed for every token
buckets     vLLM's
state       the numbers: updated from the engine's frames and from finished answers
exposition  the numbers as Prometheus' text
"""
