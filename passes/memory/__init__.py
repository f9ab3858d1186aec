"""Which buffers are donated and released, and how many bytes are alive. Imports `passes.analysis`."""
