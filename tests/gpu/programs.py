"""The programs and libraries of a build tree that the sections use, and the folder with wheels of other packages, if it has one."""
NEEDED = ("weightd", "weightd-cuda", "weightctl", "libweightd.so", "libweightd-train.so", "gpu/agent", "gpu/digest")
OPTIONAL = ("weightd-sync", "weightd-sync-local", "weightd-sync-tcp", "weightd-sync-gloo", "weightd-sync-nccl", "weightd-trace",
            "libnccl-profiler-weightd.so")
WHEELS = "wheels"
