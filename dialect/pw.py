"""The operations of the dialect, under the name by which MLIR's bindings look for a dialect `pw`.

Without a module of this name they search for one again at every operation they hand out, which costs more
than all else together.
"""

from pathways.dialect.operations.ops import (
    AllGatherOp,
    AllReduceOp,
    CarryOp,
    ChannelOp,
    ConstantOp,
    IndexOp,
    LaunchOp,
    LoopOp,
    MirrorOp,
    NextOp,
    RecvOp,
    ReduceOp,
    ReduceScatterOp,
    ReleaseOp,
    ReplicaOp,
    SendOp,
    SliceOp,
    SplitOp,
    TransferOp,
)

__all__ = [
    "AllGatherOp",
    "AllReduceOp",
    "CarryOp",
    "ChannelOp",
    "ConstantOp",
    "IndexOp",
    "LaunchOp",
    "LoopOp",
    "MirrorOp",
    "NextOp",
    "RecvOp",
    "ReduceOp",
    "ReduceScatterOp",
    "ReleaseOp",
    "ReplicaOp",
    "SendOp",
    "SliceOp",
    "SplitOp",
    "TransferOp",
]
