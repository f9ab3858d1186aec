#!/bin/bash
# Run with a script in the place of srun only: `sbatch docs/cluster/slurm.sh`.
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
set -euo pipefail

# train.py says pw.connect(pw.Slurm()), which has srun start a worker on each node, this one among them.
# Slurm ends what is left when the job ends.
python train.py
