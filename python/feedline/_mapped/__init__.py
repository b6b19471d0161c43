"""Functions of Python in a native pipeline: `map`, `filter` and `map_batch`.

The native loader gives samples in order. `doing` calls the functions, in supervised worker processes
(`worker`, `processes`) or in threads (`threads`). `gathering` puts what came of it into batches, `judging`
judges faults, `epoch` drives all of it and delivers.
`trees` and `samples` know how samples and batches are made of each other.
"""
