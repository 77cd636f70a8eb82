"""The table: a row a program, each with its figures and the verdict, and the control beside it."""
import contextlib
import pathlib
import tempfile

import control
import rows
from lib.daemon import Daemon
from process import Failed, default_python, make_models, version_of
from served import Version

NAMES = [row.name for row in rows.ROWS]


def measure(report, size="large", n_rounds=rows.N_ROUNDS, names=()):
    """Writes a line a row to `report`, and the bounds."""
    python = default_python()
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(contextlib.closing(Daemon("--log-level", "warning")))
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weightd-programs-")))
        for row in rows.ROWS:
            if not names or row.name in names:
                line(report, row, python, folder, daemon, size, n_rounds)
        if python and not names:
            lines_of_control(report, python, folder, daemon, size)


def line(report, row, python, folder, daemon, size, n_rounds):
    """The row. One that cannot run here has the reason for a verdict."""
    installed = python and version_of(python, row.package)
    empty = {"output": "", "inside": "", "private_bytes": "", "pss_files": "", "file_s": "", "version_s": ""}
    if not installed:
        target = "fetch-llama" if row.model == "gguf" else "fetch-programs"
        report.line(name=row.name, release="", **empty, verdict=f"not run: {row.package} is not installed (make {target})")
        return
    try:
        make_models(python, {row.model: folder / row.model}, size)
        served = Version(daemon, row.model, folder / row.model)
        figures = rows.run_fresh(row, python, folder / row.model, served)
        file_s, version_s = rows.time_to_output(row, python, folder / row.model, served, n_rounds)
    except Failed as e:
        report.missed += 1
        report.line(name=row.name, release=installed, **empty, verdict=f"FAILED: {e}")
        return
    faults = figures.faults(row)
    report.missed += bool(faults)
    report.line(name=row.name, release=installed, output="the same" if figures.same_output else "ANOTHER", inside=figures.inside,
                private_bytes=figures.private, pss_files=figures.pss, file_s=file_s, version_s=version_s,
                verdict="; ".join(faults) or (f"not shared: {row.copies}" if row.copies else "shared"))
    if row.copies is None:
        report.bound(of=row.name, figure="time to first output, version over regular file", value=version_s / file_s,
                     at_most=rows.MOST_TIME)


def lines_of_control(report, python, folder, daemon, size):
    make_models(python, {"llama": folder / "llama"}, size)
    served = Version(daemon, "llama", folder / "llama")
    for found, expected in zip(control.run(python, folder / "llama", served, folder / "copy.safetensors"), control.EXPECTED):
        report.missed += found != expected
        report.line(name=f"control: {found.of} {found.change}", refused=found.refused or "no", reader=found.reader,
                    verdict="as expected" if found == expected else f"not as expected: {expected}")
