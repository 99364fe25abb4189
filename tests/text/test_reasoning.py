"""Reasoning and answer told apart, wherever the text is cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_jax.text.reasoning import ReasoningSplitter, opens_reasoning


def split(pieces, *, is_inside):
    splitter = ReasoningSplitter(is_inside=is_inside)
    parts = [part for piece in pieces for part in splitter.feed(piece)] + splitter.finish()
    return tuple(
        "".join(part.text for part in parts if part.kind == kind)
        for kind in ("reasoning", "content")
    )


def everywhere(text, *, is_inside):
    whole = split([text], is_inside=is_inside)
    assert split(text, is_inside=is_inside) == whole
    for cut in range(len(text)):
        assert split([text[:cut], text[cut:]], is_inside=is_inside) == whole, f"cut at {cut}"
    return whole


@pytest.mark.parametrize("is_inside", [True, False])
def test_marks_split_and_the_space_beside_them_is_dropped(is_inside):
    text = "<think>\nOne. <b>\n\n</think>\n\nTwo </think> <think>"
    assert everywhere(text, is_inside=is_inside) == ("One. <b>", "Two </think> <think>")


def test_answer_that_begins_inside_needs_no_opening_mark():
    assert everywhere("One\n</think>\nTwo", is_inside=True) == ("One", "Two")
    assert everywhere("One, never ended </thi", is_inside=True) == ("One, never ended </thi", "")
    assert everywhere("</think>Two", is_inside=True) == ("", "Two")


@pytest.mark.parametrize(
    "text", ["Two <think>", " \n Two\n", "<thin", "  ", "", "<", "Two</think>"]
)
def test_answer_without_reasoning_is_left_alone(text):
    assert everywhere(text, is_inside=False) == ("", text)


def test_space_held_back_is_bounded():
    reasoning, content = everywhere("a" + " " * 200 + "</think>b", is_inside=True)
    assert reasoning == "a" + " " * 136 and content == "b"


@pytest.mark.parametrize(
    "prompt, expected",
    [
        ("assistant\n<think>\n", True),
        ("assistant\n<think>\n\n</think>\n\n", False),
        ("user said <think> and\nassistant\n", None),
    ],
)
def test_end_of_the_prompt_tells_where_the_answer_begins(prompt, expected):
    assert opens_reasoning(prompt) is expected


@given(
    pieces=st.lists(st.sampled_from(["<think>", "</think>", "<", "th", "ink>", " ", "\n", "a"])),
    is_inside=st.booleans(),
)
@settings(max_examples=500, deadline=None)
def test_split_does_not_depend_on_the_cuts(pieces, is_inside):
    text = "".join(pieces)
    assert split(pieces, is_inside=is_inside) == split([text], is_inside=is_inside)
    assert split(text, is_inside=is_inside) == split([text], is_inside=is_inside)
