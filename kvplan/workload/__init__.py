"""The requests that trials serve: how many, how long, when they arrive. The same seed gives the same requests.

requests   WorkloadSpec, and the requests made from it
arrivals   times that are drawn
lengths    distributions of prompt and output lengths
files      requests read from files: JSON lines, ShareGPT, traces as CSV
"""
