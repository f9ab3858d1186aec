"""Accumulates, fuses and shares launches whose order is known. Imports `passes.analysis`."""
