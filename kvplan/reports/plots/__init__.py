"""The plots of a run, a module each with a function ``draw(run, figure)`` that returns its finding as one sentence.

outcomes      statuses over utilization x context, with the predicted boundary
throughput    throughput over max_num_seqs; latency: TTFT and TPOT; pareto: one user's speed against all users'
occupancy     KV pool and queues over time in the best and the worst trial
predictions   predicted against measured
memory        what device memory was used for; block_size: KV waste and throughput by block size
slo           requests within the SLO and goodput over the load, where it was searched
comparison    two runs (its draw takes a Comparison)
canvas        what all of them share: style, title and footer, axes, PNG

``kvplan.reports.pictures`` lists them and calls them. matplotlib is imported only when one is drawn.
"""
