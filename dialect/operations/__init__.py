"""The operations of the dialect, typed views of them, and what is read from and written to them."""
