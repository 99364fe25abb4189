"""Requests for a simulation: read from a trace file, or made of lengths and times."""

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

from paged_jax.config import OptionError
from paged_jax.host.request import Request
from paged_jax.host.sampling_params import SamplingParams

FIRST_ID, LAST_ID = 100, 48_999  # of prompts that are drawn


def make_request(
    name: str,
    prompt: tuple[int, ...],
    max_tokens: int,
    *,
    arrival_s: float = 0.0,
    client: str | None = None,
    priority: int = 0,
) -> Request:
    """Return a request for exactly `max_tokens` tokens; `client` becomes its `cache_salt`."""
    return Request(
        id=name,
        prompt=prompt,
        sampling=SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
        seed=0,
        max_tokens=max_tokens,
        priority=priority,
        cache_salt=client,
        arrival_s=arrival_s,
    )


def read_trace(path: Path, *, seed: int = 0) -> list[Request]:
    """Read JSON lines: {"at_s", "prompt_len" or "prompt", "max_tokens"}, and as one likes "client"
    and "priority".

    A prompt of which only the length is given is drawn, and shares nothing with the others.

    Raises:
        OptionError: names the line that cannot be read.
    """
    draw = random.Random(seed)
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise OptionError(f"--trace {path} cannot be read: {error}") from error
    return [_request(path, number, line, draw) for number, line in enumerate(lines, 1) if line]


def _request(path: Path, number: int, line: str, draw: random.Random) -> Request:
    try:
        fields = json.loads(line)
        prompt = fields.get("prompt") or drawn_prompt(draw, fields["prompt_len"])
        return make_request(
            str(number),
            tuple(map(int, prompt)),
            int(fields["max_tokens"]),
            arrival_s=float(fields["at_s"]),
            client=fields.get("client"),
            priority=int(fields.get("priority", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(
            f"line {number} of {path} must be a JSON object with at_s, prompt_len and max_tokens:"
            f" {error!r}"
        ) from error


def drawn_prompt(draw: random.Random, length: int) -> tuple[int, ...]:
    """Return `length` random token ids."""
    return tuple(draw.randint(FIRST_ID, LAST_ID) for _ in range(length))


@dataclass(frozen=True)
class Load:
    """Requests of random lengths at random times; the same fields give the same requests.

    Attributes:
        rate: requests a second; infinite is all at once.
        burstiness: shape of the gamma distribution of the gaps; 1 is a Poisson process, less is
            burstier.
        prompt_lens, output_lens: shortest and longest, in tokens; uniform.
        prefix_len: tokens that all prompts begin with, beside their own.
        clients: how the requests are shared out among clients, at random; (8, 1, 1) is one who
            sends eight times as many as each of two others.
    """

    num_requests: int = 64
    rate: float = math.inf
    burstiness: float = 1.0
    prompt_lens: tuple[int, int] = (16, 512)
    output_lens: tuple[int, int] = (16, 256)
    prefix_len: int = 0
    clients: tuple[int, ...] = (1,)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_requests", "rate", "burstiness"):
            if not getattr(self, name) > 0:
                flag = "--" + name.replace("_", "-")
                raise OptionError(f"{flag} must be above 0, not {getattr(self, name)}")
        if min(self.clients, default=0) < 1:
            raise OptionError(f"--clients must be whole numbers from 1, not {self.clients}")
        for name in ("prompt_lens", "output_lens"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                flag = "--" + name.replace("_", "-")
                raise OptionError(
                    f"{flag} must be LOW:HIGH with 1 <= LOW <= HIGH, not {low}:{high}"
                )

    def requests(self) -> list[Request]:
        """Return them in order of arrival."""
        draw = random.Random(self.seed)
        prefix, now_s, made = drawn_prompt(draw, self.prefix_len), 0.0, list[Request]()
        for number in range(self.num_requests):
            if math.isfinite(self.rate):
                now_s += draw.gammavariate(self.burstiness, 1 / (self.rate * self.burstiness))
            prompt = prefix + drawn_prompt(draw, draw.randint(*self.prompt_lens))
            output_len = draw.randint(*self.output_lens)
            client = f"client{draw.choices(range(len(self.clients)), self.clients)[0]}"
            made.append(
                make_request(str(number), prompt, output_len, arrival_s=now_s, client=client)
            )
        return made
