"""Replicas that come and go by a policy, as Kubernetes has them, and what that saves over a trace.

policy       what is measured, its targets, and how fast replicas may come and go; how long a replica takes until it
             serves
play         a trace on replicas by a policy, and the seconds that are paid for; what a HorizontalPodAutoscaler decides,
             evaluation after evaluation
search       the cheapest policy of a handful that keeps a service level, beside a fixed fleet and a perfect autoscaler
"""
