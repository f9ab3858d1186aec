"""Relays of a service: arrays from and to clients, and the times of their steps."""
