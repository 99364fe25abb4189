"""Prompt log-probabilities, scored from the hidden states of the step that computes the prompt."""

from collections.abc import Mapping

from paged_jax.answers import Answer
from paged_jax.host.request import Chunk
from paged_jax.models.params import ModelParams
from paged_jax.programs import Programs
from paged_jax.step import BackboneOutput


def score_prompts(
    programs: Programs,
    params: ModelParams,
    chunks: tuple[Chunk, ...],
    hidden: BackboneOutput,
    answers: Mapping[str, Answer],
) -> None:
    """Fill in prompt log-probabilities for the chunks whose requests ask for them."""
    at = 0
    for chunk in chunks:
        answer = answers.get(chunk.sequence.request.id)
        if answer is not None and answer.prompt_logprobs is not None:
            first = chunk.start + 1  # a token's hidden state tells of the next one
            targets = answer.request.prompt[first : first + chunk.length]
            outs = programs.run_score(params, hidden, at, targets)
            answer.fill_scores(first, len(targets), outs)
        at += chunk.length
