"""Converts batches to plain values that can be compared with `==` and printed when they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["described", "generator_state"]


def described(value: object) -> Any:
    """Types, dtypes, shapes and content of a batch of any structure. The memory layout of a tensor is not
    part of it."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray):
        # The bytes of object arrays are addresses.
        content = [described(part) for part in value.flat] if value.dtype.hasobject else value.tobytes("A")
        order = "F" if value.flags.f_contiguous else "C"
        return type(value), str(value.dtype), value.shape, order, value.flags.writeable, content
    if isinstance(value, np.generic):
        return type(value), str(value.dtype), value.tobytes()
    if isinstance(value, Mapping):
        return type(value), [(key, described(part)) for key, part in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return type(value), [described(part) for part in value]
    return type(value), repr(value)


def _tensor(tensor: torch.Tensor) -> Any:
    kind = (type(tensor), str(tensor.dtype), str(tensor.layout), tensor.requires_grad)
    if tensor.is_nested:
        return *kind, [_tensor(part) for part in tensor.detach().unbind()]
    if tensor.layout is torch.sparse_coo:
        whole = tensor.detach()
        return *kind, tuple(tensor.shape), described([whole._indices(), whole._values()])
    if tensor.layout is torch.sparse_csr:
        whole = tensor.detach()
        parts = [whole.crow_indices(), whole.col_indices(), whole.values()]
        return *kind, tuple(tensor.shape), described(parts)
    if tensor.is_quantized:
        return *kind, tensor.q_scale(), tensor.q_zero_point(), _tensor(tensor.int_repr())
    if tensor.numel() == 0:
        return *kind, tuple(tensor.shape)
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return *kind, tuple(tensor.shape), plain.flatten().view(torch.uint8).numpy().tobytes()


def generator_state(generator: torch.Generator | None = None) -> bytes:
    """The state of a generator; by default torch's global one."""
    state = torch.get_rng_state() if generator is None else generator.get_state()
    return state.numpy().tobytes()
