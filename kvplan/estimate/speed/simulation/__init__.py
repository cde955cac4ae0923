"""Continuous batching simulated request by request, on lengths alone; called by sweeps' forecasts and by calibrate.

batching    the simulation: its rules and its state
interface   its inputs and results, and the clock it asks
pool        blocks that its sequences hold and its prefix cache keeps
figures     TTFT, TPOT, ITL and throughput of a simulation
"""
