"""What ran where and when: figures, pages and trace files of one step. Imports `runtime.plan`; never jax."""
