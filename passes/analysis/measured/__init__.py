"""Measured steps of programs: events, the files that hold them, and durations. Imports `passes.analysis`.

They are here and not in the runtime because schedules are made of measured times.
"""
