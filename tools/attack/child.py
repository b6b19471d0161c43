"""The process of one round: `python -m attack.child SEED FAMILY ROUND FOLDER SECONDS`.

Writes the result of the round to result.json in the folder. If the round takes longer than the seconds, its
stacks are written to stderr and it continues: the parent process ends it.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import traceback
import warnings
from collections import Counter
from pathlib import Path

from attack.families import generator, load
from attack.findings import Finding, NotPossibleError

__all__ = ["main"]


def main() -> None:
    seed, name, number, folder, seconds = sys.argv[1:]
    faulthandler.enable()
    faulthandler.dump_traceback_later(float(seconds))
    warnings.simplefilter("ignore")
    work = Path(folder) / "work"
    work.mkdir()
    counts: Counter[str] = Counter()
    result: dict[str, object] = {}
    try:
        counts = load(name)(generator(int(seed), name, int(number)), work)
    except Finding as finding:
        result["finding"] = str(finding)
    except NotPossibleError as reason:
        result["not_possible"] = str(reason)
    # A panic in Rust is a BaseException in Python.
    except BaseException:
        result["finding"] = f"the round raised\n{traceback.format_exc()}"
    result["counts"] = counts
    # Written last and renamed: a process that dies before leaves no result.
    draft = Path(folder) / "result.draft"
    draft.write_text(json.dumps(result))
    draft.rename(Path(folder) / "result.json")


if __name__ == "__main__":
    main()
