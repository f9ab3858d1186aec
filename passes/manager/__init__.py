"""What a pass is, the names of all of them, and what runs them. Imports no other room of `passes`."""
