"""Prefill and decode apart: pools of replicas for each, KV that moves between them, and whether that pays.

rules     how engines hand a prompt over from the replica that read it to the one that decodes
moved     how many bytes of KV that moves; what of them is left when a prompt has been read chunk by chunk
links     transfers over links that they share
lines     requests in line for blocks of a replica
play      requests played on both pools
compare   pools of every ratio beside as many GPUs that do both
"""
