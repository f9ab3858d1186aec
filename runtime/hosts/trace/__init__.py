"""Traces of all hosts: recorded on each, translated to one clock, merged by the plan of the whole program.

Imports `protocol`.
"""
