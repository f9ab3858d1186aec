"""Arrays of clients: types and placements, values on devices, and accounts of their memory."""
