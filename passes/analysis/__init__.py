"""Facts about programs and tools over the bindings that several phases need. Imports `passes.manager`."""
