"""A snapshot of an engine on one device, continued on two with blocks twice as large, and back."""

import random

from resumed import add_all, run, run_on_two, told

COUNT = 20


def test_a_snapshot_goes_on_on_another_mesh_and_block_size(engine_on, tmp_path) -> None:
    one, two = engine_on("llama").engine, engine_on("llama", 2, block_size=32).engine
    assert (one.config.cache.block_size, two.config.cache.block_size) == (16, 32)
    add_all(one, COUNT)
    expected = told(run(one))
    num_steps = random.Random(0).randrange(40, 90)

    for first, second in ((one, two), (two, one)):
        assert first.scheduler.pool.reset_prefix_cache()
        path = tmp_path / str(id(first))
        seen = run_on_two(first, second, path, count=COUNT, num_steps=num_steps)
        assert told(seen) == expected


def test_repeated_heads_are_kept_once(engine_on, tmp_path) -> None:
    one, four = engine_on("qwen2").engine, engine_on("qwen2", 4).engine
    assert (one.config.model.num_kv_heads, four.config.model.num_kv_heads) == (2, 4)
    add_all(one, 6)
    expected = told(run(one))
    for first, second in ((one, four), (four, one)):
        path = tmp_path / str(id(first))
        seen = run_on_two(first, second, path, count=6, num_steps=12)
        assert told(seen) == expected
