"""Policies: orders of the actions of each slice of a pipeline, from its shape alone.

`registry` names the policies, `request` parses requests for one, `schedule_file` reads orders from files.
They know no IR. The phase before scheduling imports them: backwards are split where the schedule has halves.
Imports `passes.analysis`. References, by the names that the docstrings use:

- GPipe: Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism, 2019.
- PipeDream-Flush: Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, 2021.
- Megatron-LM: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
  Megatron-LM, 2021.
- Breadth-first: Lamy-Poirier, Breadth-First Pipeline Parallelism, 2023.
- Zero bubble: Qi et al., Zero Bubble Pipeline Parallelism, 2024.
- Controllable memory: Qi et al., Pipeline Parallelism with Controllable Memory, 2024.
"""
