"""Supervised worker processes, whatever they work for: a torch loader or an executor.

`zygote` holds the work and forks workers; `worker` is what runs in them; `crew` is the trainer's side;
`trouble` carries exceptions, `pickling` everything else.
"""
