"""What becomes of a traced module before it has devices: its forms, warnings about them, and bundles."""
