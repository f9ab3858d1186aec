"""What operations of the dialect are, for passes that treat all of a kind alike.

A pass asks `op_has(op, Trait.X)` and not for a list of classes, so that a new operation is one class.
"""

from __future__ import annotations

import enum


class Trait(enum.Enum):
    """What an operation is; its value is the sentence for the dialect page."""

    # Members are singletons, and sets of them are asked for every operation: Enum's hash is Python code.
    __hash__ = object.__hash__

    SYMBOL = "Declares a symbol, directly in the module."
    EXECUTES = "Runs a computation on all devices of its `slice`."
    TRANSFERS = "Moves what it reads to its `slice`; its sends are ordered on the slice that they leave."
    LOCAL = "Reads what lives on its `slice`, and makes what lives there."
    SENDS = "Gives what it reads to another host."
    RECEIVES = "Makes on its `slice` what another host sends."
    ALIASES = "Makes no value: its results are its operands under other names."
    SPREADS = "Without a `slice`, each of its results lives where the operand of its number does."
    RELEASES = "Ends the life of what it reads."
    PURE = "Can go when nothing reads its results, and equal ones are one."
    ORDERED = "Has a position, its `order`, among the work of a slice, or of a host."
    OF_LOOP = "May be of a loop: done in each turn, or in the one that it names."
    OPENS_LOOP = "Begins a turn of its `loop`: its result is of the loop, its operand is not."
    CLOSES_LOOP = "Leads out of its `loop`, into the loop around that."
