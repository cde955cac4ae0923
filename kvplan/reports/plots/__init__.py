"""The plots of a run, a module each with a function ``draw(run, figure)``.

It returns its finding as one sentence, or None where the run has nothing to show in it. A figure is as wide as a page
or as narrow as a phone (``canvas.is_narrow``).

outcomes      statuses over two settings, with the predicted boundary; frontier: the same to scale, for searches
throughput    throughput over max_num_seqs; latency: TTFT and TPOT; pareto: one user's speed against all users'
occupancy     KV pool and queues over time in the best and the worst trial
predictions   predicted against measured
memory        what device memory was used for; block_size: KV waste and throughput by block size
requests      single requests: distribution of their latencies, and latency over time
slo           requests within the SLO and goodput over the load, where it was searched
comparison    two runs (its draw takes a Comparison); side_by_side: several; fleet: several devices
canvas        what all of them share: style, title and footer, axes, PNG; labels: beside points, none on top of another

``kvplan.reports.pictures`` lists them and calls them. matplotlib is imported only when one is drawn.
"""
