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
# SLURM itself sends SIGTERM to the processes of the training; this script has to outlive it.
trap : TERM
# A trapped signal ends `wait`, so it is called until the step has ended.
while kill -0 $step 2> /dev/null; do wait $step; done
wait $step
code=$?

# 138: SIGUSR1, 143: SIGTERM in the grace time of a preemption. In any other state than RUNNING, SLURM is requeuing,
# cancelling or ending the job by itself.
if [ "$code" -eq 138 ] || [ "$code" -eq 143 ]; then
  scontrol show job "$SLURM_JOB_ID" | grep -q JobState=RUNNING && scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
