"""Requests to measure with are reproducible and of exact lengths."""

import argparse
import json

import pytest

from paged_jax.bench.datasets import (
    FIRST_ID,
    Draw,
    add_dataset_flags,
    file_requests,
    prefix_requests,
    random_requests,
    read_dataset,
)
from paged_jax.config import OptionError


class Words:
    """One token a word; BOS in front where special tokens are wanted."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [len(word) for word in text.split()]


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_dataset_flags(parser)
    return argparse.Namespace(**vars(parser.parse_args(words)), seed=0)


def test_equal_arguments_give_equal_requests_and_another_seed_gives_others() -> None:
    first = random_requests(Draw(3, seed=7), input_len=5, output_len=2)

    assert first == random_requests(Draw(3, seed=7), input_len=5, output_len=2)
    assert first != random_requests(Draw(3, seed=8), input_len=5, output_len=2)


def test_random_prompts_have_exact_lengths_and_ordinary_ids() -> None:
    requests = random_requests(Draw(20, vocab_size=120), input_len=50, output_len=9)
    ids = {token for request in requests for token in request.prompt}

    assert {(len(r.prompt), r.max_tokens) for r in requests} == {(50, 9)}
    assert min(ids) == FIRST_ID and max(ids) == 119


def test_a_range_ratio_spreads_lengths_to_both_ends() -> None:
    requests = random_requests(Draw(400), input_len=10, output_len=20, range_ratio=0.5)

    assert {len(request.prompt) for request in requests} == set(range(5, 16))
    assert {request.max_tokens for request in requests} == set(range(10, 31))


def test_a_random_prefix_is_common_to_all_and_adds_to_the_length() -> None:
    requests = random_requests(Draw(4), input_len=3, output_len=1, prefix_len=6)

    assert {len(request.prompt) for request in requests} == {9}
    assert len({request.prompt[:6] for request in requests}) == 1
    assert len({request.prompt for request in requests}) == 4


def test_prefixes_are_repeated_equally_often() -> None:
    requests = prefix_requests(Draw(12), prefix_len=8, suffix_len=4, num_prefixes=3, output_len=5)
    groups = [request.prompt[:8] for request in requests]

    assert sorted(groups.count(prefix) for prefix in set(groups)) == [4, 4, 4]
    assert {(len(r.prompt), r.max_tokens) for r in requests} == {(12, 5)}
    assert len({request.prompt for request in requests}) == 12


def conversation(*turns: str) -> dict:
    return {"conversations": [{"from": "human", "value": turn} for turn in turns]}


def test_a_file_gives_the_first_turn_and_the_length_of_the_second(tmp_path) -> None:
    path = tmp_path / "chats.json"
    usable = conversation("a bb ccc dddd", "one two three four five", "more")
    path.write_text(json.dumps([conversation("alone"), conversation("a b c", "x"), usable]))

    (request,) = file_requests(path, Words(), num_prompts=1)

    assert (request.prompt, request.max_tokens) == ((1, 1, 2, 3, 4), 5)


def test_a_file_with_too_little_says_how_much_there_is(tmp_path) -> None:
    path = tmp_path / "chats.json"
    path.write_text(json.dumps([conversation("a b c d", "x y z w")] * 2))

    with pytest.raises(OptionError, match="2 usable conversations"):
        file_requests(path, Words(), num_prompts=3)


def test_a_file_that_is_something_else_is_named(tmp_path) -> None:
    path = tmp_path / "chats.json"
    path.write_text("{}x")

    with pytest.raises(OptionError, match=r"--dataset-path .*chats.json must be a JSON list"):
        file_requests(path, Words(), num_prompts=1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--num-prompts", "0"), "--num-prompts must be at least 1"),
        (("--vocab-size", "100"), "--vocab-size must exceed 100"),
        (("--input-len", "0"), "at least 1 token"),
        (("--random-range-ratio", "1"), "--random-range-ratio must be in"),
        (("--dataset-name", "sharegpt"), "needs --dataset-path"),
        (("--dataset-name", "prefix_repetition", "--num-prompts", "3"), "num-prefixes must be"),
    ],
)
def test_wrong_flags_are_named(words, message) -> None:
    with pytest.raises(OptionError, match=message):
        read_dataset(options(*words))


def test_flags_choose_the_data_set_and_its_lengths() -> None:
    few = ("--num-prompts", "10")
    plain = read_dataset(options("--input-len", "7", "--output-len", "3", *few))
    shared = read_dataset(options("--dataset-name", "prefix_repetition", *few))

    assert {(len(r.prompt), r.max_tokens) for r in plain} == {(7, 3)}
    assert {(len(r.prompt), r.max_tokens) for r in shared} == {(512, 128)}
