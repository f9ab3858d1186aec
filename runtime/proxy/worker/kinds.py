"""Kinds of the proxy's `LoadForeign` requests."""

DEVICES = "proxy devices"
"""Request that loads nothing; the facts are the `DeviceFacts` of a host."""

VIEW = "proxy view"
"""Request with a `ViewProgram`."""

XLA = "proxy xla"
"""Request with an `XlaModule`; the facts are `XlaFacts`."""

DETAILS = "proxy details"
"""Request about a program that loads nothing; the facts are the `XlaDetails` of the program."""
