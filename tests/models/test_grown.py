"""Growing a part equals taking the part of what was grown as a whole."""

import numpy as np
import pytest

from paged_jax.models.grown import Padded, RepeatedHeads

ARRAY = np.arange(5 * 6).reshape(5, 6)


@pytest.mark.parametrize(("start", "stop"), [(0, 12), (0, 2), (2, 6), (6, 12), (10, 12)])
def test_a_part_of_repeated_heads(start, stop) -> None:
    heads = ARRAY.reshape(5, 3, 2).repeat(2, axis=1).reshape(5, 12)
    repeated = RepeatedHeads(ARRAY, num_heads=3, repeats=2)
    part = (slice(1, 4), slice(start, stop))
    assert repeated.shape == (5, 12)
    np.testing.assert_array_equal(repeated[part], heads[part])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("start", "stop"), [(0, 8), (0, 4), (4, 8), (6, 8)])
def test_a_part_of_what_is_padded(axis, start, stop) -> None:
    padded = Padded(ARRAY, axis, 8)
    expected = np.pad(ARRAY, [(0, 8 - size if at == axis else 0) for at, size in enumerate((5, 6))])
    part = tuple(slice(start, stop) if at == axis else slice(1, 4) for at in (0, 1))
    assert padded.shape == expected.shape
    np.testing.assert_array_equal(padded[part], expected[part])
