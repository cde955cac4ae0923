"""How throughput grows with GPUs: published results beside predictions, plans on paper, and all-reduces.

published    rows of speeds.csv that differ in the number of GPUs alone
paper        one model over 1 to 64 GPUs, by the steady state and by playing it
collectives  the all-reduce model beside published nccl-tests
page         docs/scaling.md
"""
