"""Trains a small model with JAX and a native loader, with checkpoints of Orbax. If it is stopped, run it
again with the same folder: it continues with the batch after the last checkpoint.

python examples/resume_jax.py FOLDER [--stop-after BATCHES]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import feedline as fl
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

SAMPLES = 40
BATCH = 4
EPOCHS = 3


def loss(parameters: Any, x: Any, y: Any) -> Any:
    return jnp.mean((parameters["w"] * x + parameters["b"] - y) ** 2)


@jax.jit
def step(parameters: Any, x: Any, y: Any) -> Any:
    gradients = jax.grad(loss)(parameters, x, y)
    return jax.tree.map(lambda value, gradient: value - 0.01 * gradient, parameters, gradients)


def train(folder: Path, stop_after: int | None = None) -> tuple[list[list[float]], dict[str, float]]:
    """Trains, and returns the batches of this run and the parameters."""
    x = np.linspace(0, 1, SAMPLES, dtype=np.float32)
    loader = fl.arrays({"x": x, "y": 2 * x}).shuffle(seed=7).shard("auto").batch(BATCH).loader()
    parameters: Any = {"w": jnp.zeros(()), "b": jnp.zeros(())}
    seen: list[list[float]] = []
    with ocp.CheckpointManager(folder.absolute()) as manager:
        last = manager.latest_step()
        if last is not None:
            restore = ocp.args.Composite(
                parameters=ocp.args.StandardRestore(parameters), loader=ocp.args.JsonRestore()
            )
            restored = manager.restore(last, args=restore)
            parameters = restored["parameters"]
            loader.load_state_dict(restored["loader"])
        done = last or 0
        while done < EPOCHS * len(loader):
            for batch in loader:
                parameters = step(parameters, batch["x"], batch["y"])
                seen.append(batch["x"].tolist())
                done += 1
                if done % 3 == 0:
                    save = ocp.args.Composite(
                        parameters=ocp.args.StandardSave(parameters),
                        loader=ocp.args.JsonSave(loader.state_dict()),
                    )
                    manager.save(done, args=save)
                if done == stop_after:
                    print(f"stopped after batch {done}")
                    return seen, {}
    print(f"trained on {len(seen)} batches, from {last or 0}")
    return seen, {name: float(value) for name, value in parameters.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for checkpoints")
    parser.add_argument("--stop-after", type=int, metavar="BATCHES", help="end there")
    arguments = parser.parse_args()
    train(arguments.folder, arguments.stop_after)


if __name__ == "__main__":
    main()
