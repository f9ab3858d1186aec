"""Memory of the served devices: accounts of its use, lost slices, and the shardings and layouts of arrays."""
