"""Layouts and versions for the tests of the Python package; its fixtures are in conftest.py."""

MANY_KINDS = (("F32", (4, 4)), ("BF16", (8,)), ("I64", ()), ("F32", (0, 3)), ("F4", (3, 4)),
              ("F4", (2, 3)), ("F6_E2M3", (2, 4)), ("BOOL", (5,)), ("C64", (2,)), ("F8_E4M3", (3,)))


def layout_of(weightd, *tensors, alignment=256):
    layout = weightd.Layout(alignment)
    for i, (dtype, shape) in enumerate(tensors or [("F32", (4, 4))]):
        layout.add(f"t{i}", dtype, shape)
    return layout


def publish(weightd, name="m", fill=1, tensors=(), **options):
    """A version of tensors t0, t1 ... (one F32 [4, 4] by default) of which each byte is `fill`."""
    with weightd.create(name, layout_of(weightd, *tensors), **options) as writer:
        for key in writer:
            view = writer[key].memoryview()
            view[:] = bytes([fill]) * len(view)
        return writer.publish()


def is_mapped(address):
    with open("/proc/self/maps") as maps:
        ranges = [line.split()[0].split("-") for line in maps]
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)
