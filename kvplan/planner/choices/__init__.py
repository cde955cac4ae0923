"""What can be chosen, and what one choice of GPU, layout and formats serves, costs or lacks.

formats      weights and KV cache
layouts      ways to spread one instance over GPUs
load         what a load asks of one replica: users who wait, or requests at a rate
slo_check    predicted speeds against the service level
drafting     what a drafter takes and yields
prefixes     what the prefix cache finds, and what it leaves room for
played       the same by percentiles, of a load with queues
deployment   what is tried and found, as types
trial        one choice: as few replicas as serve the load
misses       what a choice lacks, in bytes and in a sentence
"""
