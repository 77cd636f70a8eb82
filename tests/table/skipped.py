"""Checks of training that the table does not make yet: the id in the notes on checks, its subject, and the reason."""

GPU = "jobs have host memory only"

CHECKS = (
    ("F-3", "prefetch of gathered units", "a time: make bench BENCH=train-step"),
    ("F-4", "cuts of units", "a unit test: test_train_plan_units.c"),
    ("DDP-4", "overlap with a slow network", "a time: make bench BENCH=train-step"),
    ("FLAT-8", "two processes on one GPU", GPU),
    ("DDP-8, F-10", "two GPUs", GPU),
)
