"""The child process of `pw-lsp` that parses: started when it is needed, and anew when it has ended."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from pathways.runtime.resources.child_process import LimitedProcess, NoReplyError


class Analyst:
    """Asks a child process what is in a text, one at a time.

    Args:
      timeout: how long it may take for one text, in seconds.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._process = LimitedProcess("pathways.tools.lsp.worker")
        self.lock = asyncio.Lock()
        """Held while a text is looked at."""

    async def analyse(self, text: str) -> dict[str, Any]:
        """Returns what `worker.analyse` says of a text; one diagnostic where it ends the process."""
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
