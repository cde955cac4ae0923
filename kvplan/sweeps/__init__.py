"""A sweep: many settings measured one after the other with kvplan's own engine, each with its prediction.

``kvplan sweep`` makes ``SweepOptions``, ``plan`` turns them into a ``SweepPlan``, and ``session`` runs it into a
directory of ``kvplan.runs``. The parent process never imports the engine; a worker process holds it.

    axes        settings that can vary, and the notation for their values
    engine_names which engines there are, and which options are whose
    drafting    who proposes tokens for the engine to verify
    options     what the user asked for, as written
    design      which settings a sweep measures if it does not search
    capacity    sweeps that only count: their device, and what they cannot answer
    weights     where the weights come from
    feasibility models that no trial can serve, and requests that do not fit, said before anything runs
    plan        from options to model, device, requests and schedule
    manifest    a plan as manifest.json, and back for --resume
    consent     what a directory may make this machine do when its sweep is continued
    schedules/  the order of the trials: a list, or a search that looks at each result
    shards/     a plan in parts for several machines, and merging them
    forecast/   what a trial is expected to do: memory, speed, and how long to wait for it
    worker/     the process that holds the engine and serves the requests
    rows        a row: what was known before the trial, and what the worker measured
    hosts       what serves trials, whichever engine it is
    worker_host the sweep's own engine in a worker process
    pool        trials on several workers at once, of which some may be lost
    cluster/    a Ray cluster as such a pool
    runner      one trial after the other, whatever becomes of each of them
    progress    what a running sweep shows
    session     a whole sweep, new or continued; the same with the memory that an engine leaves of a GPU, once it is
                loaded
"""
