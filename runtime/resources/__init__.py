"""Resources of a process: virtual slices, clusters of devices, the devices of each slice, threads and ports.

Mostly plain data, except `ports.py`, `folders.py`, `listening_socket.py`, and `threads.py`, which starts the
threads of all rooms to the right. Those also pass in how devices are discovered. Imports plans; never jax.
"""
