"""Plans cross as exactly what they are; anything else is refused."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from tiny import tiny_model_config

from paged_jax.cluster.plans import END, HEADER, MAGIC, PULSE, BadMessage, Plans, read_header
from paged_jax.compiled.programs import Programs
from paged_jax.config import CacheConfig, EngineConfig, SchedulerConfig
from paged_jax.device.step_batch import empty_batch

CONFIG = EngineConfig(tiny_model_config(), CacheConfig(9), SchedulerConfig(4, 8, 64))
MESH = "what lies on the devices"


@pytest.fixture(scope="module")
def programs() -> Programs:
    made = Programs(CONFIG)
    made.compile_seconds = {("backbone", 8): 0.0, ("draw", 4): 0.0, ("score", 16): 0.0}
    return made


def calls(programs: Programs) -> dict:
    batch = empty_batch(programs.batch_shape(8))
    batch.tokens[:] = range(8)
    rows = replace(
        programs.neutral_rows(4, is_plain=False),
        temperature=np.arange(4, dtype=np.float32),
        is_masked=np.array([True, False, True, False]),
    )
    scored = (np.ones((16, CONFIG.model.embed_dim), np.float32), np.arange(16, dtype=np.int32))
    return {
        ("backbone", 8): (MESH, MESH, batch, MESH),
        ("draw", 4): (MESH, MESH, rows),
        ("score", 16): (MESH, *scored),
    }


@pytest.mark.parametrize("key", [("backbone", 8), ("draw", 4), ("score", 16)])
def test_arrays_come_out_as_they_went_in(programs, key) -> None:
    sender, receiver = Plans(programs), Plans(programs)
    arguments = calls(programs)[key]

    message = sender.pack(key, arguments, 9)

    kind, number, length = read_header(message[: HEADER.size])
    receiver.check_length(kind, length)
    found, arrays = receiver.unpack(kind, message[HEADER.size :])
    assert (found, number) == (key, 9)
    sent = [part for part in arguments if part is not MESH]
    assert jax.tree.structure(arrays) == jax.tree.structure(tuple(sent))
    for one, other in zip(jax.tree.leaves(arrays), jax.tree.leaves(sent), strict=True):
        assert one.dtype == other.dtype and np.array_equal(one, other) and one.flags.aligned


def test_what_no_row_asks_for_is_not_sent(programs) -> None:
    rows = calls(programs)["draw", 4][2]

    message = Plans(programs).pack(("draw", 4), (MESH, MESH, rows), 1)

    assert len(message) < rows.history.nbytes + rows.bias_ids.nbytes


def test_arguments_that_followers_do_not_know_are_never_sent(programs) -> None:
    _, _, rows = calls(programs)["draw", 4]
    for other in (replace(rows, is_plain=True), replace(rows, positions=np.zeros(5, np.int32))):
        with pytest.raises(AssertionError, match="draw"):
            Plans(programs).pack(("draw", 4), (MESH, MESH, other), 1)


def test_what_is_not_of_the_format_is_refused(programs) -> None:
    plans = Plans(programs)
    for kind, length in ((PULSE, 0), (END, 0), (0, 8)):
        plans.check_length(kind, length)
    for kind, length in ((3, 8), (PULSE, 1), (0, 7), (0, 1 << 40)):
        with pytest.raises(BadMessage):
            plans.check_length(kind, length)
    for payload in (b"\0" * 9, b"\0" * 7 + b"\1", b"\xff" * 8):
        with pytest.raises(BadMessage, match="another size"):
            plans.unpack(0, payload)
    with pytest.raises(BadMessage, match="magic"):
        read_header(HEADER.pack(b"PICK", 0, 0, 0))
    assert read_header(HEADER.pack(MAGIC, 1, 2, 3)) == (1, 2, 3)
