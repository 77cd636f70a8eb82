"""Lines of the demo's output, at most 80 characters long."""


def title(text):
    print(f"\n{text}", flush=True)


def say(text=""):
    print(f"   {text}".rstrip(), flush=True)


def megabytes(n_bytes):
    return f"{n_bytes / 1e6:,.1f} MB"


def say_row(name, *cells):
    """A line of a table with two columns."""
    say(f"{name:<41}" + "".join(f"{cell:>16}" for cell in cells))
