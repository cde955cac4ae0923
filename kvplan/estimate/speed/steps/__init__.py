"""How long a step takes on one rank, by data sheet or by measured coefficients.

work                what one rank reads and computes in a step, for every parallel layout
collectives         what ranks send each other, and over which link
clocks              seconds of a step and of a prompt: by data sheet
group_steps         what such clocks share: groups that take a step together, or one alone
measured_clock      the same by coefficients that were measured
step_time           seconds of one step, in coefficients that ``kvplan calibrate`` fits
rank_step           one step on one rank, in coefficients of measured kernels
kernels/            where kernels differ from these: by release, by backend, by GPU
host                what launching and the engine's own work add to a step
step_terms          what a step's time consists of, for people
"""
