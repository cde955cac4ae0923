"""How fast a model is served: ranges from data sheets or measured profiles, and simulations of whole workloads.

latency             TTFT, TPOT and throughput of a steady state; called by estimate and plan
work                what one rank reads and computes in a step, for every parallel layout
clocks              seconds of a step and of a prompt: by data sheet
measured_clock      the same by coefficients that were measured
rank_step           one step on one rank, in coefficients of measured kernels
collectives         what ranks send each other, and over which link
speculation         what a drafter's tokens gain and cost
device_speed        the same for an estimate's deployments
engine_speed        one instance under an engine and its release: steps, and how it composes them
release_kernels     mixtures of older releases than the tables'
widened_weights     weights in few bits that Marlin widens on A100
queues              percentiles of a load with their intervals, and the steps that serve it
step_picture        those steps drawn
step_terms          what a step's time consists of, for people
step_time           seconds of one step, in coefficients that ``kvplan calibrate`` fits
queueing            loads with queues: what users, a rate or a burst see, percentiles included
batching            continuous batching simulated request by request; called by sweeps' forecasts
simulation          the inputs and results of that simulation
simulated_figures   its TTFT, TPOT, ITL and throughput
"""
