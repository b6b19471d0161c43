"""Writes shards for tests with the standard library only, so that no reader is checked against itself."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

_TABLE = []
for _byte in range(256):
    for _ in range(8):
        _byte = (_byte >> 1) ^ (0x82F63B78 if _byte & 1 else 0)
    _TABLE.append(_byte)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(data: bytes) -> bytes:
    """A record with its framing in a TFRecord file."""
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def tfrecord(path: Path, records: Iterable[bytes]) -> Path:
    path.write_bytes(b"".join(framed(record) for record in records))
    return path


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    number &= 2**64 - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def example(features: Mapping[str, bytes | list[int] | list[float]]) -> bytes:
    """A tf.train.Example."""
    out = b""
    for name, value in features.items():
        if isinstance(value, bytes):
            feature = _field(1, _field(1, value))
        elif not value or isinstance(value[0], float):
            feature = _field(2, _field(1, struct.pack(f"<{len(value)}f", *value)))
        else:
            feature = _field(3, _field(1, b"".join(_varint(int(number)) for number in value)))
        out += _field(1, _field(1, name.encode()) + _field(2, feature))
    return _field(1, out)


def tar(path: Path, members: Iterable[tuple[str, bytes]], format: int = tarfile.USTAR_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path
