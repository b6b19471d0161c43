"""Lifetimes of memory, threads, descriptors, epochs and the process itself."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
import torch
from faults.remains import eventually
from feedline.errors import ClosedError
from numpy.typing import NDArray
from pictures import encoded, noise, photo, write
from programs import answer, descriptors, endings, run, threads

IMAGES = noise(1, 400, 16, 16, 3)


def arrays(**budget: Any) -> fl.Loader:
    """200 batches of two images."""
    return fl.arrays({"image": IMAGES}).batch(2, index=True).loader(**budget)


def files(photos: list[Path], **settings: Any) -> fl.Loader:
    """24 batches of one image."""
    return fl.files(photos).shuffle(1).decode().resize((16, 16)).batch(1, index=True).loader(**settings)


def address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def indices(batches: Iterator[dict[str, Any]] | fl.Loader) -> list[int]:
    return [int(index) for batch in batches for index in batch["index"]]


def all_gone_but(before: set[int]) -> bool:
    """Waits until only these threads are left; a thread that has ended is still listed for a moment."""
    return eventually(lambda: not threads() - before)


# ---- memory ----


def test_arrays_are_writable_and_aligned(photos: list[Path]) -> None:
    for batch in files(photos):
        assert batch["image"].flags.writeable
        assert batch["image"].flags.c_contiguous
        assert not batch["image"].flags.owndata, "a copy was made"
        assert address(batch["image"]) % 64 == 0
        batch["image"] += 1


def test_memory_of_dropped_batches_is_reused() -> None:
    # Room for 16 batches of 2 x 16 x 16 x 3 bytes and their indices.
    loader = arrays(prefetch=16 * 1552, threads=1)

    addresses = [address(batch["image"]) for batch in loader]

    assert len(addresses) == 200
    assert len(set(addresses)) <= 32


def test_memory_of_an_epoch_is_reused_in_the_next() -> None:
    loader = arrays(prefetch=16 * 1552, threads=1)

    first = {address(batch["image"]) for batch in loader}
    second = {address(batch["image"]) for batch in loader}

    assert len(first | second) <= 32


def test_memory_of_a_batch_is_reused_only_when_its_last_view_is_gone() -> None:
    loader = arrays(prefetch=4 * 1552)
    running = iter(loader)
    image = next(running)["image"]
    place, view = address(image), image[1:, ::2, ::-1, 1]
    del image

    while_it_lives = {address(batch["image"]) for epoch in (running, loader) for batch in epoch}
    np.testing.assert_array_equal(view, IMAGES[1:2, ::2, ::-1, 1])
    del view
    after = {address(batch["image"]) for batch in loader}

    assert place not in while_it_lives
    assert place in after


def test_batches_that_are_kept_keep_their_content_beyond_any_budget() -> None:
    loader = arrays(prefetch=2 * 1552, memory="1MiB")

    batches = list(loader)
    list(loader)

    assert len({address(batch["image"]) for batch in batches}) == 200
    np.testing.assert_array_equal(np.concatenate([batch["image"] for batch in batches]), IMAGES)


def test_writes_to_a_batch_are_not_visible_in_later_ones(photos: list[Path]) -> None:
    loader = files(photos, prefetch=1)
    clean = [batch["image"].copy() for batch in files(photos)]

    for batch, expected in zip(loader, clean, strict=True):
        np.testing.assert_array_equal(batch["image"], expected)
        batch["image"][:] = 77


def test_an_array_outlives_loader_epoch_and_batch() -> None:
    loader = arrays()
    running = iter(loader)
    batch = next(running)
    view = batch["image"][0, 3:5]

    loader.close()
    del loader, running, batch
    gc.collect()
    list(arrays())

    np.testing.assert_array_equal(view, IMAGES[0, 3:5])
    view[:] = 9
    assert int(view.sum()) == 9 * view.size


def test_a_batch_can_be_dropped_in_another_thread() -> None:
    loader = arrays(prefetch=4 * 1552)
    for batch in loader:
        held = [batch]
        del batch
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()

    assert loader.report().completed == 1


# ---- torch ----


def test_tensors_share_the_memory_of_the_batch_and_it_is_reused() -> None:
    loader = arrays(prefetch=16 * 1552, threads=1)

    addresses = [batch["image"].data_ptr() for batch in loader.torch()]

    assert len(addresses) == len(loader.torch()) == 200
    assert len(set(addresses)) <= 32


def test_a_tensor_and_its_numpy_array_share_memory_that_outlives_the_loader() -> None:
    loader = arrays()
    tensor = next(iter(loader.torch()))["image"]
    array = tensor.numpy()
    loader.close()
    del loader
    gc.collect()

    np.testing.assert_array_equal(array, IMAGES[:2])
    tensor[0, 0, 0, 0] = 99
    assert array[0, 0, 0, 0] == 99
    assert address(array) == tensor.data_ptr()


def test_tensors_have_the_values_and_types_of_the_arrays(photos: list[Path]) -> None:
    pipeline = fl.files(photos, range(24)).decode().resize((8, 8)).to_float().batch(5)

    for tensors, batch in zip(pipeline.loader().torch(), pipeline.loader(), strict=True):
        assert tensors["image"].dtype == torch.float32
        assert tensors["label"].dtype == torch.int64
        for name in batch:
            np.testing.assert_array_equal(tensors[name].numpy(), batch[name])


def test_gradients_flow_through_a_batch(photos: list[Path]) -> None:
    loader = fl.files(photos).decode().resize((8, 8)).to_float().batch(4).loader()
    batch = next(iter(loader.torch()))["image"]
    weight = torch.ones(3, 8, 8, requires_grad=True)

    (batch * weight).sum().backward()

    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, batch.sum(0))
    batch.requires_grad_()
    (batch**2).sum().backward()
    torch.testing.assert_close(batch.grad, 2 * batch.detach())


def test_lists_of_bytes_stay_lists_beside_tensors(tree: Path) -> None:
    batch = next(iter(fl.images(tree).batch(3).loader().torch()))

    assert isinstance(batch["bytes"][0], bytes)
    assert isinstance(batch["label"], torch.Tensor)


# ---- threads and descriptors ----


def finish(loader: fl.Loader) -> None:
    assert len(list(loader)) == 24


def leave_with_break(loader: fl.Loader) -> None:
    for _ in loader:
        break


def leave_with_an_exception(loader: fl.Loader) -> None:
    def fail() -> None:
        for _ in loader:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def leave_a_generator_unfinished(loader: fl.Loader) -> None:
    generator = (batch["image"] for batch in loader)
    next(generator)
    del generator


def close_the_loader(loader: fl.Loader) -> None:
    next(iter(loader))
    loader.close()
    loader.close()


def close_the_epoch(loader: fl.Loader) -> None:
    running = iter(loader)
    next(running)
    running.close()


def end_the_with_block(loader: fl.Loader) -> None:
    with loader as same:
        assert same is loader
        next(iter(loader))


def start_without_taking(loader: fl.Loader) -> None:
    iter(loader)


def start_many(loader: fl.Loader) -> None:
    for _ in range(5):
        next(iter(loader))


ENDS = [
    finish,
    leave_with_break,
    leave_with_an_exception,
    leave_a_generator_unfinished,
    close_the_loader,
    close_the_epoch,
    end_the_with_block,
    start_without_taking,
    start_many,
]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("prefetch", [0, "64MiB"])
def test_no_thread_and_no_descriptor_is_left_however_an_epoch_ends(
    photos: list[Path], end: Callable[[fl.Loader], None], prefetch: int | str
) -> None:
    # Many rounds: each one catches the threads at another moment of their work.
    for _ in range(10):
        before = threads(), descriptors()
        loader = files(photos, prefetch=prefetch)

        end(loader)

        assert all_gone_but(before[0])
        assert descriptors() == before[1]


def test_an_error_of_a_sample_leaves_no_thread_and_no_descriptor(photos: list[Path], tmp_path: Path) -> None:
    before = threads(), descriptors()
    loader = files([*photos, *write(tmp_path, {"bad.jpg": b""})])

    with pytest.raises(fl.errors.CorruptImageError):
        list(loader)

    assert all_gone_but(before[0])
    assert descriptors() == before[1]


def test_a_loader_that_is_garbage_in_a_cycle_leaves_no_thread(photos: list[Path]) -> None:
    before = threads()
    cycle: list[Any] = [iter(files(photos, prefetch=0))]
    cycle.append(cycle)
    next(cycle[0])
    assert threads() - before

    del cycle
    gc.collect()

    assert all_gone_but(before)


def test_an_unused_loader_has_no_threads(photos: list[Path]) -> None:
    before = threads(), descriptors()

    loader = files(photos)

    assert (threads(), descriptors()) == before
    assert len(loader) == 24


# ---- epochs of one loader ----


def test_after_a_break_the_next_epoch_begins(photos: list[Path]) -> None:
    whole = files(photos)
    epochs = [indices(whole) for _ in range(3)]
    loader = files(photos)

    for taken in (3, 0):
        for number, _ in enumerate(loader):
            if number == taken:
                break

    assert indices(loader) == epochs[2]


# Many rounds: an epoch can be abandoned at any moment of its work.
ROUNDS = 40


def left_epochs(photos: list[Path], leave: Callable[[fl.Loader], object]) -> Iterator[Iterator[Any]]:
    """Epochs that were abandoned after one batch, in the middle or when all batches were ready."""
    for number in range(ROUNDS):
        before = threads()
        loader = files(photos, prefetch="64MiB" if number % 2 else 0)
        running = iter(loader)
        next(running)
        # If there is room for all batches, they are ready when the threads have ended.
        assert number % 2 == 0 or all_gone_but(before)
        kept_alive = leave(loader)
        yield running
        del kept_alive


def ending(running: Iterator[Any]) -> str:
    try:
        next(running)
    except (fl.FeedlineError, StopIteration) as error:
        return type(error).__name__
    return "a batch"


def test_a_second_epoch_ends_the_first_which_raises_closed_error(photos: list[Path]) -> None:
    assert Counter(map(ending, left_epochs(photos, iter))) == {"ClosedError": ROUNDS}


def test_an_epoch_of_a_closed_loader_raises_closed_error(photos: list[Path]) -> None:
    assert Counter(map(ending, left_epochs(photos, fl.Loader.close))) == {"ClosedError": ROUNDS}


def use(epoch: fl.Epoch[Any]) -> None:
    with contextlib.suppress(ClosedError):
        list(epoch)


@pytest.mark.timeout(300)
# The last of these only drops the epoch.
@pytest.mark.parametrize("end", [use, fl.Epoch.close, id])
def test_an_abandoned_epoch_does_not_disturb_the_next(
    photos: list[Path], end: Callable[[fl.Epoch[Any]], object]
) -> None:
    whole = files(photos)
    expected = [indices(whole) for _ in range(2)][1]
    for _ in range(20):
        loader = files(photos, prefetch=0)
        first = iter(loader)
        next(first)
        second = iter(loader)

        end(first)
        del first

        assert indices(second) == expected


def test_an_abandoned_epoch_does_not_move_the_state(photos: list[Path]) -> None:
    for _ in range(ROUNDS):
        loader = files(photos, prefetch=0)
        first = iter(loader)
        next(first)
        next(iter(loader))
        state = loader.state_dict()

        use(first)

        assert loader.state_dict() == state


@pytest.mark.timeout(300)
def test_a_variable_can_be_rebound_from_one_epoch_to_the_next(photos: list[Path]) -> None:
    loader = files(photos, prefetch=0)
    for _ in range(3):
        running = iter(loader)
        next(running)

    assert len(list(running)) == 23


def test_a_closed_loader_cannot_be_used_but_has_a_report(photos: list[Path]) -> None:
    loader = files(photos)
    next(iter(loader))
    loader.close()

    with pytest.raises(ClosedError):
        iter(loader)
    with pytest.raises(ClosedError):
        loader.load_state_dict(loader.state_dict())
    assert len(loader) == 24
    assert loader.report().delivered == 1


def test_an_epoch_that_has_ended_stays_ended(photos: list[Path]) -> None:
    running = iter(files(photos))
    list(running)

    assert list(running) == []


def test_many_threads_can_share_an_epoch_and_each_batch_comes_once() -> None:
    running = iter(arrays())
    taken: list[list[int]] = [[] for _ in range(4)]

    def take(mine: list[int]) -> None:
        mine.extend(indices(running))

    takers = [threading.Thread(target=take, args=(mine,)) for mine in taken]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()

    assert sorted(index for mine in taken for index in mine) == list(range(400))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photo of 4000 x 3000 pixels: a batch of many takes seconds."""
    pixels = np.tile(photo(1, 500, 375), (8, 8, 1))
    return write(tmp_path_factory.mktemp("slow"), {"large.jpg": encoded(pixels)})[0]


def test_closing_in_another_thread_ends_a_wait(slow: Path) -> None:
    loader = fl.files([slow] * 64).decode().resize((8, 8)).batch(64).loader(threads=1)
    outcome: list[object] = []

    def wait() -> None:
        try:
            outcome.append(next(running))
        except ClosedError as error:
            outcome.append(type(error))

    running = iter(loader)
    waiter = threading.Thread(target=wait)
    waiter.start()
    loader.close()
    waiter.join(timeout=10)

    assert outcome == [ClosedError]


# ---- the process ----


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)"])
def test_using_a_loader_in_a_forked_child_is_an_error(photos: list[Path], leave: str) -> None:
    program = f"""
    loader = fl.files(arguments).decode().resize((8, 8)).batch(1, index=True).loader(prefetch=4000, threads=2)
    running = iter(loader)
    batch = next(running)
    content, state = batch["image"].tobytes(), loader.state_dict()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        uses = [lambda: next(running), lambda: iter(loader), loader.report, loader.state_dict]
        uses.append(lambda: loader.load_state_dict(state))
        for use in uses:
            try:
                use()
                said.append("nothing")
            except fl.FeedlineError as error:
                said.append(type(error).__name__)
        said.append(batch["image"].tobytes() == content)
        running.close()
        loader.close()
        del running, loader, batch
        own = fl.files(arguments).decode().resize((8, 8)).batch(1).loader()
        said.append(len(list(own)))
        os.write(write, json.dumps(said).encode())
        {leave}
    _, status = os.waitpid(child, 0)
    said = json.loads(os.read(read, 10000))
    say([status, said, 1 + len(list(running))])
    """

    status, said, taken = answer(program, *photos, seconds=200)

    assert status == 0
    assert said == ["UsedAfterForkError"] * 5 + [True, 24]
    assert taken == 24


def test_a_forked_child_that_never_uses_the_loader_ends(photos: list[Path]) -> None:
    program = """
    loader = fl.files(arguments).decode().resize((8, 8)).batch(1).loader(prefetch=4000)
    running = iter(loader)
    batch = next(running)
    child = os.fork()
    if child == 0:
        sys.exit(7)
    say([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(list(running))])
    """

    assert answer(program, *photos, seconds=200) == [7, 23]


def test_ctrl_c_ends_a_wait_for_a_batch_at_once(
    slow: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    # One thread needs seconds for the only batch; the signal arrives while the consumer waits for it.
    program = """
    loader = fl.files(arguments * 64).decode().resize((8, 8)).batch(64).loader(threads=1)
    running = iter(loader)
    pressed = []
    def press():
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    # Halfway between two checks for signals, which are 50 ms apart.
    threading.Timer(0.225, press).start()
    try:
        next(running)
        say("the batch came first")
    except KeyboardInterrupt:
        raised = time.monotonic()
        loader.close()
        say([raised - pressed[0], time.monotonic() - raised])
    """

    raised, closed = answer(program, slow, seconds=200)

    record_testsuite_property("seconds_until_keyboard_interrupt", raised)
    record_testsuite_property("seconds_until_closed", closed)


def test_a_loader_can_still_be_used_after_ctrl_c(photos: list[Path], slow: Path) -> None:
    program = """
    pipeline = fl.files(arguments[:1] * 16 + arguments[1:]).decode().resize((8, 8))
    loader = pipeline.batch(16, index=True).loader(threads=1)
    running = iter(loader)
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        next(running)
    except KeyboardInterrupt:
        say([batch["index"].tolist() for batch in running])
    """

    assert answer(program, slow, *photos, seconds=200) == [
        list(range(16)),
        list(range(16, 32)),
        list(range(32, 40)),
    ]


def test_the_interpreter_ends_while_an_epoch_runs(photos: list[Path]) -> None:
    sources = ["fl.files(arguments).decode()", "fl.arrays({'image': numpy.ones((400, 80, 80, 3), 'u1')})"]
    ends = {
        "pass": 0,
        "sys.exit(3)": 3,
        "del loader": 0,
        "kept = list(running)": 0,
        "threading.Thread(target=lambda: list(running), daemon=True).start()": 0,
        "running.other = [running, loader, batch, fl]": 0,
        "import atexit; atexit.register(lambda: list(running))": 0,
    }
    programs = [
        f"""
        loader = {source}.resize((64, 64)).batch(1).loader(prefetch=20000)
        running = iter(loader)
        batch = next(running)
        view = batch["image"][0]
        {end}
        """
        for source, end in itertools.product(sources, ends)
    ]

    ended = endings("import numpy", programs, *photos)

    for program, outcome, code in zip(programs, ended, [*ends.values()] * 2, strict=True):
        assert outcome == (code, ""), program


def test_an_exception_in_the_users_loop_ends_the_program(photos: list[Path]) -> None:
    program = """
    for batch in fl.files(arguments).decode().resize((8, 8)).batch(1).loader():
        1 / 0
    """

    code, _, errors = run(program, *photos, seconds=200)

    assert code == 1
    assert errors.splitlines()[-1] == "ZeroDivisionError: division by zero"
