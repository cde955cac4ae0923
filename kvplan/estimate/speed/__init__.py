"""How fast a model is served: ranges from data sheets or measured profiles, and simulations of whole workloads.

steps           how long a step takes on one rank: work, links, coefficients, the host
simulation      continuous batching simulated request by request; for sweeps' forecasts and for calibrate
queueing        loads with queues: what users, a rate or a burst see, percentiles included
steady          users who follow one another, in closed form: from a step and a prompt to TTFT and TPOT
bounds          what the data sheet allows at most: where every interval ends
latency         these figures for a model on a GPU, as ranges; called by estimate and plan
engine_speed    one instance under an engine and its release: steps, and how it composes them
device_speed    the same for an estimate's deployments
queues          percentiles of a load with their intervals, and the steps that serve it
step_picture    those steps drawn
own_point       what one result of a user's server says of its other loads
speculation     what a drafter's tokens gain and cost
"""
