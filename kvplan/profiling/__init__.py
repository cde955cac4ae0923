"""A profile: one setting of kvplan's own engine under a load, step by step.

``kvplan profile`` makes a ``ProfilePlan`` from a sweep's options with one value each, ``session`` has a worker process
serve the requests and writes what it recorded. The parent process never imports the engine.

    plan        one setting, its device and its requests
    protocol    the messages between parent and worker
    worker/     the process that holds the engine and notes every step
    steps       what was recorded: steps as columns, requests, the memory's parts
    shares      where the time went: phases of a step, operations of the model's layers
    trace       the recording as a Chrome trace, which Perfetto opens; profile.json
    timeline    the recording as a picture
    page        report.html
    session     run a plan and write its directory
"""
