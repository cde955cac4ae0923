"""``kvplan plan``: from a load to deployments.

question   what is asked: load, lengths, GPUs, limits, prices
choices    one choice of GPU, layout and formats: what it serves, and what it lacks
search     every choice tried and ranked; what was left out; fixes where nothing serves
fleets     the cheapest fleet that keeps a service level over a trace
answer     a plan as JSON and as a plot, with percentiles of its queues
likeness   what is asked as people write it, and with the settings of a vLLM command
launch     commands, Docker Compose and Kubernetes manifests
"""
