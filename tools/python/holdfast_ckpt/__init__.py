"""holdfast_ckpt: Holdfast checkpoints under torch.distributed.checkpoint.

    dcp.save(state, storage_writer=HoldfastWriter("RUN"), checkpoint_id="step-120")
    dcp.load(state, storage_reader=HoldfastReader("RUN@120"))

README.md beside this package says what it gives, what it costs and what it refuses.
"""

from ._library import HoldfastError, library_version
from .reader import HoldfastReader
from .writer import HoldfastWriter, close_all

__all__ = [
    "HoldfastError",
    "HoldfastReader",
    "HoldfastWriter",
    "close_all",
    "library_version",
]
