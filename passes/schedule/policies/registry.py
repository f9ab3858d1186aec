"""Registry of policies by name."""

from __future__ import annotations

import functools

from pathways.dialect.spelling import did_you_mean
from pathways.passes.schedule.policies.custom import has_halves, order_by, registered
from pathways.passes.schedule.policies.gpipe import gpipe, looped_bfs
from pathways.passes.schedule.policies.greedy import eager, one_forward_one_backward
from pathways.passes.schedule.policies.interleaved import interleaved, interleaved_zb
from pathways.passes.schedule.policies.pipeline import Policy
from pathways.passes.schedule.policies.zb_v import zb_v
from pathways.passes.schedule.policies.zero_bubble import zb_h1, zb_h2

PROGRAM = "program"
"""Name of the order of the program, which no policy changes."""

SEARCH = "search"
"""Name of the search for an order better than that of every policy; see `passes.schedule.search`."""

CUSTOM = "custom"
"""Name that scheduled loops have for every custom policy."""

POLICIES: dict[str, Policy] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved-1f1b": interleaved,
    "eager": eager,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zb-v": zb_v,
    "interleaved-zb": interleaved_zb,
    "looped-bfs": looped_bfs,
}
"""Every policy by its name."""

NAMES = (PROGRAM, *POLICIES, SEARCH)
"""Names of schedules that a program may request."""

BOUNDED = ("1f1b", "eager", "zb-h1", "zb-h2")
"""The policies that keep `Pipeline.max_live`."""

HALVED = frozenset({"zb-h1", "zb-h2", "zb-v", "interleaved-zb", SEARCH})
"""The policies that have halves of backwards in their orders."""


def policy_named(name: str) -> Policy:
    """Returns the policy of that name, of ours or custom.

    Raises:
      KeyError: the name is not registered.
    """
    custom = registered(name)
    return POLICIES[name] if custom is None else functools.partial(order_by, custom)


def is_known(name: str) -> bool:
    """Returns whether a schedule has that name: the order of the program, a policy, or the search."""
    return name in NAMES or registered(name) is not None


def wants_halves(name: str) -> bool:
    """Returns whether a policy has backwards cut in halves."""
    custom = registered(name)
    return name in HALVED if custom is None else has_halves(custom)


def unknown_policy(name: str) -> str:
    """Returns the message for a policy that does not exist."""
    if name == CUSTOM:
        return f"policy '{name}', which is code of the program: name another policy, or a schedule file"
    hint = did_you_mean(name.lower(), NAMES) or f"; the policies are {', '.join(NAMES)}"
    return f"unknown policy '{name}'{hint}"
