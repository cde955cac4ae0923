"""From a deployment to what is pasted or applied.

engines       one instance in the options of each engine
replicas      every process of all replicas, and the balancer before them
manifests     the formats that start a deployment, by name; `docker run` and Docker Compose; values of the production
              stack's chart
kubernetes    a Deployment, or a LeaderWorkerSet over nodes
scaling       KEDA's ScaledObject, or a HorizontalPodAutoscaler, for replicas by a policy
containers    what these share: images, directories, labels of GPUs, comments with the plan
"""
