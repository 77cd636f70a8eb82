"""The rows of the table: programs, and their figures on a version of weightd beside those on the regular file."""
import contextlib
import json
import statistics
from typing import NamedTuple

from areas import areas_of, share_inside
from process import Failed, Process, script

LEAST_INSIDE, MOST_PSS, MOST_TIME = 0.99, 1.05, 1.05
N_ROUNDS = 15


class Row(NamedTuple):
    """
    name      of the row
    program   the script
    package   that has the program, as PyPI names it
    model     of models.py
    weights   the file of the weights in the folder of the model
    n_seeds   1, or 2 where the second process computes something else than the first
    copies    None, or why the program shares nothing (or not all)
    """

    name: str
    program: str
    package: str
    model: str
    weights: str = "model.safetensors"
    n_seeds: int = 1
    copies: str | None = None


ROWS = [
    Row("transformers", "use_transformers", "transformers", "llama"),
    Row("sentence-transformers", "use_sentence_transformers", "sentence-transformers", "bert"),
    Row("diffusers DDPMPipeline", "use_diffusers", "diffusers", "ddpm", "unet/diffusion_pytorch_model.safetensors"),
    Row("accelerate on the CPU", "use_accelerate", "accelerate", "llama"),
    Row("accelerate weights_map", "use_accelerate_map", "accelerate", "llama"),
    Row("accelerate \"disk\"", "use_accelerate_disk", "accelerate", "llama",
        copies="accelerate copies the layers to its offload_folder, and reads them from there"),
    Row("peft LoRA, 8 steps", "use_peft", "peft", "llama", n_seeds=2),
    Row("peft merge_and_unload", "use_peft_merged", "peft", "llama",
        copies="merging writes to the matrices that have an adapter; each process owns a copy of these"),
    Row("llama-cpp-python", "use_llama_cpp", "llama-cpp-python", "gguf", "model.gguf"),
    Row("llama-cpp-python use_mmap=False", "use_llama_cpp_read", "llama-cpp-python", "gguf", "model.gguf",
        copies="llama.cpp reads the file into memory of its own"),
]


class Figures(NamedTuple):
    """
    same_output  of all processes and of the regular file
    inside       share of the parameters' bytes in the mapping of the file, the least of all processes
    private      bytes of that mapping that a process wrote and hence has alone, the sum
    pss          of that mapping, the sum over the processes, in sizes of the file
    n_processes  that were looked at
    """

    same_output: bool
    inside: float
    private: int
    pss: float
    n_processes: int

    def faults(self, row):
        """Sentences about what the row must show and does not."""
        wrong = [] if self.same_output else ["another output than with the regular file"]
        if row.copies is None:
            if self.inside < LEAST_INSIDE:
                wrong.append(f"{self.inside:.3f} of the parameters lie in the mapping, not {LEAST_INSIDE}")
            if self.private:
                wrong.append(f"{self.private} bytes of the mapping are private")
            if self.pss > MOST_PSS:
                wrong.append(f"PSS is {self.pss:.2f} files, not {MOST_PSS}")
        elif self.inside >= LEAST_INSIDE and not self.private:
            wrong.append("all of it is shared: the row is wrong about this program")
        return wrong


def look(row, reports, regular):
    """
    The figures of processes that wait with their model loaded. `regular` has the reports of those that computed the
    same on the regular file, by seed.
    """
    size = None
    inside, private, pss, same = [], 0, 0, True
    for report, seed in reports:
        weights = f"{report['path']}/{row.weights}"
        with open(weights, "rb") as file:
            size = file.seek(0, 2)
        areas = areas_of(report["pid"], weights)
        same = same and report["digest"] == regular[seed]["digest"]
        private += sum(area.anonymous for area in areas)
        pss += sum(area.pss for area in areas)
        # A program that shows no parameters is judged by the file that is in its memory.
        inside.append(sum(area.rss for area in areas) / size if report["parameters"] is None
                      else share_inside(areas, report["parameters"]))
    return Figures(same, min(inside), private, pss / size, len(reports))


def run_fresh(row, python, folder, served):
    """The figures with two fresh processes, of which the first spawns a third. Failed."""
    seeds = [seed % row.n_seeds for seed in range(2)]
    regular = {}
    for seed in sorted(set(seeds)):
        with Process(script(python, row.program, folder), {"PROGRAM_RANK": str(seed)}) as process:
            (regular[seed],) = process.report()
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(Process(
            served.command(script(python, row.program, "{}", *(["--grandchild"] if i == 0 else []))),
            served.environment | {"PROGRAM_RANK": str(seed)})) for i, seed in enumerate(seeds)]
        reports = [(report, seed) for process, seed in zip(processes, seeds) for report in process.report()]
        return look(row, reports, regular)


def run_forked(row, zygote, folder, path, environment, has_grandchild=False):
    """The figures with two processes that forked.py forks, and perhaps one that the first of them spawns. Failed."""
    def fork(path, ranks, **more):
        zygote.send(json.dumps({"program": row.program, "path": str(path), "ranks": ranks} | more))
        found = [(report, rank) for reports, rank in zip(zygote.report(), ranks) for report in reports]
        for failure in (report["failed"] for report, _rank in found if "failed" in report):
            raise Failed(failure)
        return found

    seeds = [seed % row.n_seeds for seed in range(2)]
    regular = {seed: report for report, seed in fork(folder, sorted(set(seeds)), grandchild=False, environment={})}
    zygote.send(json.dumps("end"))
    reports = fork(path, seeds, grandchild=has_grandchild, environment=environment)
    try:
        return look(row, reports, regular)
    finally:
        zygote.send(json.dumps("end"))


def time_to_output(row, python, folder, served, n_rounds=N_ROUNDS):
    """
    Median seconds to the first output with the regular file, and with the version, in turns, in one process. Both
    files are in memory from the first round on.
    """
    command = served.command(script(python, row.program, folder, "{}", "--rounds", n_rounds))
    with Process(command, served.environment) as process:
        return [statistics.median(seconds) for seconds in process.report()]
