"""Training by weightd.train on several nodes: here jobs of one weightd, which meet on loopback."""
import errno
import itertools
import json
import os
import random
import signal

import pytest
from integration.examples.pages import literals
from lib.nodes import claim_port
from lib.torch_ranks import apart, interrupt, kill_at_random, mean, wait_for

pytestmark = [pytest.mark.timeout(300), pytest.mark.plain]

CLOSE = 2e-6


def torchrun(rank, local_rank, size, local_size, node, nodes):
    return {"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": local_size,
            "GROUP_RANK": node, "GROUP_WORLD_SIZE": nodes}


def mpirun(rank, local_rank, size, local_size):
    values = {"RANK": rank, "LOCAL_RANK": local_rank, "SIZE": size, "LOCAL_SIZE": local_size}
    return {f"OMPI_COMM_WORLD_{name}": value for name, value in values.items()}


def srun(rank, local_rank, size, node, nodes):
    return {"SLURM_PROCID": rank, "SLURM_LOCALID": local_rank, "SLURM_NTASKS": size, "SLURM_NODEID": node,
            "SLURM_NNODES": nodes}


SECOND = [3, 4, 1, 2, 1, 2]  # rank, size, node, nodes, rank and ranks there
UNEQUAL, OUT_OF_ORDER = "with different numbers on them", "numbered machine by machine"
LAUNCHED = (  # arguments, variables, the mesh or words of the error
    ({}, torchrun(3, 1, 4, 2, 1, 2), SECOND), ({}, mpirun(3, 1, 4, 2), SECOND), ({}, srun(3, 1, 4, 1, 2), SECOND),
    ({"n_nodes": 2}, {"RANK": 3, "WORLD_SIZE": 4}, SECOND), ({}, {"RANK": 3, "WORLD_SIZE": 4}, [3, 4, 0, 1, 3, 4]),
    ({"dims": {"dp": 4}, "rank": 3, "n_nodes": 2, "node": 1}, {}, SECOND),
    ({"dims": {"dp": 4}, "rank": 3}, srun(0, 0, 1, 0, 1), [3, 4, 0, 1, 3, 4]),  # one task of SLURM spawned four
    ({}, torchrun(2, 0, 3, 1, 1, 2), UNEQUAL), ({}, torchrun(0, 0, 3, 2, 0, 2), UNEQUAL),
    ({}, mpirun(0, 0, 3, 2), UNEQUAL), ({}, srun(0, 0, 3, 0, 2), UNEQUAL), ({}, srun(2, 2, 4, 0, 2), UNEQUAL),
    ({}, torchrun(1, 0, 4, 2, 1, 2), OUT_OF_ORDER), ({}, mpirun(2, 1, 4, 2), OUT_OF_ORDER),
    ({}, srun(1, 0, 4, 1, 2), OUT_OF_ORDER),
    ({"n_nodes": 4}, torchrun(3, 1, 4, 2, 1, 2), "the launcher started ranks on 2 machines"),
    ({"dims": {"dp": 4}, "rank": 1, "n_nodes": 2, "node": 1}, {}, "rank 1 is on node 0"),
    ({"dims": {"dp": 4}, "n_nodes": 3}, {}, "not as many on each of 3 machines"),
    ({"port": 70000}, {}, "port is 70000"))


def test_launchers_of_several_machines_give_each_rank_its_place(host, daemon):
    environments = [(arguments, {name: str(value) for name, value in variables.items()})
                    for arguments, variables, _ in LAUNCHED]
    (found,) = host.play(daemon, "nodes.launched", environments=environments)
    for (_, variables, expected), result in zip(LAUNCHED, found):
        assert result == expected if isinstance(expected, list) else expected in result, (variables, result)


def test_groups_of_torch_move_bytes_of_any_cut_and_end_at_the_deadline(host, daemon, tmp_path):
    results = host.play(daemon, "nodes.exchanged", 4, nodes=2, file=str(tmp_path / "meeting"))
    for rank, result in enumerate(results):
        assert [found[:3] for found in result["found"]] == [[0, "", True]] * 12
        assert result["interrupted"] == (rank < 2)
        code, sentence, _ = result["failed"]
        assert code == -(errno.ETIMEDOUT if rank < 2 else errno.EOWNERDEAD), result["failed"]
        assert rank >= 2 or "deadline" in sentence
    assert json.loads(daemon.ctl("ls", "--json").stdout)["jobs"] == []


@pytest.mark.parametrize("n, nodes", ((4, 2), pytest.param(2, 2, marks=pytest.mark.long), (3, 3)), ids=("2x2", "2x1", "3x1"))
def test_steps_of_several_nodes_are_those_of_one(host, daemon, n, nodes):
    results = host.play(daemon, "nodes.steps", n, nodes=nodes)
    one = mean([result["one"]["losses"] for result in results])
    for name in results[0]["rows"]:
        rows = [result["rows"][name] for result in results]
        assert apart(mean([row["losses"] for row in rows]), one) <= CLOSE, name
        assert len({row["bits"] for row in rows} | {results[0]["rows"]["shared"]["bits"]}) == 1, name
        for row in rows:
            assert row["moved"][2] == 6 * row["planned"][2] > 0, (name, row)
    for name in results[0]["cases"]:
        assert len({result["cases"][name][0]["bits"] for result in results}) == 1, name
        for result in results:
            ours, expected = result["cases"][name]
            assert apart(ours["values"], expected["values"]) <= CLOSE, name
            assert ours["seen"] == pytest.approx(expected["seen"], abs=CLOSE) if name == "clipped" else \
                ours["seen"] == expected["seen"], name
    scaled = results[0]["cases"]["scaled"][0]["seen"]
    assert [overflowed for overflowed, _ in scaled] == [False, False, True, False, False, False]
    assert json.loads(daemon.ctl("ls", "--json").stdout)["jobs"] == []


def test_the_snippets_of_the_page_train_on_two_nodes(host, daemon):
    """Those of weightd-python(3), with the names of jobs, as both train in one program."""
    _, spawned, world = literals("weightd-python.3", "TRAINING ON SEVERAL MACHINES")
    zero3, _ = literals("weightd-python.3", "TRAINING WITH SHARDED PARAMETERS")
    meeting, (port, claim) = host.meeting(), claim_port()
    for shown, here in ('"first"', repr(meeting["MASTER_ADDR"])), ("7401", meeting["MASTER_PORT"]):
        assert shown in spawned, shown
        spawned = spawned.replace(shown, here)
    with claim:
        results = host.play(daemon, "nodes.printed", 4, 2, env=meeting, spawned=spawned, port=port,
                            world=world.replace("mesh, ", 'mesh, job="world", '), zero3=zero3.replace("mesh, ", 'mesh, job="zero3", '))
    assert [result["place"] for result in results] == [[0, 4, 0, 2, 0], [1, 4, 0, 2, 1], [2, 4, 1, 2, 0], [3, 4, 1, 2, 1]]
    assert len({result[name] for result in results for name in ("world", "zero3")}) == 1, results
    assert json.loads(daemon.ctl("ls", "--json").stdout)["jobs"] == []


def test_the_mesh_of_replicas_of_the_page_has_each_on_four_machines(host, daemon):
    _, snippet = literals("weightd-python.3", "TRAINING WITH SHARDED PARAMETERS")
    environments = [{name: str(value) for name, value in torchrun(rank, rank % 4, 32, 4, rank // 4, 8).items()} for rank in range(32)]
    (found,) = host.play(daemon, "nodes.replicas", snippet=snippet, environments=environments)
    assert found == [[0, [0, 1, 2, 3]]] * 16 + [[1, [4, 5, 6, 7]]] * 16


@pytest.mark.parametrize("n, nodes", ((4, 2), (3, 3)), ids=("2x2", "3x1"))
def test_groups_of_torch_give_the_bits_of_gloo_and_the_curve_of_torch_ddp(host, daemon, tmp_path, n, nodes):
    results = host.play(daemon, "nodes.by_groups", n, nodes=nodes, file=str(tmp_path / "meeting"))
    expected = mean([result["ddp"] for result in results])
    for name in ("gloo", "world", "line", "overlap", "zero2", "zero3"):
        rows = [result[name] for result in results]
        assert apart(mean([row["losses"] for row in rows]), expected) <= CLOSE, name
        assert {row["bits"] for row in rows} == {results[0]["gloo"]["bits"]}, name
    for rank, result in enumerate(results):
        refused = result["refused"]
        assert refused["few"].startswith("ValueError: the process group has 1 ranks; it must have all"), refused
        assert rank == n - 1 - rank or f"this process is rank {rank} of the process group" in refused["turned"], refused
        assert n != 4 or refused["crossed"].startswith("ValueError: the process group has ranks ["), refused


@pytest.mark.parametrize("n, nodes", ((4, 2), (3, 3)), ids=("2x2", "3x1"))
def test_local_sgd_averages_the_parameters_of_nodes_after_every_k_steps(host, daemon, n, nodes):
    results = host.play(daemon, "nodes.locals_of", n, nodes=nodes, every=[1, 2, 4])
    for every in "1", "2", "4":
        for result in results:
            assert apart(result[every]["values"], result[every]["expected"]) <= CLOSE, every
    assert results[0]["1"]["sent"] > results[0]["2"]["sent"] > results[0]["4"]["sent"] > 0


def test_what_belongs_to_training_works_on_each_node(host, daemon, weightd):
    results = host.play(daemon, "nodes.around", 4, nodes=2)
    assert [result["version"] is not None for result in results] == [True, False, True, False]
    for result in results[0], results[2]:
        with weightd.attach(f"trained-{results.index(result) // 2}", version=result["version"]) as buffer:
            for name, value in result["values"].items():
                assert list(buffer[name].numpy().flatten()) == pytest.approx(value, abs=0), name
    ours, expected = (mean([result[name] for result in results]) for name in ("engine", "engine of one"))
    assert apart(ours, expected) <= CLOSE
    for result in results:
        says = {"flatten": "flatten() is for the ranks of one machine",
                "finish": 'on_death="finish" is for one machine', "fused": "which a fused step does not have",
                "every": "sync_every is -1", "kind": "shared", "type": "TypeError: engine is a str",
                "alone": "sync_every is for several machines"}
        for name, words in says.items():
            assert words in result["refused"][name], (name, result["refused"][name])


@pytest.mark.parametrize("param, options", (("float32", {}), ("bfloat16", {}), ("bfloat16", {"strategy": "zero2"}),
                                            ("float32", {"strategy": "zero3", "units": 500})))
def test_a_checkpoint_of_nodes_continues_on_nodes_and_on_one(host, daemon, tmp_path, param, options):
    results = host.play(daemon, "nodes.saved", 4, nodes=2, folder=str(tmp_path / "checkpoints"), param=param, **options)
    assert len({job["then"] for result in results for job in result.values()}) == 1
    assert {(name, job["n"]) for result in results for name, job in result.items()} == {
        ("saver", 6), ("same", 3), ("one", 3), ("firsts", 3)}
    expected = mean([result["saver"]["losses"] for result in results])
    for result in results:
        assert result["same"]["bits"] == result["saver"]["bits"]
        assert result["same"]["losses"] == result["saver"]["losses"]
    assert apart(mean([result["one"]["losses"] for result in results]), expected) <= CLOSE
    assert apart(mean([results[rank]["firsts"]["losses"] for rank in (0, 2)]), expected) <= (
        CLOSE if param == "float32" else 2e-3)  # batches of another size are rounded in other places


def test_a_lost_process_group_ends_the_trainer_and_the_jobs_go_on(host, daemon, tmp_path):
    expected = host.play(daemon, "nodes.dying", 2, nodes=2)
    env = host.meeting()
    ranks = [host.start(daemon, "nodes.dying", rank, 2, env, 2, deadline=60.0, file=str(tmp_path / "meeting"),
                        dies=2 if rank else None) for rank in range(2)]
    assert ranks[1].wait() == -signal.SIGKILL
    found = ranks[0].value()
    assert found["is whole"] and found["step"] == 2, found
    assert "process group of torch" in found["died"] and "start the ranks again" in found["died"], found
    again = [host.start(daemon, "nodes.dying", rank, 2, env, 2, file=str(tmp_path / "again")) for rank in range(2)]
    assert [rank.value()["bits"] for rank in again] == [result["bits"] for result in expected]


def test_each_sample_comes_once_an_epoch_over_a_kill(host, daemon):
    env = host.meeting()
    ranks = [host.start(daemon, "nodes.sampled", rank, 4, env, 2, dies=4 if rank == 3 else None) for rank in range(4)]
    assert ranks[3].wait() == -signal.SIGKILL
    ranks[3] = host.start(daemon, "nodes.sampled", 3, 4, env, 2)
    seen = sorted(itertools.chain(*(rank.value() for rank in ranks)))
    assert seen == [[epoch, i] for epoch in range(2) for i in range(43)]


# --- Deaths ------------------------------------------------------------------------------------------


def assert_same_end(results, expected):
    for result, want in zip(results, expected):
        for key in ("bits", "at", "lr"):
            assert result[key] == want[key], (key, result, want)
        assert result["losses"] == want["losses"][result["first"]:], (result, want)


KILLED = {"shared": {}, "zero1": {"strategy": "zero1"}, "replicated": {"strategy": "replicated"},
          "overlap": {"overlap": True, "bucket_bytes": 512}, "half": {"is_half": True}, "local": {"sync_every": 3}, "zero2": {"strategy": "zero2", "bucket_bytes": 512},
          "zero3": {"strategy": "zero3", "units": ["body.0", "body.4"]}}


@pytest.mark.parametrize("row", KILLED if os.environ.get("WEIGHTD_PYTHON_KILLS") else ("shared",))
def test_random_kills_on_two_nodes_leave_no_trace(host, daemon, row):
    """WEIGHTD_PYTHON_KILLS and WEIGHTD_PYTHON_STEPS for more, which must fit; WEIGHTD_SEED for the same again."""
    wanted = os.environ.get("WEIGHTD_PYTHON_KILLS")
    n_kills, steps = int(wanted or 4), int(os.environ.get("WEIGHTD_PYTHON_STEPS", 150))
    seed = int(os.environ.get("WEIGHTD_SEED", random.randrange(2**32)))
    expected = host.play(daemon, "run", 4, nodes=2, steps=steps, job="whole", **KILLED[row])
    results, kills = kill_at_random(host, daemon, 4, n_kills, seed, 2, steps=steps, **KILLED[row])
    enough = n_kills if wanted else 1
    assert kills >= enough, f"{kills} kills before the last step: more WEIGHTD_PYTHON_STEPS (seed {seed})"
    try:
        assert_same_end(results, expected)
    except AssertionError as e:
        raise AssertionError(f"seed {seed}: {e}") from None


def test_a_node_that_dies_ends_the_wait_of_the_others_whose_parameters_are_whole(host, daemon):
    """By the deadline; and the jobs go on when all are started again."""
    expected = host.play(daemon, "nodes.dying", 4, nodes=2)
    env = host.meeting()
    ranks = [host.start(daemon, "nodes.dying", rank, 4, env, 2, deadline=1.0, patient_until=2,
                        dies=2 if rank >= 2 else None) for rank in range(4)]
    assert [rank.wait() for rank in ranks[2:]] == [-signal.SIGKILL] * 2
    for rank in ranks[:2]:
        found = rank.value()
        assert found["is whole"] and found["step"] == 2, found
        assert "node 1" in found["late"] or "rank" in found["late"], found
    again = [host.start(daemon, "nodes.dying", rank, 4, env, 2) for rank in range(4)]
    assert [rank.value()["bits"] for rank in again] == [result["bits"] for result in expected]


def test_machines_that_are_started_as_other_nodes_do_not_begin_anew(host, make_daemon):
    """They say the way out, and change nothing: as the nodes that they were, they go on."""
    daemons, env = [make_daemon(), make_daemon()], host.meeting()
    expected = host.play(make_daemon(), "nodes.dying", 2, nodes=2)

    def start(order, **arguments):
        return [host.start(daemon, "nodes.dying", rank, 2, env, 2, **arguments) for rank, daemon in zip(order, daemons)]

    def jobs():
        return [[(job["name"], job["step"]) for job in json.loads(daemon.ctl("ls", "--json").stdout)["jobs"]]
                for daemon in daemons]

    assert [rank.wait() for rank in start((0, 1), dies=2)] == [-signal.SIGKILL] * 2
    before = jobs()
    assert before == [[("dying-node0", 2)], [("dying-node1", 2)]]
    for node, rank in enumerate(start((1, 0))):
        _, sentence = rank.error()
        assert f"job 'dying-node{node}' at step 2" in sentence and f"start it as node {node} " in sentence, sentence
    assert jobs() == before
    again = [rank.value() for rank in start((0, 1))]
    assert [result["bits"] for result in again] == [result["bits"] for result in expected]
    assert [result["first"] for result in again] == [2, 2]


def test_nodes_of_one_server_find_out_themselves_that_one_lost_its_job(host, daemon):
    """A rank of the other one is there: that is no machine with another number than before."""
    env = host.meeting()
    ranks = [host.start(daemon, "nodes.dying", rank, 2, env, 2, deadline=60.0, dies=2 if rank else None)
             for rank in range(2)]
    assert ranks[1].wait() == -signal.SIGKILL
    daemon.ctl("rm", "--job", "dying-node1")
    for rank in ranks[0], host.start(daemon, "nodes.dying", 1, 2, env, 2):
        _, sentence = rank.error()
        assert "node 1" in sentence and "checkpoint" in sentence, sentence


def test_the_death_of_a_node_is_an_error_at_once_where_the_job_says_so(host, daemon):
    env = host.meeting()
    ranks = [host.start(daemon, "nodes.dying", rank, 2, env, 2, deadline=None, on_death="fail",
                        dies=2 if rank else None) for rank in range(2)]
    assert ranks[1].wait() == -signal.SIGKILL
    found = ranks[0].value()
    assert found["is whole"] and "node 1" in found["died"], found


def test_ctrl_c_interrupts_the_wait_for_another_node_and_the_step_can_be_called_again(host, daemon):
    expected = host.play(daemon, "nodes.interrupted", 2, nodes=2)
    env = host.meeting()
    rank, other = (host.start(daemon, "nodes.interrupted", rank, 2, env, 2, holds=1 if rank else None)
                   for rank in (0, 1))
    wait_for(rank, "begins 1")
    wait_for(other, "begins 0", "T")
    interrupt(rank, lambda: "interrupted" in rank.log)
    other.kill(signal.SIGCONT)
    (bits, n_interruptions), found = rank.value(), other.value()
    assert n_interruptions and [bits, 0] == expected[0] and found == expected[1]
