"""Settings of workers, the launchers that start them, and the addresses where they listen.

Imports `protocol`.
"""
