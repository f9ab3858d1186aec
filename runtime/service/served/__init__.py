"""Clients as a service sees them: their requests, programs and slices, and the islands that they move off.

`served_client.py` is a client, whose requests `request_parser.py` checks.
"""
