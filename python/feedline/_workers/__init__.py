"""Supervised worker processes, for pipelines with functions, torch loaders and executors.

`zygote` holds the work and forks workers; `worker` runs in them; `worker_pool` is the trainer's side;
`remote_error` sends exceptions to the trainer, `pickling` everything else.
"""
