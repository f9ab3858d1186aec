"""Messages between the processes of a cluster, their encoding, connections, and the handshake.

Imports what is left of `runtime.hosts`.
"""
