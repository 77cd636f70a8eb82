"""Stall: the cause that holds up a transfer is named, in many runs of each cause that can be made.

stall  "cause": a reader, a producer that is slow, a send buffer that is small for its link, a link that loses packets, a
       peer that ends in the middle, a rate that was set, by weightd-trace's name for it; "named": the number of
       "runs" in which the row of a span had that name at its end, "share" of them; "others": the other names
"""
import collections
import time

from lib import longlink, netns, stalls, tracing

RUNS = 50
SPAN_S = {"silent": 2.5}  # two timers have to run out before the end is seen
SPAN_DEFAULT_S = 1
SHARE_MIN = 0.95


def measure(report):
    if not (tracing.is_available() and netns.is_available() and longlink.is_available()):
        report.line(name="stall", skipped="needs root, network namespaces, /dev/net/tun, and weightd-trace with BPF")
        return
    with netns.Net(2) as net, tracing.Tracer("--meter=bpf") as tracer:
        for cause in stalls.CAUSES:
            measure_cause(report, net, tracer, cause)


def measure_cause(report, net, tracer, cause):
    said = collections.Counter(name_of(net, tracer, cause) for _ in range(RUNS))
    named = said.pop(cause, 0)
    report.line(name="stall", cause=cause, runs=RUNS, named=named, share=named / RUNS,
                others=" ".join(f"{name}:{n}" for name, n in said.items()))
    report.bound("stall", f"share of {cause}", named / RUNS, at_least=SHARE_MIN)


def name_of(net, tracer, cause):
    with tracing.Client(tracer.socket) as client, stalls.CAUSES[cause](net) as transfer:
        client.tag(transfer.socket)
        client.ask("begin", sync="s")
        transfer.start()
        time.sleep(SPAN_S.get(cause, SPAN_DEFAULT_S))
        return client.row(op="end")["limited_by"]
