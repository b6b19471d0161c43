"""A trainer that is killed again and again, and continues from what it has saved."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["KILLS", "TIMEOUT", "printed_chance", "received"]

KILLS = int(os.environ.get("FEEDLINE_KILLS", "4"))
# Most of it is the start of the trainer, which imports torch.
TIMEOUT = 900 + 60 * KILLS

# So many that the last kill still comes in the middle: between two kills, a trainer gets fewer batches than
# an epoch of 40 has.
EPOCHS = 2 + KILLS

# The end of a trainer, which has defined `make_loader` and `plain`, a batch as JSON can hold it.
LOOP = """
import json, sys
from pathlib import Path

def main(folder, workers, epochs):
    saved, received = folder / "saved.json", folder / "received.jsonl"
    loader = make_loader(workers)
    count, epoch, lines = 0, 0, []
    if saved.exists():
        state, count, epoch = json.loads(saved.read_text())
        loader.load_state_dict(state)
        # What came behind the state comes again.
        lines = received.read_text().splitlines(keepends=True)[:count]
    received.write_text("".join(lines))

    def save():
        new = folder / "new.json"
        new.write_text(json.dumps([loader.state_dict(), count, epoch]))
        new.replace(saved)

    with received.open("a", buffering=1) as file:
        while epoch < epochs:
            for batch in loader:
                file.write(json.dumps([epoch, plain(batch)]) + "\\n")
                count += 1
                save()
            epoch += 1
            save()

main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
"""


def printed_chance() -> random.Random:
    seed = int(os.environ.get("FEEDLINE_SEED", "0")) or random.randrange(2**32)
    print("seed", seed)
    return random.Random(seed)


def received(trainer: str, folder: Path, workers: int, kills: int, chance: random.Random) -> list[Any]:
    """The batches of a trainer that is killed so often while it runs."""
    folder.mkdir()
    program, saved = folder / "trainer.py", folder / "saved.json"
    program.write_text(trainer + LOOP)
    command = [sys.executable, str(program), str(folder), str(workers), str(EPOCHS)]
    for _ in range(kills):
        before = saved.read_bytes() if saved.exists() else b""
        process = subprocess.Popen(command, start_new_session=True)
        deadline = time.monotonic() + 120
        # It has begun, and gone on: then it may be killed at any moment.
        while process.poll() is None and time.monotonic() < deadline:
            if saved.exists() and saved.read_bytes() != before:
                break
            time.sleep(0.005)
        time.sleep(chance.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    subprocess.run(command, check=True, timeout=240)
    return [json.loads(line) for line in (folder / "received.jsonl").read_text().splitlines()]
