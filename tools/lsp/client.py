"""The child process of `pw-lsp` that parses: started when it is needed, and anew when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import Any

from pathways.runtime.bundle.limited_process import HEADER_BYTES, exit_status


class Analyst:
    """Asks a child process what is in a text, one at a time.

    Args:
      timeout: how long it may take for one text, in seconds.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._process: asyncio.subprocess.Process | None = None
        self.lock = asyncio.Lock()
        """Held while a text is looked at."""

    async def analyse(self, text: str) -> dict[str, Any]:
        """What `worker.analyse` says of a text; one diagnostic where it ends the process."""
        try:
            return await asyncio.wait_for(self._ask(text.encode(errors="replace")), self._timeout)
        except TimeoutError:
            await self.close()
            return _failure(f"MLIR did not return within {self._timeout:g} s while reading this")
        except (asyncio.IncompleteReadError, ConnectionError):
            return _failure(await self._cause())

    async def close(self) -> None:
        """Ends the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _ask(self, text: bytes) -> dict[str, Any]:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "pathways.tools.lsp.worker",
                str(os.getpid()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        writer, reader = self._process.stdin, self._process.stdout
        assert writer is not None
        assert reader is not None
        writer.write(len(text).to_bytes(HEADER_BYTES) + text)
        await writer.drain()
        size = int.from_bytes(await reader.readexactly(HEADER_BYTES))
        return json.loads(await reader.readexactly(size))

    async def _cause(self) -> str:
        """Why the process ended, which it has."""
        process, self._process = self._process, None
        code = await process.wait() if process is not None else 0
        how = f"crashed ({exit_status(code)})" if code < 0 else f"ended with {exit_status(code)}"
        return f"MLIR {how} while reading this"


def _failure(message: str) -> dict[str, Any]:
    diagnostic: dict[str, Any] = {
        "severity": "error",
        "message": message,
        "line": None,
        "column": None,
        "notes": [],
    }
    return {"diagnostics": [diagnostic], "results": {}, "arguments": {}}
