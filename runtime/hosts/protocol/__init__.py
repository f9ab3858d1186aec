"""Messages between the processes of a cluster, their encoding, connections, and the handshake.

Imports the rooms to the left of `runtime.hosts`. `messages` has the messages of workers, and `handshake`
authenticates both sides of a connection.
"""
