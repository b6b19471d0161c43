"""Creates the first inputs of the fuzzers: small images of every kind, records, valid and invalid settings.

python tools/make_corpus.py
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import tensorflow as tf
from PIL import Image

CORPUS = Path(__file__).parent.parent / "fuzz" / "corpus"


def picture(mode: str, width: int = 21, height: int = 17) -> Image.Image:
    random = np.random.default_rng(1)
    pixels = random.integers(0, 256, (height, width, 4), dtype=np.uint8)
    return Image.fromarray(pixels, "RGBA").convert("RGB").convert(mode)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def ints(*values: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def floats(*values: float) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def strings(*values: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def records() -> None:
    """Writes Examples, and TFRecord files."""
    features = [
        {"a": ints(7)},
        {"a": floats(1.5)},
        {"a": strings(b"png")},
        {"a": strings("käse".encode())},
        {"a": ints(1, 2, 3, 4)},
        {"a": floats(1, 2, 3, 4)},
        {"a": ints(), "b": ints(2**63 - 1, -(2**63), -1, 0, 300)},
        {"a": tf.train.Feature(), "b": floats()},
        {"a": strings(b"", b"xy"), "b": ints(1, 2), "other": strings(b"z" * 200)},
    ]
    examples = [
        tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString(deterministic=True)
        for feature in features
    ]
    for steps in ([], [ints(1), ints(2)], [strings(b"one"), strings(b"two")]):
        lists = tf.train.FeatureLists(feature_list={"a": tf.train.FeatureList(feature=steps)})
        context = tf.train.Features(feature={"b": ints(len(steps))})
        sequence = tf.train.SequenceExample(context=context, feature_lists=lists)
        examples.append(sequence.SerializeToString(deterministic=True))
    # Unpacked numbers, an unknown group, an entry whose value comes before its key.
    examples.append(bytes.fromhex("0a10 0a0e 0a0161 1209 1a07 0801 08ac02 1001"))
    examples.append(bytes.fromhex("4b 08 01 4c 0a0d 0a0b 1206 1a04 0a02 0102 0a0161"))
    ways = [0, 1, 2, 3, 4, 5, 40, 33, 34, 16, 16, 50, 8, 8]
    for number, (way, example) in enumerate(zip(ways, examples, strict=True)):
        write("example", f"{number:02}", bytes([way]) + example)
    files = {
        "empty": [],
        "empty-record": [b""],
        "one": [b"x"],
        "two-empty": [b"", b""],
        "example": examples[:1],
    }
    files |= {"some": [b"", b"x", b"1234567", b"y" * 200], "examples": examples}
    for name, payloads in files.items():
        path = CORPUS / "tfrecord" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tf.io.TFRecordWriter(str(path)) as writer:
            for payload in payloads:
                writer.write(payload)
    some = (CORPUS / "tfrecord" / "some").read_bytes()
    write("tfrecord", "cut", some[:-30])
    write("tfrecord", "cut-header", some[:5])
    write("tfrecord", "bad-length", some[:17] + b"\x07" + some[18:])
    write("tfrecord", "bad-data", some[:-50] + b"\0" + some[-49:])


def archive(kind: int, members: dict[str, bytes], types: dict[str, bytes] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.type = len(data), (types or {}).get(name, tarfile.REGTYPE)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def saved(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def texts() -> None:
    """Writes tar archives, NumPy arrays, JSON lines and CSV rows."""
    arrays = {
        "float": np.arange(2, dtype="f4"),
        "matrix": np.zeros((2, 3), "u2"),
        "scalar": np.array(7),
        "none": np.zeros((0, 4), "i1"),
        "bool": np.ones(3, bool),
        "objects": np.array([None, {}]),
        "named": np.zeros(1, [("a", "f4"), ("b", "i8", (2,))]),
        "fortran": np.zeros((2, 3), order="F"),
        "big-endian": np.zeros(2, ">i4"),
        "text": np.array(["ab"]),
        "times": np.zeros(2, "M8[s]"),
    }
    for name, array in arrays.items():
        write("npy", name, saved(array))
    members = {"a.txt": b"hello", "a.cls": b"7", "a.npy": saved(arrays["float"]), "b.json": b'{"a": 1}'}
    long = {f"{'long/' * 30}{name}": data for name, data in members.items()}
    kinds = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
    for name, kind in kinds.items():
        write("tar", name, b"\0" + archive(kind, members))
        write("tar", f"{name}-long", b"\0" + archive(kind, long))
    types = {"a.cls": tarfile.SYMTYPE, "a.npy": tarfile.GNUTYPE_SPARSE, "b.json": tarfile.DIRTYPE}
    write("tar", "others", b"\0" + archive(tarfile.GNU_FORMAT, members, types))
    whole = archive(tarfile.USTAR_FORMAT, members)
    write("tar", "twice", b"\1" + whole + whole)
    write("tar", "clash", b"\0" + archive(tarfile.USTAR_FORMAT, {"a.txt": b"", "a.TXT": b""}))
    write("tar", "cut", b"\1" + whole[:-1500])
    write("tar", "garbage", b"\1" + whole + b"garbage" * 100)
    lines = [
        b'{"a": 1, "b": 2.5, "c": "text"}\n{"a": null}\r\n\n{"a": [1, 2]}',
        b'{"a": {"b": [[1, 2], [3, 4]]}, "a.b": 7}\n',
        b'{"a": "\\u00fc\\n\\"", "b\\"": true, "a": ["x", ""]}\n',
        b'{"a": [[1, 2], [3, 4]]}\n{"a": [[1], [2, 3]]}\n',
        b'[1, 2]\n3\n"x"\nnull\ntrue\n',
        b'{"a": 1,}\n{"a" 1}\n{\n',
        b'\xef\xbb\xbf{"a": 1e400}\n{"a": -0}\n{"a": 9223372036854775808}\n',
        b'{"a": "\xff"}\n',
        b"   \n\t\n",
        b'{"a": ["", "", ""]}',
    ]
    for number, line in enumerate(lines):
        write("jsonl", f"{number:02}", line)
    tables = [
        b"a,b,c\n1,2.5,x\n3,4,\n",
        b'a,b\r\n1,"x, ""y""\nz"\r\n2,\r\n',
        b"a\n\n\n1\n2",
        b"a,b\n1\n1,2,3\n",
        b'a,b\n1,"open\n2,3\n',
        b'a,b\n"1"x,y"z\n',
        b"\xef\xbb\xbfa,b\n1,2\n",
        b"a,b\r1,2\r3,4\r",
        b"a,a\n1,2\n",
        b'"a\nb",c\n"[1, 2]",{}\n',
        b"a",
    ]
    for number, table in enumerate(tables):
        write("csv", f"{number:02}", table)


def write(target: str, name: str, content: bytes) -> None:
    path = CORPUS / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def main() -> None:
    records()
    texts()
    rgb, exif = picture("RGB"), Image.Exif()
    exif[0x0112] = 6
    files = {
        "jpeg-420": encoded(rgb, "JPEG", subsampling=2),
        "jpeg-444": encoded(rgb, "JPEG", subsampling=0),
        "jpeg-422-progressive": encoded(rgb, "JPEG", subsampling=1, progressive=True),
        "jpeg-gray": encoded(picture("L"), "JPEG"),
        "jpeg-cmyk": encoded(picture("CMYK"), "JPEG"),
        "jpeg-exif": encoded(rgb, "JPEG", exif=exif),
        "png-rgb": encoded(rgb, "PNG"),
        "png-rgba": encoded(picture("RGBA"), "PNG"),
        "png-palette": encoded(picture("P"), "PNG", transparency=3),
        "png-gray": encoded(picture("L"), "PNG"),
        "png-bits": encoded(picture("1"), "PNG"),
        "png-16": encoded(Image.fromarray(np.arange(300, dtype=np.uint16).reshape(15, 20) * 200), "PNG"),
        "webp-lossy": encoded(rgb, "WEBP"),
        "webp-lossless": encoded(rgb, "WEBP", lossless=True),
        "webp-alpha": encoded(picture("RGBA"), "WEBP"),
        "gif": encoded(picture("P"), "GIF"),
        "empty": b"",
    }
    for number, (name, file) in enumerate(files.items()):
        path = CORPUS / "decode" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number * 5 % 32]) + file)
    calls: list[list[dict[str, object]]] = [
        [],
        [{"call": "shuffle", "seed": 7}, {"call": "shard", "rank": 1, "world": 4, "remainder": "drop"}],
        [{"call": "decode", "mode": "gray", "orient": True, "max_pixels": 1000, "scaled": True}],
        [{"call": "decode"}, {"call": "resize", "size": 256, "filter": "bicubic"}],
        [{"call": "resize", "size": [20, 30]}, {"call": "center_crop", "size": 224}],
        [{"call": "random_crop", "size": [4, 5], "padding": 4}, {"call": "flip", "p": 0.5}],
        [{"call": "random_resized_crop", "size": 224, "scale": [0.08, 1.0], "ratio": [0.75, 1.33]}],
        [{"call": "to_float", "mean": [0.5, 0.4, 0.3], "std": 0.2, "layout": "CHW"}],
        [{"call": "cast", "dtype": "float16", "layout": "HWC"}],
        [{"call": "batch", "size": 64, "drop_last": True, "pad": False, "index": True}],
        [{"call": "batch", "size": 1}, {"call": "loader", "memory": "1.5GiB", "prefetch": 0, "limit": 0.01}],
        [
            {"call": "batch", "size": 1},
            {"call": "loader", "threads": "auto", "files": 3, "faults": "action=skip,retry=2"},
        ],
    ]
    for number, config in enumerate(calls):
        path = CORPUS / "settings" / f"{number:02}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config))


if __name__ == "__main__":
    main()
