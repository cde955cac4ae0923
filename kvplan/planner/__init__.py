"""``kvplan plan`` and ``kvplan explain``: from a load to deployments, and from a start-up log to what to change.

request, slo, prices   the question: load, lengths, GPUs, limits; the workload with its gaps filled
formats, layouts       what is tried: weights and KV cache, and ways to spread one instance over GPUs
load                   what a load asks of one replica: users who wait, or requests at a rate
slo_check              predicted speeds against the service level
deployment             what is tried and found, as types
trial                  one choice: as few replicas as serve the load
misses                 what a choice lacks, in bytes and in a sentence
search                 ``make_plan``: everything tried and ranked, and other formats beside it
fixes                  where nothing serves: the cheapest change after which something does
rule_of_thumb          the usual rule of thumb, for comparison
launch                 commands, Docker Compose and Kubernetes manifests
document, picture      a plan as JSON and as a plot
explaining             ``kvplan explain``
"""
