#!/usr/bin/env bash
# slurm/exit_action.sh: what a batch job does when its ranks have ended.
#
#   exit_action.sh owner RUN               prints the run's newest owner, 0: none
#   exit_action.sh CODE RUN OWNER_BEFORE   acts on srun's exit code; OWNER_BEFORE
#                                          is what `owner` said before srun
#
#   0            finished                      leave, 0
#   75           saved, start me again         requeue
#   76           no progress since the last    leave, 76: a person looks first
#                start
#   64 66 78     usage, no checkpoint,         leave: starting again would say the
#                disagreement                  same
#   65 70 74     data loss, our bug, I/O       requeue, at most CRASH_RESTARTS_MAX
#   128+n, other killed                        times in a row without a newer
#                                              checkpoint
#
# srun hides codes: one rank's 78 behind the 137 of those that were killed for it,
# and a lost node behind 0. So the run's status.json has the last word where an
# owner newer than OWNER_BEFORE wrote it, and 0 counts only when it agrees. (Not
# by the file's age: the file server's clock is another one.)
#
# Only the start that the job is at may requeue it. After the loss of a node this
# script may still run there, beside the job's next start, and would throw that
# one back: it compares its SLURM_RESTART_COUNT with the controller's.
#
# The run itself guards against loops: it leaves with 76 when it starts again and
# again without having saved a step in between. What fails before it can count its
# starts is counted here, in RUN/slurm-JOB.crashes.
set -uo pipefail

run=${2:?usage: exit_action.sh CODE RUN OWNER_BEFORE, or exit_action.sh owner RUN}
restarts=${SLURM_RESTART_COUNT:-0}
crash_restarts_max=${CRASH_RESTARTS_MAX:-20}

say() { echo "exit_action: $*"; }

newest_owner() {
  local newest
  newest=$(find "$run/owners" -maxdepth 1 -name 'i*.claim' 2>/dev/null |
    sed -nE 's|.*/i0*([0-9]+)\.claim$|\1|p' | sort -n | tail -n 1)
  echo "${newest:-0}"
}

if [ "${1:-}" = owner ]; then
  newest_owner
  exit 0
fi
code=${1:?usage: exit_action.sh CODE RUN OWNER_BEFORE}
owner_before=${3:-0}

field() {  # An integer of status.json.
  sed -nE "s/.*\"$1\": *(-?[0-9]+).*/\1/p" "$run/status.json" 2>/dev/null | head -n 1
}
said=
wrote=$(field incarnation)
[ "${wrote:-0}" -gt "$owner_before" ] && said=$(field exit_code)

if [ -n "$said" ] && [ "$said" != "$code" ]; then
  say "srun returned $code, $run/status.json says $said: using the latter"
  code=$said
elif [ -z "$said" ] && [ "$code" = 0 ] && [ "$(newest_owner)" -gt "$owner_before" ]; then
  say "srun returned 0 but the run has not said that it ended: taken for a lost node"
  code=74
fi

leave() {  # CODE WORDS...
  local code=$1
  shift
  say "exit code $code: $*"
  exit "$code"
}

requeue() {
  if [ -z "${SLURM_JOB_ID:-}" ] || ! command -v scontrol >/dev/null; then
    leave 75 "no scontrol here; leaving with 75 (RequeueExit=75 in slurm.conf requeues)"
  fi
  local job current
  job=$(scontrol --oneliner show job "$SLURM_JOB_ID") ||
    leave 75 "the controller does not answer; leaving with 75"
  current=$(sed -nE 's/.* Restarts=([0-9]+).*/\1/p' <<<"$job")
  if [ "$current" != "$restarts" ]; then
    leave 75 "this was restart $restarts of the job, which is at restart $current: not requeued from here"
  fi
  say "exit code $code: requeue (restart $((restarts + 1)))"
  # Where the site has RequeueExit=75, leaving with 75 would be enough. scontrol
  # ends this shell. "incomplete": not a job that was cancelled meanwhile.
  scontrol requeue incomplete "$SLURM_JOB_ID" ||
    leave 75 "scontrol requeue failed; leaving with 75"
  exit 75
}

# Crashes in a row, with this one. A newer checkpoint begins the count again.
crashes() {
  local file="$run/slurm-${SLURM_JOB_ID:-0}.crashes" count=0 at=0 step
  step=$(find "$run/checkpoints" -mindepth 2 -maxdepth 2 -name MANIFEST 2>/dev/null |
    sed -nE 's|.*/step-0*([0-9]+)\.[^/]*/MANIFEST$|\1|p' | sort -n | tail -n 1)
  step=${step:-0}
  [ -r "$file" ] && read -r count at <"$file"
  [ "$step" = "$at" ] || count=0
  # A run directory that cannot be written to: the job's restarts bound it too.
  { echo "$((count + 1)) $step" >"$file"; } 2>/dev/null || count=$restarts
  echo "$((count + 1))"
}

case "$code" in
  0) say "finished"; exit 0 ;;
  75) requeue ;;
  64 | 66 | 76 | 78) leave "$code" "not started again; the lines above say why" ;;
  *)
    count=$(crashes)
    if [ "$count" -le "$crash_restarts_max" ]; then requeue; fi
    leave "$code" "$count crashes in a row without a newer checkpoint: giving up"
    ;;
esac
