"""Tools over the bindings that passes of several rooms need. Imports the dialect and `passes.manager`."""
