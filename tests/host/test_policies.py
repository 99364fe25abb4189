"""Orders of service: who is admitted first under each policy."""

import pytest
from stories import first_scheduled, fresh, make_request, make_scheduler, run_to_end

from paged_jax import engine_args
from paged_jax.config import OptionError
from paged_jax.host.policies import POLICIES, Policy, make_policy
from paged_jax.host.request import Sequence
from paged_jax.host.scheduler import Scheduler


class LastCome(Policy):
    """Another order, as a user would write it."""

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        return (-float(sequence.request.arrival_s),)


def served_order(scheduler: Scheduler, requests) -> list[str]:
    for request in requests:
        scheduler.add(request)
    return first_scheduled(run_to_end(scheduler))


def test_the_names_are_those_of_the_option() -> None:
    assert (*POLICIES, "MODULE:CLASS") == engine_args.POLICIES


def test_the_shortest_request_is_served_first() -> None:
    scheduler = make_scheduler(max_seqs=1, policy="shortest")
    sizes = {"long": (8, 8), "middle": (4, 8), "short": (6, 2)}
    requests = [
        make_request(name, fresh(i, a), b) for i, (name, (a, b)) in enumerate(sizes.items())
    ]

    assert served_order(scheduler, requests) == ["short", "middle", "long"]


def test_the_longest_cached_prefix_is_served_first() -> None:
    scheduler = make_scheduler(max_seqs=1, policy="prefix")
    served_order(scheduler, [make_request("first", fresh(1, 12), 1)])
    half = (*fresh(1, 4), *fresh(2, 8))
    prompts = {"none": fresh(3, 12), "half": half, "whole": fresh(1, 12)}
    requests = [make_request(name, prompt, 1) for name, prompt in prompts.items()]

    assert served_order(scheduler, requests) == ["whole", "half", "none"]


def test_fair_share_alternates_between_a_greedy_client_and_a_modest_one() -> None:
    scheduler = make_scheduler(max_seqs=1, policy="fair")
    for number in range(4):
        scheduler.add(make_request(f"greedy{number}", fresh(number, 8), 4, salt="greedy"))
    for number in range(2):
        scheduler.add(make_request(f"modest{number}", fresh(9 + number, 8), 4, salt="modest"))

    order = first_scheduled(run_to_end(scheduler))

    assert order[:4] == ["greedy0", "modest0", "greedy1", "modest1"]


def test_fair_share_saves_up_no_credit_for_a_client_who_was_away() -> None:
    scheduler = make_scheduler(max_seqs=1, policy="fair")
    served_order(scheduler, [make_request(f"a{i}", fresh(i, 8), 8, salt="a") for i in range(5)])
    names = ["a5", "b0", "a6", "b1", "b2"]
    requests = [make_request(n, fresh(20 + i, 8), 8, salt=n[0]) for i, n in enumerate(names)]

    order = served_order(scheduler, requests)

    assert order == ["a5", "b0", "a6", "b1", "b2"]


@pytest.mark.parametrize("name", POLICIES)
def test_all_are_served_under_every_policy_when_blocks_run_out(name: str) -> None:
    scheduler = make_scheduler(num_blocks=9, budget=8, policy=name)
    for number in range(6):
        salt, prompt = "ab"[number % 2], fresh(number % 3, 9)
        scheduler.add(make_request(str(number), prompt, 12, salt=salt, priority=-number))

    steps = run_to_end(scheduler)

    assert sorted(first_scheduled(steps)) == list("012345")
    assert scheduler.num_preemptions > 0


def test_a_policy_of_ones_own_is_passed_or_named_by_module_and_class() -> None:
    for policy in (LastCome(), make_policy(f"{__name__}:LastCome")):
        scheduler = make_scheduler(max_seqs=1)
        scheduler = Scheduler(scheduler.config, scheduler.cache, policy=policy)
        requests = [make_request(str(i), fresh(i, 4), 1, arrival_s=float(i)) for i in range(3)]
        assert served_order(scheduler, requests) == ["2", "1", "0"]


@pytest.mark.parametrize("name", ["other", "json:nothing", "no_such_module:X", ":", "json:"])
def test_a_policy_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"--scheduling-policy must be one of .*{name!r}"):
        make_policy(name)
