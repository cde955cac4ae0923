"""A Ray cluster as the pool of a sweep's workers: ``kvplan sweep --ray``.

An actor on each node, or for each GPU, holds the sweep's worker process, which keeps its weights from trial to trial:
a task for each trial would load them each time, and import torch first. The actor's death closes the worker's stdin,
which ends it; a driver that dies takes its actors with it.

    node_worker   what runs on a node: the device as it is there, and the trials. It never imports Ray
    places        where in a cluster one worker each belongs
    connection    a running cluster: its nodes, and the device that its workers will compute on; the pool: actors that
                  are made, asked, lost and made again
"""
