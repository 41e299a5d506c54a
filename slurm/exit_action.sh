#!/usr/bin/env bash
# slurm/exit_action.sh CODE RUN [STARTED]: what a batch job does when its ranks have ended.
#
#   0            finished                      leave, 0
#   75           saved, start me again         requeue
#   76           no progress since the last    leave, 76: a person looks first
#                start
#   64 66 78     usage, no checkpoint,         leave: starting again would say the
#                disagreement                  same
#   65 70 74     data loss, our bug, I/O       requeue, at most CRASH_RESTARTS_MAX
#   128+n        killed                        times in a row without a new step
#
# A launcher can hide a rank's code behind its own (143, 137, 1): the run's
# status.json has the last word when it was written after STARTED (seconds since
# 1970).
# The run itself guards against loops: it leaves with 76 when it starts again
# without having made a step in between.
set -uo pipefail

code=${1:?usage: exit_action.sh CODE RUN}
run=${2:?usage: exit_action.sh CODE RUN}
started=${3:-0}
restarts=${SLURM_RESTART_COUNT:-0}
crash_restarts_max=${CRASH_RESTARTS_MAX:-20}

if [ -r "$run/status.json" ] && [ "$(stat -c %Y "$run/status.json")" -ge "$started" ]; then
  said=$(sed -nE 's/.*"exit_code": *([0-9]+).*/\1/p' "$run/status.json" | head -n 1)
  if [ -n "$said" ] && [ "$said" != "$code" ]; then
    echo "exit_action: srun returned $code, $run/status.json says $said: using the latter"
    code=$said
  fi
fi

requeue() {
  echo "exit_action: exit code $code: requeue (restart $((restarts + 1)))"
  # Where the site has RequeueExit=75 in slurm.conf, leaving with 75 is enough;
  # elsewhere scontrol does it. Doing both is harmless.
  if [ -n "${SLURM_JOB_ID:-}" ] && command -v scontrol >/dev/null; then
    scontrol requeue "$SLURM_JOB_ID" || echo "exit_action: scontrol requeue failed; leaving with 75"
  fi
  exit 75
}

case "$code" in
  0) echo "exit_action: finished"; exit 0 ;;
  75) requeue ;;
  64 | 66 | 76 | 78) echo "exit_action: exit code $code: not started again; see $run/status.json"; exit "$code" ;;
  *)
    if [ "$restarts" -lt "$crash_restarts_max" ]; then requeue; fi
    echo "exit_action: exit code $code after $restarts restarts: giving up"
    exit "$code"
    ;;
esac
