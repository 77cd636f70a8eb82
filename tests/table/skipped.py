"""Checks of training that the table does not make yet: the id in the notes on checks, its subject, and the reason."""

NODES = "issue 23, several nodes"
GPU = "jobs have host memory only"

CHECKS = (
    ("Z-1, Z-2, Z-3", "rows of zero2 and zero3", NODES),
    ("Z-5", "peak of gradients in stage 2", NODES),
    ("F-1, F-4", "units of FSDP", NODES),
    ("F-2, F-3", "peak and prefetch of gathered units", NODES),
    ("F-8", "HSDP", NODES),
    ("DDP-4", "overlap with a slow network", NODES),
    ("Z-3", "bytes on sockets between nodes", NODES),
    ("FLAT-8", "two processes on one GPU", GPU),
    ("DDP-8, F-10", "two GPUs", GPU),
)
