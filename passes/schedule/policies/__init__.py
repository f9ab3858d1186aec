"""Policies: which order of actions each slice of a pipeline gets, from its shape alone.

Each module has one policy, which `registry` names. References, by the names that the docstrings use:

- GPipe: Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism, 2019.
- PipeDream-Flush: Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, 2021.
- Megatron-LM: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
  Megatron-LM, 2021.
- Breadth-first: Lamy-Poirier, Breadth-First Pipeline Parallelism, 2023.
- Zero bubble: Qi et al., Zero Bubble Pipeline Parallelism, 2024.
- Controllable memory: Qi et al., Pipeline Parallelism with Controllable Memory, 2024.
"""
