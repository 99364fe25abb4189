"""DRY against its author's loop, written out."""

from hypothesis import given
from hypothesis import strategies as st

from paged_jax.host.dry import MAX_DRY_IDS, MAX_PENALTY, dry_penalties


def reference(ids, multiplier, base, allowed_len, breakers):
    """Look back from each place where the last id occurs, one id after the other."""
    if not ids or ids[-1] in breakers:
        return {}
    longest = {}
    for at in range(len(ids) - 1):
        following = ids[at + 1]
        if ids[at] != ids[-1] or following in breakers:
            continue
        length = 1
        while length <= at and ids[at - length] == ids[-1 - length]:
            if ids[-1 - length] in breakers:
                break
            length += 1
        longest[following] = max(longest.get(following, 0), length)
    return {
        token: multiplier * base ** (length - allowed_len)
        for token, length in longest.items()
        if length >= allowed_len
    }


@given(
    st.lists(st.integers(0, 3), max_size=40), st.sampled_from([0.8, 2.0]), st.integers(1, 4),
    st.frozensets(st.integers(0, 3), max_size=2),
)  # fmt: skip
def test_penalties_are_the_references(ids, multiplier, allowed_len, breakers):
    found = dry_penalties(
        ids, multiplier=multiplier, base=1.75, allowed_len=allowed_len, breakers=breakers
    )
    assert found == reference(ids, multiplier, 1.75, allowed_len, breakers)


def test_long_repetitions_do_not_overflow_and_only_the_strongest_are_kept():
    ids = [7] * 3000 + [part for token in range(10, 400) for part in (5, token)] + [5]
    found = dry_penalties(ids, multiplier=1.0, base=99.0, allowed_len=1)
    assert len(found) == MAX_DRY_IDS
    (token, penalty), *_ = dry_penalties(
        [7] * 3000, multiplier=1.0, base=99.0, allowed_len=1
    ).items()
    assert (token, penalty) == (7, MAX_PENALTY)
