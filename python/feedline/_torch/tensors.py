"""Sends tensors from a worker to the trainer without copying their memory."""

from __future__ import annotations

import math
import pickle
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.dlpack import from_dlpack

from feedline import _native

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["KINDS", "reduce_storage_by_value", "reducers", "tensor_in_arena"]

# Before torch 2.6, unpickling a tensor that was pickled by value warns of torch.load, which the user has
# never called. The user's own calls still warn.
warnings.filterwarnings("ignore", "You are using `torch.load`", FutureWarning, r"torch\.storage")

# DLPack's type code and bits for each dtype that it supports. A dtype is sent as its index in this list.
_DLPACK: list[tuple[torch.dtype, tuple[int, int]]] = [
    (torch.float32, (2, 32)),
    (torch.int64, (0, 64)),
    (torch.uint8, (1, 8)),
    (torch.float64, (2, 64)),
    (torch.float16, (2, 16)),
    (torch.bfloat16, (4, 16)),
    (torch.int32, (0, 32)),
    (torch.int16, (0, 16)),
    (torch.int8, (0, 8)),
    (torch.bool, (6, 8)),
    (torch.uint16, (1, 16)),
    (torch.uint32, (1, 32)),
    (torch.uint64, (1, 64)),
    (torch.complex64, (5, 64)),
    (torch.complex128, (5, 128)),
]
KINDS = {dtype: place for place, (dtype, _) in enumerate(_DLPACK)}
_NUMBERS = [numbers for _, numbers in _DLPACK]
_BYTE = (1, 8)


def reducers() -> dict[type, Callable[[Any], Any]]:
    """Reducers for the types of torch, used in a worker."""
    return {torch.Tensor: _reduce_tensor, torch.UntypedStorage: _reduce_storage}


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    """Reduces a tensor in a worker: its memory as a buffer, the rest as small numbers."""
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return tensor.__reduce_ex__(5)
    if tensor.is_quantized or tensor.__dict__:
        return tensor.__reduce_ex__(5)
    if tensor.requires_grad:
        if not tensor.is_leaf:
            message = (
                "a tensor that requires grad and is not a leaf cannot be sent to another process: "
                "call detach() on it in the data set or the collate function"
            )
            raise pickle.PicklingError(message)
        return _with_gradient, (tensor.detach(),)
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    shape = tuple(tensor.shape)
    strides = None
    if not tensor.is_contiguous():
        # clone() keeps the order of dimensions in memory (channels last) if there are no gaps.
        tensor = tensor.clone()
        if not tensor.is_contiguous():
            strides = tensor.stride()
    elif 1 in shape:
        # Strides of dimensions of length one do not matter for memory, but show the order of dimensions.
        strides = tensor.stride()
    span: Any = _native.Span(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor)
    kind: int | torch.dtype = KINDS.get(tensor.dtype, tensor.dtype)
    if strides is None:
        return _rebuild, (pickle.PickleBuffer(span), kind, shape)
    return _rebuild, (pickle.PickleBuffer(span), kind, shape, strides)


def _rebuild(
    memory: Any, kind: int | torch.dtype, shape: Sequence[int], strides: Sequence[int] | None = None
) -> torch.Tensor:
    """Rebuilds a tensor in the trainer."""
    if isinstance(kind, int):
        return from_dlpack(memory.capsule(_NUMBERS[kind], shape, strides))
    size = len(memory)
    numbers = from_dlpack(memory.capsule(_BYTE, (size,))).view(kind)
    return numbers.view(shape) if strides is None else numbers.as_strided(shape, strides)


def _with_gradient(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.requires_grad_()


# torch pickles an untyped storage in a form that it cannot read again.


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    return _storage_of, (_bytes_of(storage),)


def reduce_storage_by_value(storage: torch.UntypedStorage) -> Any:
    """Reduces a storage for any process that has torch. As a NumPy array: torch would reduce a tensor to its
    storage again."""
    return _storage_of_array, (_bytes_of(storage).numpy(),)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    if storage.device.type != "cpu":
        raise pickle.PicklingError(
            f"a storage on {storage.device} cannot be sent to another process: send a tensor instead"
        )
    numbers = torch.empty(0, dtype=torch.uint8, device="cpu")
    return numbers.set_(storage)


def _storage_of(numbers: torch.Tensor) -> torch.UntypedStorage:
    return numbers.untyped_storage()


def _storage_of_array(numbers: Any) -> torch.UntypedStorage:
    return torch.from_numpy(numbers).untyped_storage()


def tensor_in_arena(
    connection: _native.WorkerConnection, count: int, dtype: torch.dtype, shape: Sequence[int]
) -> torch.Tensor | None:
    """A tensor in the arena for `count` samples of this type and shape; None if there is no slot or DLPack
    lacks the dtype."""
    kind = KINDS.get(dtype)
    if kind is None:
        return None
    slot = connection.take(count * math.prod(shape) * dtype.itemsize)
    if slot is None:
        return None
    return from_dlpack(slot.capsule(_NUMBERS[kind], (count, *shape)))
