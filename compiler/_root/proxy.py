"""Server of unmodified JAX programs on devices of this process, like the tool `pw-proxy`.

```python
import os
import subprocess

import pathways.proxy

with pathways.proxy.serve() as server:
    subprocess.run(["python", "train.py"], env=os.environ | server.environment)
```
"""

from __future__ import annotations

import functools

from pathways.compiler.mpmd.from_ifrt import schedule_ifrt
from pathways.runtime.proxy.serving import server
from pathways.runtime.proxy.serving.client_plugin import copy_numpy_at_call
from pathways.runtime.proxy.serving.server import ProxyServer
from pathways.runtime.traces.recorder import Recorder

serve = functools.partial(server.serve, schedule_ifrt=schedule_ifrt, make_recorder=Recorder)
serve.__doc__ = server.serve.__doc__

__all__ = ["ProxyServer", "copy_numpy_at_call", "serve"]


def __dir__() -> list[str]:
    return __all__
