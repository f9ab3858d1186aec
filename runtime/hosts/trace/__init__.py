"""Traces of all hosts: what each records, on one clock, put together by the plan of the whole program.

Imports `protocol`.
"""
