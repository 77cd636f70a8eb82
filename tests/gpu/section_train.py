"""Training on a GPU."""
from results import Skip


def measure(_lab, _tell):
    raise Skip("jobs have host memory only: no rank can have its parameters on a GPU yet")
