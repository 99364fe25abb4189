"""What a prompt's own hidden states are asked for: its log-probabilities and its embedding."""

from collections.abc import Mapping

import numpy as np

from paged_jax.compiled.programs import Programs
from paged_jax.compiled.step import BackboneOutput
from paged_jax.engine.answers import Answer
from paged_jax.host.request import Chunk
from paged_jax.models.params import ModelParams


def read_prompts(
    programs: Programs,
    params: ModelParams,
    chunks: tuple[Chunk, ...],
    hidden: BackboneOutput,
    answers: Mapping[str, Answer],
) -> None:
    """Take what requests ask of their prompts from a step's hidden states, and wait for them."""
    at = 0
    for chunk in chunks:
        answer = answers.get(chunk.sequence.request.id)
        if answer is not None and chunk.start < len(answer.request.prompt):
            if answer.prompt_logprobs is not None:
                first = chunk.start + 1  # a token's hidden state tells of the next one
                targets = answer.request.prompt[first : first + chunk.length]
                outs = programs.run_score(params, hidden, at, targets)
                answer.fill_scores(first, len(targets), outs)
            if answer.pooling is not None:
                rows = np.asarray(hidden.hidden)[at : at + chunk.length]
                answer.pooling.add(chunk.start, rows)
        at += chunk.length
