"""Python functions in a native pipeline: `map`, `filter` and `map_batch`.

The native loader delivers samples in order. `run_functions` calls the functions, in supervised worker
processes (`worker`, `processes`) or in threads (`threads`). `epoch` follows the instructions of the native
engine and delivers the batches; `faults` reports failed functions to the engine. `trees`, `samples` and
`shapes` split batches into samples and combine samples into batches.
"""
