"""What can be chosen, and what one choice of GPU, layout and formats serves, costs or lacks.

formats      weights and KV cache
layouts      ways to spread one instance over GPUs
load         what a load asks of one replica: users who wait, or requests at a rate
verdict      how sure it is that they are within the bounds of the goal; what requests see: figures of the play, each
             with its interval
deployment   what is tried and found, as types
basis        what the candidates of one plan share: start-ups, speeds, pools; what a drafter takes and yields; what the
             prefix cache finds, and what it leaves room for
candidate    a choice with so many replicas in closed form: its room, how fast about
sizing       whether it holds the load: with a seat for every request, or with fewer seats, or without graphs
evaluation   a candidate played: a deployment with its verdict; the load as one replica is sent it, played
misses       what a choice lacks, in bytes and in a sentence
"""
