import random

import pytest

from paged_jax.text.stop_strings import StopMatcher


def feed_all(matcher: StopMatcher, pieces: list[str]) -> str:
    text = "".join(matcher.feed(piece) for piece in pieces)
    return text + matcher.flush()


def cut_randomly(rng: random.Random, text: str) -> list[str]:
    borders = sorted(rng.sample(range(1, len(text)), min(len(text) - 1, rng.randint(0, 6))))
    return [text[a:b] for a, b in zip([0, *borders], [*borders, len(text)], strict=True)]


def earliest_end(text: str, stops: list[str]) -> tuple[int, int] | None:
    """Start and end of the match that is completed first, ties by list order: the definition."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return end - len(stop), end
    return None


def test_nothing_of_a_stop_string_is_released_however_it_is_cut():
    matcher = StopMatcher(("STOP",))
    assert [matcher.feed(piece) for piece in ("a S", "T", "O", "P b")] == ["a ", "", "", ""]
    assert matcher.matched == "STOP"
    assert matcher.flush() == ""


def test_held_text_is_released_when_the_match_fails():
    matcher = StopMatcher(("STOP",))
    assert matcher.feed("a STO") == "a "
    assert matcher.feed("RE") == "STORE"
    assert matcher.matched is None


def test_held_text_is_released_by_flush():
    matcher = StopMatcher(("STOP",))
    assert matcher.feed("a STO") == "a "
    assert matcher.flush() == "STO"
    assert matcher.flush() == ""


def test_only_the_longest_possible_beginning_is_held():
    matcher = StopMatcher(("aab",))
    assert matcher.feed("aaa") == "a"
    assert matcher.feed("b") == ""
    assert matcher.matched == "aab"


def test_match_inside_one_piece_cuts_the_text_there():
    assert feed_all(StopMatcher(("ari",)), [" Paris", " is"]) == " P"


def test_include_keeps_the_stop_string_and_nothing_behind_it():
    assert feed_all(StopMatcher(("ari",), include=True), [" Paris", " is"]) == " Pari"


def test_match_that_ends_first_wins_over_one_that_starts_first():
    matcher = StopMatcher(("abcdef", "cd"))
    assert matcher.feed("abcdef") == "ab"
    assert matcher.matched == "cd"


def test_matches_that_end_together_are_decided_by_list_order():
    for stops in (("bc", "c"), ("c", "bc")):
        matcher = StopMatcher(stops)
        matcher.feed("abc")
        assert matcher.matched == stops[0]


def test_stop_string_completed_while_unarmed_is_let_pass():
    matcher = StopMatcher(("ab",))
    assert matcher.feed("xab", is_armed=False) == "xab"
    assert matcher.feed("yabz") == "y"
    assert matcher.matched == "ab"


def test_stop_string_begun_while_unarmed_and_completed_later_counts():
    matcher = StopMatcher(("ab",))
    assert matcher.feed("xa", is_armed=False) == "x"
    assert matcher.feed("b") == ""
    assert matcher.matched == "ab"


def test_nothing_is_held_without_stop_strings():
    assert StopMatcher(()).feed("text") == "text"


def test_text_after_a_match_is_dropped():
    matcher = StopMatcher(("b",))
    assert matcher.feed("ab") + matcher.feed("c") == "a"


@pytest.mark.parametrize("include", [False, True])
def test_random_texts_end_where_the_first_stop_string_is_completed(include):
    rng = random.Random(0)
    for _ in range(3000):
        text = "".join(rng.choices("abc", k=rng.randint(2, 16)))
        stops = list({"".join(rng.choices("abc", k=rng.randint(1, 5))) for _ in range(3)})
        found = earliest_end(text, stops)
        expected = text[: found[include]] if found else text
        assert (
            feed_all(StopMatcher(tuple(stops), include=include), cut_randomly(rng, text))
            == expected
        )
