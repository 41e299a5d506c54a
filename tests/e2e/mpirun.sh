#!/usr/bin/env bash
# tests/e2e/mpirun.sh RANKS PROGRAM [ARGUMENT...]: runs PROGRAM on RANKS ranks of
# this machine, more ranks than cores and root included. Exit 77, with the reason,
# where there is no mpirun.
set -uo pipefail
ranks=${1:?usage: mpirun.sh RANKS PROGRAM [ARGUMENT...]}
shift
command -v mpirun >/dev/null || {
  echo "skipped: mpirun is not installed (Debian package openmpi-bin)"
  exit 77
}
# yield: ranks share cores. single copy none: containers forbid the system call.
exec mpirun --allow-run-as-root --oversubscribe -n "$ranks" \
  --mca mpi_yield_when_idle 1 --mca btl_vader_single_copy_mechanism none "$@"
