"""The examples of tf.data and of Feedline give the same batches from the same shards."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import answer

FOLDER = Path(__file__).parent.parent / "examples"

EXAMPLES = """
sys.path.insert(0, arguments[0])
import numpy as np
import tfrecord_feedline, tfrecord_tf_data

pattern = tfrecord_tf_data.make_shards(Path(arguments[1]))
equal, counts = [], []
for rank, world in [(0, 1), (0, 3), (2, 3)]:
    ours = list(tfrecord_feedline.make_loader(pattern, rank, world))
    theirs = list(tfrecord_tf_data.batches(pattern, rank, world))
    counts.append([len(ours), len(theirs), sum(len(batch["label"]) for batch in ours)])
    for one, other in zip(ours, theirs):
        pairs = [(one[name], other[name]) for name in ("image", "label")]
        same = [np.array_equal(a, b) and a.dtype == b.dtype for a, b in pairs]
        equal.append(all(same) and one.keys() == other.keys())
say([counts, equal])
"""


@pytest.mark.timeout(300)
def test_both_examples_give_equal_batches_on_every_rank(tmp_path: Path) -> None:
    counts, equal = answer(EXAMPLES, FOLDER, tmp_path, seconds=280)

    # 62 records in the first shard, one more in each that follows.
    assert counts == [[9, 9, 524], [4, 4, 195], [3, 3, 131]]
    assert equal == [True] * 16
