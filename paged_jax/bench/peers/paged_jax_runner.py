"""paged_jax through the same pipe as its peers. Options are fields of EngineArgs."""

import wire

from paged_jax import __version__
from paged_jax.bench.datasets import BenchRequest
from paged_jax.bench.engine_run import OwnEngine
from paged_jax.engine_args import EngineArgs


class Engine:
    """An engine in memory."""

    def __init__(self, options):
        fields = {
            name: wire.value_of(value) for name, value in options.items() if name != "threads"
        }
        self.own = OwnEngine(EngineArgs.of(**fields))
        self.facts = {"name": "paged_jax", "version": __version__}

    def run(self, requests):
        """Generate; a request that is refused ends the program."""
        listed = [BenchRequest(tuple(each["prompt"]), each["max_tokens"]) for each in requests]
        outcomes = self.own.run(listed)
        for outcome in outcomes:
            if outcome.error is not None:
                raise SystemExit(outcome.error)
        return [each.times_s for each in outcomes], [each.token_ids for each in outcomes]

    def figures(self):
        """Return memory, KV use, prefix hits and compilations of the last run."""
        return self.own.figures()

    def reset(self):
        """Forget cached prefixes."""
        self.own.reset()


if __name__ == "__main__":
    wire.serve(Engine)
