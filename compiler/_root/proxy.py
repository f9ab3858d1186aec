"""Serves unmodified JAX programs on devices of this process, as the tool `pw-proxy` does.

```python
import subprocess
import pathways.proxy

with pathways.proxy.serve() as server:
    subprocess.run(["python", "train.py"], env=os.environ | server.environment)
```
"""

from __future__ import annotations

from pathways.runtime.proxy.serving import ProxyServer, serve

__all__ = ["ProxyServer", "serve"]
