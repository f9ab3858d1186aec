"""Resources of a process: virtual slices, clusters of devices, the devices of each slice, threads and ports.

All of it is plain data but `ports.py`, `listening_socket.py`, and `threads.py`, by which all rooms to the
right start threads. How devices are discovered is passed in from the right. Imports plans; never jax.
"""
