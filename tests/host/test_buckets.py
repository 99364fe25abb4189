import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_jax.host.buckets import pick, row_buckets, token_buckets


def test_token_buckets_are_two_then_powers_of_two_from_eight_and_halves_from_32_to_512():
    assert token_buckets(2048) == (
        *(2, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512),
        *(1024, 2048),
    )


def test_a_single_token_has_a_bucket_of_its_own_where_rows_need_no_padding():
    assert token_buckets(64, smallest=1) == (1, 8, 16, 32, 48, 64)


def test_row_buckets_are_powers_of_four():
    assert row_buckets(64) == (4, 16, 64)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(1, (1,)), (2, (2,)), (8, (2, 8)), (9, (2, 8, 9)), (100, (2, 8, 16, 32, 48, 64, 96, 100))],
)
def test_token_buckets_end_exactly_in_their_limit(limit, expected):
    assert token_buckets(limit) == expected


@pytest.mark.parametrize(
    ("limit", "expected"), [(1, (1,)), (3, (3,)), (4, (4,)), (100, (4, 16, 64, 100))]
)
def test_row_buckets_end_exactly_in_their_limit(limit, expected):
    assert row_buckets(limit) == expected


@pytest.mark.parametrize("make_buckets", [token_buckets, row_buckets])
def test_buckets_of_nothing_are_refused(make_buckets):
    with pytest.raises(ValueError, match="at least 1, not 0"):
        make_buckets(0)


@given(limit=st.integers(1, 5000), data=st.data())
def test_the_smallest_bucket_that_holds_n_is_picked(limit, data):
    n = data.draw(st.integers(0, limit))
    for buckets in (token_buckets(limit), row_buckets(limit)):
        assert list(buckets) == sorted(set(buckets))
        size = pick(buckets, n)
        assert size >= n
        assert not any(n <= other < size for other in buckets)


def test_a_number_beyond_the_largest_bucket_is_refused():
    with pytest.raises(ValueError, match="9 is beyond the largest bucket, 8"):
        pick((1, 8), 9)
