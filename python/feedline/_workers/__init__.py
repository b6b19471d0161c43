"""Supervised worker processes, whatever they work for: a torch loader or an executor.

`zygote` holds the work and forks workers; `worker` is what runs in them; `worker_pool` is the trainer's side;
`remote_error` carries exceptions, `pickling` everything else.
"""
