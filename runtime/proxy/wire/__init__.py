"""Protocol of the proxy server: classes of messages, versions, statuses, gRPC over HTTP/2, writes to sockets.

`grpc_connection` is a state machine over the `frames` of HTTP/2. Imports h2, protobuf, jax and the rooms of
the runtime to its left.
"""
