"""Protocol of the proxy server: classes of messages, versions, statuses, gRPC over HTTP/2, writes to sockets.

`grpc_connection` is a state machine. Imports h2, protobuf, jax and the rooms of the runtime to its left.
"""
