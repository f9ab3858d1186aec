"""Client of the child process of `pw-lsp` that parses: started when needed, and again after it has exited."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from pathways.runtime.resources.child_process import LimitedProcess, NoReplyError


class Analyst:
    """Client that requests analyses of texts from a child process, one at a time.

    Args:
      timeout: the time limit of one text, in seconds.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._process = LimitedProcess("pathways.tools.lsp.worker")
        self.lock = asyncio.Lock()
        """Held during the analysis of a text."""

    async def analyse(self, text: str) -> dict[str, Any]:
        """Returns the result of `worker.analyse` for a text; one diagnostic if the process exits."""
        try:
            request = text.encode(errors="replace")
            return json.loads(await asyncio.to_thread(self._process.call, request, self._timeout))
        except NoReplyError as error:
            return _failure(f"MLIR {error} while reading this")
        except asyncio.CancelledError:
            # The thread would wait for the reply, and the server for the thread.
            self._process.kill()
            raise

    async def close(self) -> None:
        """Ends the process, if there is one."""
        await asyncio.to_thread(self._process.close)


def _failure(message: str) -> dict[str, Any]:
    diagnostic: dict[str, Any] = {
        "severity": "error",
        "message": message,
        "line": None,
        "column": None,
        "notes": [],
    }
    return {"diagnostics": [diagnostic], "results": {}, "arguments": {}}
