"""Splitting of programs with data-dependent loops into sub-programs. Imports `passes.analysis`."""
