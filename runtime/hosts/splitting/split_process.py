"""Process that proves and splits the programs of clients for a service, which parses none of them.

A program that crashes this process, or takes too long, is an error for its client only: the service starts
another process.
"""

from __future__ import annotations

import msgspec
from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.dialect.errors import PathwaysError
from pathways.passes.manager.base import PassFailure
from pathways.passes.manager.driver import Diagnostics, run_passes
from pathways.passes.schedule.verify_schedule import VerifySchedule
from pathways.runtime.hosts.splitting.split_pipe import SplitReply, SplitRequest
from pathways.runtime.hosts.splitting.splitting import split
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.plan.stored import Stored
from pathways.runtime.resources.child_process import serve_requests

MAX_MEMORY_BYTES = 8 << 30
"""Limit on the address space of the process, in bytes."""


def reply_to(request: SplitRequest) -> SplitReply:
    """Proves and splits a program; returns it or an error."""
    program = request.program
    context = make_context()
    with Diagnostics(context) as seen:
        try:
            module = ir.Module.parse(program.module, context)
            run_passes(module, [VerifySchedule()])
            plan = plan_of(
                module, program.name, Stored.of(program.computations, program.constants), proved=True
            )
            result = split(program, plan, context, request.ahead, multi_host=request.multi_host)
        except (ir.MLIRError, PassFailure):
            text = " ".join(seen.errors[0].message.split()) if seen.errors else "it cannot be parsed"
            return SplitReply(None, f"program '{program.name}': {text[:500]}")
        except (PathwaysError, ValueError, KeyError, IndexError, TypeError, RuntimeError) as error:
            return SplitReply(None, f"program '{program.name}': {error}"[:500])
    return SplitReply(result)


def _reply(request: bytes) -> bytes:
    return msgspec.msgpack.encode(reply_to(msgspec.msgpack.decode(request, type=SplitRequest)))


if __name__ == "__main__":
    serve_requests(_reply, MAX_MEMORY_BYTES)
