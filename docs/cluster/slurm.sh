#!/bin/bash
# Not run so far: a sketch for several machines under Slurm. `sbatch docs/cluster/slurm.sh`.
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
set -euo pipefail

# The address of this machine on the network that the others reach it on.
head=$(hostname --ip-address | awk '{print $1}')
port=6379

ray start --head --node-ip-address="$head" --port="$port" --num-cpus="$SLURM_CPUS_PER_TASK"
srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude="$(hostname)" \
  ray start --address="$head:$port" --num-cpus="$SLURM_CPUS_PER_TASK" --block &

# train.py says pw.connect("ray", islands=[...], address=f"{head}:{port}", bind=head).
# Slurm ends what is left when the job ends.
HEAD="$head" PORT="$port" python train.py
