"""What /metrics shows: vLLM 0.33's names, labels and buckets to the letter, and kvplan's own under ``kvplan:``.

state       histograms with vLLM's buckets; the numbers of each engine, updated from its frames and finished answers;
            those of the API process
engine_page what is shown of each engine: Prometheus' families with a sample for each
exposition  the numbers as Prometheus' text
"""
