"""Clients as a service sees them: their requests, programs and slices, and the islands that they move off."""
