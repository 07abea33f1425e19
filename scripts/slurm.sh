#!/usr/bin/env bash
# Train as a SLURM job: sbatch [--nodes=2 --ntasks-per-node=4 --gpus-per-node=4] scripts/slurm.sh experiment=zh_en ...
#
# Each task is a process of the training. SIGUSR1, a minute before the time limit, and SIGTERM, at a preemption, make it
# save and stop with 128 + signal. The job then returns to the queue, and the same command resumes the run.
#SBATCH --job-name=dragoman
#SBATCH --ntasks-per-node=1
#SBATCH --signal=B:USR1@60
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log
set -u
cd "$SLURM_SUBMIT_DIR" || exit 2

settings=(trainer.nodes="${SLURM_JOB_NUM_NODES:-1}" trainer.devices="${SLURM_NTASKS_PER_NODE:-1}")
srun "${PYTHON:-.venv/bin/python}" train.py "$@" "${settings[@]}" &
step=$!
trap 'kill -USR1 $step' USR1
trap 'kill -TERM $step' TERM
# A trapped signal ends `wait`, so it is called until the step has ended.
while true; do
  wait $step
  code=$?
  kill -0 $step 2>/dev/null || break
done

# 138: SIGUSR1, 143: SIGTERM. `scancel` also sends SIGTERM, but a cancelled job stays cancelled.
if [ "$code" -eq 138 ] || [ "$code" -eq 143 ]; then
  scontrol show job "$SLURM_JOB_ID" | grep -q JobState=CANCELLED || scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
