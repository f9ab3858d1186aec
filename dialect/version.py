"""Version of the package, which bundles name, and which a controller and its workers have in common."""

__version__ = "0.1.0"
