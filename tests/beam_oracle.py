"""Beam search as transformers has it (early_stopping=False), on whole sequences in float64."""

from collections.abc import Callable

import numpy as np

Hypothesis = tuple[float, tuple[int, ...]]  # its score, its answer


def search(
    logprobs_of: Callable[[tuple[int, ...]], np.ndarray],
    *,
    width: int,
    max_tokens: int,
    ends: tuple[int, ...] = (),
    penalty: float = 1.0,
) -> list[Hypothesis]:
    """Return the answers with their scores, best first.

    Args:
        logprobs_of: the log-probabilities of what follows an answer, [vocab].
    """
    running: list[Hypothesis] = [(0.0, ())]
    finished: list[Hypothesis] = []
    for length in range(1, max_tokens + 1):
        table = np.stack([total + logprobs_of(answer) for total, answer in running])
        order = np.argsort(-table, axis=None, kind="stable")[: max(2, 1 + len(ends)) * width]
        rows, tokens = np.unravel_index(order, table.shape)
        grown = [
            (float(table[row, token]), (*running[row][1], int(token)))
            for row, token in zip(rows, tokens, strict=True)
        ]
        is_done = [answer[-1] in ends or length == max_tokens for _, answer in grown]
        finished += [
            (total / length**penalty, answer)
            for (total, answer), done in list(zip(grown, is_done, strict=True))[:width]
            if done
        ]
        finished = sorted(finished, reverse=True)[:width]
        running = [beam for beam, done in zip(grown, is_done, strict=True) if not done][:width]
        if len(finished) == width and running:
            if running[0][0] / length**penalty <= finished[-1][0]:
                break
    return finished
