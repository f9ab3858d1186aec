"""Traits of operations, for passes that treat all operations of a kind alike.

A pass checks `op_has(op, Trait.X)` instead of listing classes, so that a new operation is one class.
"""

from __future__ import annotations

import enum


class Trait(enum.Enum):
    """Trait of an operation; its value is the sentence for the dialect page."""

    # Members are singletons, and looked up in sets for every operation: Enum's own hash is Python code.
    __hash__ = object.__hash__

    SYMBOL = "Declares a symbol, directly in the module."
    EXECUTES = "Runs a computation on all devices of its `slice`."
    TRANSFERS = "Moves its operands to its `slice`; its sends are ordered on the source slice."
    LOCAL = "Its operands and results live on its `slice`."
    SENDS = "Sends its operands to another host."
    RECEIVES = "Its results live on its `slice`, and are sent by another host."
    ALIASES = "Creates no new value: its results alias its operands."
    SPREADS = "Without a `slice`, each result lives where the corresponding operand does."
    EXCHANGES = "Reads operand n on slice n of its `slices`, where result n lives."
    RELEASES = "Ends the life of its operands."
    PURE = "Is pure: it is erased when its results are unused, and equal ones are merged."
    ORDERED = "Has a position, its `order`, among the work of a slice, or of a host."
    OF_LOOP = "May belong to a loop: executed in each iteration, or in the one that it names."
    OPENS_LOOP = "Leads into its `loop`: its result belongs to the loop, its operand does not."
    CLOSES_LOOP = "Leads out of its `loop`, into the loop around that."
