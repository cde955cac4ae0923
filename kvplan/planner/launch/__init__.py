"""From a deployment to what is pasted or applied.

engines     one instance in the options of each engine
replicas    every process of all replicas, and the balancer before them
manifests   Docker Compose and Kubernetes
"""
