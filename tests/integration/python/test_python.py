"""The Python package as a whole. It needs no torch; numpy where arrays are looked at."""
import ctypes
import errno
import gc
import os
import random
import re
import shutil
import subprocess
import sys
import threading

import pytest
from lib import features
from lib.python_package import layout_of, publish
from lib.wire import until

HEADER = features.ROOT / "libclient/include/weightd.h"


# --- The declarations --------------------------------------------------------------------------------


def header():
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)


def test_each_function_of_the_header_is_declared_with_its_arguments():
    features.require("library")
    from weightd import _abi

    found = re.findall(r"^[a-z][^;{}()#]*?\b(weightd_\w+)\(([^;]*?)\);", header(), re.M)
    arguments = {name: 0 if text == "void" else text.count(",") + 1 for name, text in found}
    assert arguments == {name: len(types) - 1 for name, types in _abi.FUNCTIONS.items()}


def test_structs_have_the_size_and_offsets_of_the_header(tmp_path):
    features.require("library")
    compiler = shutil.which("cc") or shutil.which("gcc")
    features.require("cc", "no C compiler (apt-get install gcc)", bool(compiler))
    from weightd import _abi

    structs = {"weightd_tensor": _abi.Tensor, "weightd_server": _abi.Server,
               "weightd_attach_options": _abi.AttachOptions,
               "weightd_create_options": _abi.CreateOptions,
               "weightd_load_options": _abi.LoadOptions, "weightd_load_result": _abi.LoadResult,
               "weightd_plan_file": _abi.PlanFile, "weightd_plan_range": _abi.PlanRange,
               "weightd_buffer_info": _abi.BufferInfo, "weightd_version_info": _abi.VersionInfo,
               "weightd_slot_info": _abi.SlotInfo, "weightd_user_info": _abi.UserInfo,
               "weightd_holder_info": _abi.HolderInfo, "weightd_cost_info": _abi.CostInfo,
               "weightd_attached": _abi.Attached, "weightd_location": _abi.Location,
               "weightd_device_info": _abi.DeviceInfo,
               "weightd_model_dir_options": _abi.ModelDirOptions, "weightd_model_weights": _abi.ModelWeights,
               "weightd_stat": _abi.Stat, "weightd_latency": _abi.Latency, "weightd_health": _abi.Health,
               "weightd_event": _abi.Event, "weightd_file": _abi.File,
               "weightd_damage": _abi.DamageRow, "weightd_copy_options": _abi.CopyOptions, "weightd_copy_result": _abi.CopyResult,
               "weightd_save_options": _abi.SaveOptions, "weightd_save_result": _abi.SaveResult,
               "weightd_difference": _abi.Difference, "weightd_diff_side": _abi.DiffSide,
               "weightd_safetensors_contents": _abi.SafetensorsContents,
               "weightd_diff_result": _abi.DiffResult, "weightd_job_options": _abi.JobOptions,
               "weightd_part": _abi.Part, "weightd_join_options": _abi.JoinOptions, "weightd_job_info": _abi.JobInfo}
    assert set(re.findall(r"^struct (\w+) \{", header(), re.M)) == set(structs)
    program = ['#include <stdio.h>', '#include "weightd.h"', "int main(void) {"]
    ours = []
    for name, struct in structs.items():
        program.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        ours.append(f"{name} {ctypes.sizeof(struct)}")
        for field, _ in struct._fields_:
            program.append(f'printf("{name}.{field} %zu\\n", offsetof(struct {name}, {field}));')
            ours.append(f"{name}.{field} {getattr(struct, field).offset}")
    source = tmp_path / "structs.c"
    source.write_text("\n".join([*program, "}"]))
    subprocess.run([compiler, "-I", HEADER.parent, source, "-o", tmp_path / "structs"], check=True)
    theirs = subprocess.run([tmp_path / "structs"], check=True, stdout=subprocess.PIPE, text=True)
    assert ours == theirs.stdout.splitlines()


def test_each_dtype_of_the_library_is_known_to_the_package():
    features.require("library")
    from weightd import _abi, _dtype

    names = {_abi.lib.weightd_dtype_name(code) for code in range(256)} - {None}
    assert {name.decode() for name in names} == set(_dtype.NUMPY)


def test_package_needs_neither_numpy_nor_torch(weightd, python):
    publish(weightd, fill=7)
    out = python("""if True:
        import sys
        sys.modules["numpy"] = sys.modules["torch"] = None
        import weightd
        tensor = weightd.attach("m")["t0"]
        print(bytes(tensor.memoryview()) == bytes([7]) * 64, tensor.shape, tensor.dtype)
        try:
            tensor.__dlpack__()
        except BufferError as e:
            print(e)
        """).stdout
    assert out == "True (4, 4) F32\nDLPack needs numpy or torch\n"


# --- Errors ------------------------------------------------------------------------------------------


def test_errors_are_typed_and_carry_the_sentence(weightd):
    publish(weightd)
    writer = weightd.create("empty", layout_of(weightd))
    other = layout_of(weightd, ("F32", (4, 5)))
    cases = [
        (lambda: weightd.attach("nothing"), weightd.NotFound, FileNotFoundError, "ENOENT", "nothing"),
        (lambda: weightd.attach("m", version=9), weightd.NotFound, OSError, "ENOENT", "9"),
        (lambda: weightd.attach("empty"), weightd.NotPublished, OSError, "ENODATA", "empty"),
        (lambda: weightd.attach("m", layout=other), weightd.LayoutMismatch, OSError, "EPROTOTYPE", "m"),
        (lambda: weightd.attach("m", layout=other.hash), weightd.LayoutMismatch, OSError,
         "EPROTOTYPE", "m"),
        (lambda: weightd.drop("nothing"), weightd.NotFound, OSError, "ENOENT", "nothing"),
        (lambda: weightd.ping("/nothing"), weightd.Disconnected, ConnectionError, "ENOENT", "/nothing")]
    for use, kind, builtin, code, word in cases:
        with pytest.raises(kind) as e:
            use()
        assert isinstance(e.value, builtin) and isinstance(e.value, weightd.Error)
        assert errno.errorcode[e.value.errno] == code and word in str(e.value)
        assert "[Errno" not in str(e.value)
    assert weightd.attach("m", layout=layout_of(weightd)).version == 1
    writer.close()


def test_malformed_arguments_are_value_errors(weightd):
    for use in (lambda: weightd.attach("m\0x"), lambda: weightd.attach("m", layout=b"short"),
                lambda: weightd.load("m", "a\0b"), lambda: weightd.drop("\ud800")):
        with pytest.raises(ValueError):
            use()


# --- Processes, threads, restarts --------------------------------------------------------------------


def test_forked_child_reads_on_and_connects_by_itself(weightd, python):
    publish(weightd, fill=4)
    out = python("""if True:
        import gc, mmap, os, weightd
        buffer = weightd.attach("m")
        view, tensor = buffer["t0"].memoryview(), buffer["t0"]
        layout = weightd.Layout()
        layout.add("w", "F32", (1 << 20,))
        writer = weightd.create("n", layout)
        child = os.fork()
        if child == 0:
            assert view[0] == 4 and buffer["t0"].memoryview()[5] == 4 and buffer.latest() == 1
            where_the_writer_was = [mmap.mmap(-1, 1 << 20) for _ in range(64)]
            del writer, layout
            gc.collect()
            assert sum(pages[0] for pages in where_the_writer_was) == 0
            assert weightd.attach("m")["t0"].memoryview()[0] == 4
            assert weightd.ping().n_sessions >= 2
            buffer.close()
            del view, tensor, buffer
            gc.collect()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert view[0] == 4 and weightd.ping().n_leases == 1 and buffer.refresh() is None
        writer["w"].memoryview()[:4] = b"done"
        print(writer.publish())
        """).stdout
    assert out == "1\n"
    assert bytes(weightd.attach("n")["w"].memoryview()[:4]) == b"done"


def test_parents_connection_is_refused_in_the_child(weightd, python):
    publish(weightd, fill=1)
    out = python("""if True:
        import os, sys, weightd
        buffer = weightd.attach("m")
        layout = weightd.Layout()
        layout.add("t0", "F32", (4, 4))
        with weightd.create("m", layout) as writer:
            writer.publish()
        if os.fork() == 0:
            try:
                buffer.refresh()
            except weightd.Disconnected as e:
                print(e.errno, e, flush=True)
            print(weightd.attach("m").version, flush=True)
            os._exit(0)
        os.wait()
        print(buffer.refresh().version)
        """).stdout.splitlines()
    assert out[0].startswith(f"{errno.ECHILD} ") and out[1:] == ["2", "2"]


def test_child_forked_while_a_thread_talks_is_not_locked_up(weightd, python):
    publish(weightd)
    out = python("""if True:
        import os, threading, weightd
        ended = threading.Event()
        def talk():
            while not ended.is_set():
                weightd.attach("m")
        threads = [threading.Thread(target=talk) for _ in range(3)]
        for thread in threads:
            thread.start()
        codes = []
        for _ in range(20):
            child = os.fork()
            if child == 0:
                weightd.attach("m").close()
                os._exit(weightd.ping().n_buffers)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        ended.set()
        print(set(codes))
        """).stdout
    assert out == "{1}\n"


@pytest.mark.threads
def test_threads_share_the_package(weightd):
    publish(weightd, fill=1, tensors=[("U8", (100,))] * 50)
    buffer, wrong = weightd.attach("m"), []

    def work(seed):
        rng = random.Random(seed)
        try:
            for i in range(100):
                name = f"t{rng.randrange(50)}"
                with weightd.attach("m") as mine:
                    if mine[name].memoryview()[99] != 1 or buffer[name].index != mine[name].index:
                        wrong.append(name)
                if i % 10 == 0:
                    weightd.ls()
                    publish(weightd, f"own-{seed}", fill=seed)
                    weightd.drop(f"own-{seed}")
        except BaseException as e:
            wrong.append(e)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_thread_that_calls_again_comes_behind_one_that_waits(weightd):
    connection, order = weightd._connection.shared(), []
    other = threading.Thread(target=lambda: connection.call(lambda: order.append("other") or 0))
    with connection.use():
        other.start()
        until(connection._next.locked, "the other thread waits")
    connection.call(lambda: order.append("again") or 0)
    other.join()
    assert order == ["other", "again"]


def test_next_call_connects_anew_after_the_server_went_away(weightd, daemon):
    publish(weightd, fill=6)
    buffer = weightd.attach("m")
    daemon.kill()
    assert buffer["t0"].memoryview()[0] == 6
    with pytest.raises(weightd.Disconnected):
        weightd.ping()
    daemon.start()
    assert weightd.ping().pid == daemon.pid
    publish(weightd, "n")
    other = weightd.attach("n")
    del buffer  # its lease is not the new server's business
    assert weightd.ping().n_leases == 1 and other["t0"].memoryview()[0] == 1


def test_a_server_at_another_default_socket_is_not_taken_for_the_one_that_went_away(weightd, daemon, make_daemon,
                                                                                    tmp_path, monkeypatch):
    from weightd import _connection

    other = make_daemon()
    monkeypatch.setattr(_connection, "_shared", {})
    monkeypatch.delenv("WEIGHTD_SOCKET")
    for folder, server in (tmp_path / "one", daemon), (tmp_path / "two", other):
        folder.mkdir()
        (folder / "weightd.sock").symlink_to(server.socket)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "one"))
    assert weightd.ping().pid == daemon.pid
    daemon.kill()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "two"))
    with pytest.raises(weightd.Disconnected, match="one/weightd.sock"):
        weightd.ping()
    daemon.start()
    assert weightd.ping().pid == daemon.pid


def test_connections_belong_to_their_socket(weightd, make_daemon):
    other = make_daemon()
    publish(weightd, "here")
    with weightd.create("there", layout_of(weightd), socket=other.socket) as writer:
        writer.publish()
    assert [info.name for info in weightd.ls(socket=other.socket)] == ["there"]
    assert weightd.attach("there", socket=other.socket).version == 1
    assert weightd.wait("there", socket=other.socket, timeout=60) == 1
    with pytest.raises(weightd.NotFound):
        weightd.attach("there")
