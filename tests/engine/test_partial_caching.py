"""Tokens taken from the middle of a block change no answer."""

from test_invariance import ids, make_params, make_prompts

NUM = 12


def make_family(seed: int) -> list[list[int]]:
    """Prompts that leave the first of them at any token."""
    parent, *others = make_prompts(NUM, seed=seed, lengths=(75,))
    return [parent] + [parent[: 6 * i] + other[6 * i :] for i, other in enumerate(others, start=1)]


def test_a_warm_answer_equals_a_cold_one(make_llm) -> None:
    llm = make_llm(enable_partial_prefix_caching=True)
    cold = []
    for prompt, params in zip(make_family(1), make_params(NUM), strict=True):
        assert llm.reset_prefix_cache()
        cold += ids(llm, [prompt], [params])
    before = llm.engine.stats()

    warm = [
        ids(llm, [prompt], [params])[0]
        for prompt, params in zip(make_family(1), make_params(NUM), strict=True)
    ]

    after = llm.engine.stats()
    assert warm == cold
    assert after.num_copies > before.num_copies, "trigger: no block was copied"
    assert (after.prefix_hits - before.prefix_hits) % 16, "trigger: only whole blocks were found"
    llm.engine.scheduler.check()
