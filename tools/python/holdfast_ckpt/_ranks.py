"""_ranks.py: the ranks that save together, and how they talk before a save.

torch.distributed carries a few hundred bytes a save: what each rank has, and rank
0's word about it. All ranks call each method at the same place.
"""

import torch.distributed as dist


class Alone:
    rank = 0
    size = 1
    key = ()

    def gather(self, value):
        return [value]

    def broadcast(self, value):
        return value


class Group:
    """A process group; None: the default one."""

    def __init__(self, group):
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._first = 0 if group is None else dist.get_global_rank(group, 0)
        self.key = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))

    def gather(self, value):
        """Everybody's, on rank 0; None on the others."""
        values = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, values, dst=self._first, group=self._group)
        return values

    def broadcast(self, value):
        """Rank 0's."""
        values = [value]
        dist.broadcast_object_list(values, src=self._first, group=self._group)
        return values[0]


def ranks_of(group, no_dist):
    if no_dist or not dist.is_available() or not dist.is_initialized():
        return Alone()
    made = Group(group)
    if made.rank < 0:
        raise ValueError("this process is no rank of the process_group it was given")
    return made
