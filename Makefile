# weightd. `make help` lists what this file can do.
#
# One pass of wildcards finds the sources; a new .c file in a known folder needs no line here. Parts
# that need a library which may be absent are chosen by file, and named once at the end of the build.

V ?= 0
SAN ?=
B := build$(if $(SAN),-$(SAN))

PREFIX ?= /usr/local
bindir ?= $(PREFIX)/bin
sbindir ?= $(PREFIX)/sbin
libdir ?= $(PREFIX)/lib
includedir ?= $(PREFIX)/include
mandir ?= $(PREFIX)/share/man
docdir ?= $(PREFIX)/share/doc/weightd
unitdir ?= $(PREFIX)/lib/systemd/system
generatordir ?= $(unitdir)-generators
sysusersdir ?= $(PREFIX)/lib/sysusers.d
tmpfilesdir ?= $(PREFIX)/lib/tmpfiles.d
catalogdir ?= $(PREFIX)/lib/systemd/catalog
completiondir ?= $(PREFIX)/share/bash-completion/completions
zshcompletiondir ?= $(PREFIX)/share/zsh/site-functions
fishcompletiondir ?= $(PREFIX)/share/fish/vendor_completions.d
# Debian's Python looks in /usr/lib/python3/dist-packages, and under other prefixes in one of its version.
pythondir ?= $(PREFIX)/lib/python$(if $(filter /usr,$(PREFIX)),3,$(python_version))/dist-packages

CC = gcc
CXX = g++
CLANG ?= clang
NVCC ?= $(or $(call has_program,nvcc),$(wildcard /usr/local/cuda/bin/nvcc))
PYTHON ?= /usr/bin/python3
python_version = $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
# -O1 takes gcc 40% less for sanitized objects, and lines alone, which reports of sanitizers name, take it another 20% less.
CFLAGS ?= $(if $(SAN),-O1 -g1,-O2 -g)
FUZZ_SECONDS ?= 60
MODEL ?= build/model

has_flag = $(shell $(CC) -Werror $(1) -E -x c /dev/null >/dev/null 2>&1 && echo $(1))

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition \
	-Wvla -Wformat=2 -Wundef -Wpointer-arith -Wwrite-strings -Wconversion -Wsign-conversion
# -fPIC throughout, so that every file is compiled once. What the library exports is written in one
# place, libclient/libweightd.map, hence no -fvisibility.
BASE := -std=gnu17 -D_GNU_SOURCE -I. -Ilibclient/include -Ilibclient/train/include -fPIC -fno-semantic-interposition -pthread \
	$(shell pkg-config --cflags-only-I jansson openssl 2>/dev/null)
SAN_address := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
SAN_coverage := --coverage
SAN_thread := -fsanitize=thread -fno-omit-frame-pointer
ifneq ($(SAN),)
SANFLAGS := $(or $(SAN_$(SAN)),$(error SAN is 'address', 'thread' or 'coverage', not '$(SAN)'))
endif
# Hardening of everything that is installed. It stands behind CPPFLAGS, as distributions set a lower level of FORTIFY there.
# Sanitized builds go without: FORTIFY's functions bypass interceptors, and zeroed variables hide reads of uninitialized
# ones. FORTIFY needs an optimized build; gcc before 12 lacks the last flag.
ifeq ($(SAN),)
HARDEN := -fstack-protector-strong $(if $(filter-out -O0,$(lastword $(filter -O%,$(CFLAGS)))),-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3) \
	$(call has_flag,-ftrivial-auto-var-init=zero)
HARDEN_LINK := -Wl,-z,relro,-z,now,-z,noexecstack
endif
ALL_CFLAGS := $(BASE) $(CFLAGS) $(CPPFLAGS) $(WARN) $(if $(WERROR),-Werror) $(SANFLAGS) $(HARDEN)
# Gloo alone speaks C++, and asks for this much of it; today's release for gnu++20.
CXXSTD ?= gnu++17
ALL_CXXFLAGS := $(filter-out -std=%,$(BASE)) -std=$(CXXSTD) $(CFLAGS) $(CPPFLAGS) \
	$(filter-out -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition,$(WARN)) \
	$(if $(WERROR),-Werror) $(SANFLAGS) $(HARDEN)
ALL_LDFLAGS := -pthread -Wl,--as-needed $(LDFLAGS) $(SANFLAGS) $(HARDEN_LINK)

version = $(shell sed -n 's/^.define WEIGHTD_VERSION_$(1) //p' libclient/include/weightd.h)
SOVERSION := $(call version,MAJOR)
VERSION := $(SOVERSION).$(call version,MINOR).$(call version,PATCH)

# --- Libraries and programs of this machine -----------------------------------------------------

has_pkg = $(shell pkg-config --exists $(1) 2>/dev/null && echo yes)
has_program = $(shell command -v $(1) 2>/dev/null)
libs = $(shell pkg-config --libs $(1) 2>/dev/null)

HAVE_INIH := $(call has_pkg,inih)
HAVE_OPENSSL := $(call has_pkg,openssl)
HAVE_MICROHTTPD := $(call has_pkg,libmicrohttpd)
HAVE_URING := $(call has_pkg,liburing)
# With PROTOCOLS_STR and curl_easy_header().
HAVE_CURL := $(shell pkg-config --atleast-version=7.85 libcurl 2>/dev/null && echo yes)
HAVE_GLOO := $(and $(call has_program,$(CXX)),$(wildcard /usr/include/gloo/transport/tcp/device.h))
BPFTOOL := $(or $(call has_program,bpftool),$(wildcard /usr/sbin/bpftool))
HAVE_BPF := $(and $(call has_pkg,libbpf),$(call has_program,$(CLANG)),$(BPFTOOL))
HAVE_SDT := $(shell $(CC) -E -include sys/sdt.h -x c /dev/null >/dev/null 2>&1 && echo yes)
HAVE_CMOCKA := $(call has_pkg,cmocka)
HAVE_SCDOC := $(call has_program,scdoc)
HAVE_PYTHON := $(call has_program,$(PYTHON))
HAVE_FUZZER := $(and $(call has_program,$(CLANG)),$(wildcard \
	$(shell $(CLANG) -print-file-name=lib/linux 2>/dev/null)/libclang_rt.fuzzer-*.a))

MISSING := $(if $(call has_pkg,jansson),,libjansson-dev) $(if $(call has_pkg,libxxhash),,libxxhash-dev)
WITHOUT := $(if $(HAVE_INIH),,'weightd.conf (libinih-dev)') \
	$(if $(HAVE_OPENSSL),,'weightd-sync and weightctl pki (libssl-dev)') \
	$(if $(HAVE_MICROHTTPD),,'weightctl metrics --listen (libmicrohttpd-dev)') \
	$(if $(HAVE_URING),,'reads by io_uring (liburing-dev)') \
	$(if $(HAVE_CURL),,'loads from URLs (libcurl4-openssl-dev)') \
	$(if $(HAVE_GLOO),,'weightd-sync-gloo and training on several nodes (libgloo-dev g++)') \
	$(if $(HAVE_BPF),,'weightd-trace (libbpf-dev clang bpftool)') \
	$(if $(HAVE_SDT),,'probes of weightd (systemtap-sdt-dev)') \
	$(if $(HAVE_CMOCKA),,'unit tests (libcmocka-dev)') \
	$(if $(HAVE_SCDOC),,'man pages (scdoc)') \
	$(if $(HAVE_PYTHON),,'man pages of weightctl, calls and the protocol (python3)') \
	$(if $(HAVE_FUZZER),,'fuzz targets (clang libclang-rt-14-dev)')

# --- Sources ------------------------------------------------------------------------------------

# A variant has files NOUN-*.c, one of which is built.
INI := server/base/ini-$(if $(HAVE_INIH),inih,none).c
PROBE := server/buffers/probe-$(if $(HAVE_SDT),sdt,none).c
objects = $(patsubst %.c,$(B)/obj/%.o,$(1))

IPC := $(call objects,$(wildcard ipc/*.c ipc/base/*.c))
# Plans of reshards: weightctl and agents make them, engines execute them.
RESHARD := $(call objects,$(filter-out ipc/reshard/slicing%,$(wildcard ipc/reshard/*.c)))
# The rules of tensor parallelism.
SLICING := $(call objects,$(wildcard ipc/reshard/slicing*.c) ipc/reshard/split.c)
# Linked into clients and weightd-cuda; weightd works without it.
CUDA := $(call objects,$(wildcard ipc/cuda/*.c))
CHOSEN := server/base/ini-% server/buffers/probe-% server/base/fault.c
# Both ends of what weightd and weightd-cuda say to each other.
PROTOCOL := $(call objects,server/cuda/protocol.c)
# Linked into programs that use jansson; weightd does not.
JSON_BASE := $(call objects,$(wildcard server/base/json/*.c))
BASE_OBJECTS := $(call objects,$(filter-out $(CHOSEN),$(wildcard server/base/*.c)) $(INI))
SERVER_ROOMS := server server/backend server/buffers server/groups server/memory server/requests server/restart server/state server/base/threads
SERVER := $(call objects,$(filter-out $(CHOSEN),$(wildcard $(SERVER_ROOMS:%=%/*.c))) $(PROBE)) $(BASE_OBJECTS) $(PROTOCOL)
# weightd with points where it dies: the files that know them have objects of their own.
FAULTY := $(patsubst %.c,$(B)-faults/obj/%.o,$(shell grep -l '"server/base/fault\.h"' $(SERVER_ROOMS:%=%/*.c) server/base/fault.c))
SERVER_FAULTY := $(FAULTY) $(filter-out $(FAULTY:$(B)-faults/%=$(B)/%),$(SERVER))
ALLOCATOR := $(call objects,$(wildcard server/cuda/*.c))
PRELOAD := $(call objects,$(wildcard server/load/*.c)) $(BASE_OBJECTS)
CLIENT := $(call objects,$(filter-out libclient/load/disk/ring-% libclient/load/http/fetcher-%,$(wildcard $(addsuffix /*.c,libclient $(addprefix libclient/,connection version image cuda select load load/disk load/folder load/http load/torch copy save diff directory)))) \
	libclient/load/disk/ring-$(if $(HAVE_URING),liburing,none).c \
	libclient/load/http/fetcher-$(if $(HAVE_CURL),curl,none).c) $(SLICING)
TRAIN := $(call objects,$(wildcard $(addprefix libclient/train/,*.c plan/*.c engine/*.c kernels/*.c nodes/*.c save/*.c)))
TRAIN_GLOO := $(patsubst %.cc,$(B)/obj/%.o,$(wildcard libclient/train/nodes/*.cc))
WEIGHTCTL_VARIANTS := libclient/weightctl/verbs/pki-%.c libclient/weightctl/http/http_server-%.c
WEIGHTCTL := $(call objects,$(filter-out $(WEIGHTCTL_VARIANTS),$(wildcard libclient/weightctl/*.c libclient/weightctl/*/*.c)) \
	libclient/weightctl/verbs/pki-$(if $(HAVE_OPENSSL),openssl,none).c \
	libclient/weightctl/http/http_server-$(if $(HAVE_MICROHTTPD),microhttpd,none).c) $(RESHARD) \
	$(call objects,ipc/base/libsystemd.c ipc/base/pattern.c ipc/base/permission.c ipc/base/suggestion.c)
# Code that the agent shares with the processes that work for it.
SYNC_BASE := $(call objects,$(wildcard server/sync/base/*.c))
SYNC_ENGINE := $(call objects,$(wildcard server/sync/engine/*.c)) $(SYNC_BASE)
SYNC := $(call objects,$(wildcard $(addprefix server/sync/,*.c net/*.c state/*.c coordinator/*.c participant/*.c))) $(JSON_BASE) $(RESHARD)
SYNC_LOCAL := $(call objects,$(wildcard server/sync/local/*.c) server/base/headroom.c server/sync/nccl/nccl.c) $(RESHARD)
# TCP sockets of engines, with or without TLS.
SYNC_STREAM := $(call objects,$(wildcard server/sync/stream/*.c))
SYNC_TCP := $(call objects,$(wildcard server/sync/tcp/*.c)) $(SYNC_STREAM)
SYNC_GLOO := $(call objects,$(wildcard server/sync/gloo/*.c)) $(SYNC_STREAM) \
	$(patsubst %.cc,$(B)/obj/%.o,$(wildcard server/sync/gloo/*.cc)) $(RESHARD)
SYNC_NCCL := $(call objects,$(wildcard server/sync/nccl/*.c)) $(RESHARD)
TRACE := $(call objects,$(filter-out %.bpf.c,$(wildcard bpf/*.c $(addprefix bpf/,$(addsuffix /*.c,base elf tcp event rdma probe)) ipc/base/*.c)) server/base/loop.c) $(JSON_BASE)
# A guest in trainers' processes: nothing but the C library.
NCCL_PLUGIN_OBJECTS := $(call objects,$(wildcard bpf/nccl/*.c) $(addprefix ipc/base/,fd.c num.c utf8.c))
NCCL_PLUGIN_MAP := bpf/nccl/libnccl-profiler-weightd.map
MAP := libclient/libweightd.map
TRAIN_MAP := libclient/train/libweightd-train.map
TRAIN_GLOO_MAP := libclient/train/libweightd-train-gloo.map

PTX := libclient/cuda/digest.ptx
FATBIN := libclient/cuda/digest.fatbin

LIB := $(B)/libweightd.so
TRAIN_LIB := $(B)/libweightd-train.so
# The library opens it where a job has several nodes.
TRAIN_GLOO_LIB := $(if $(HAVE_GLOO),$(B)/libweightd-train-gloo.so)
NCCL_PLUGIN := $(B)/libnccl-profiler-weightd.so
SYNC_PROGRAMS := $(if $(HAVE_OPENSSL),$(addprefix $(B)/,weightd-sync weightd-sync-local weightd-sync-tcp weightd-sync-nccl)) \
	$(if $(and $(HAVE_OPENSSL),$(HAVE_GLOO)),$(B)/weightd-sync-gloo)
TRACE_PROGRAM := $(if $(HAVE_BPF),$(B)/weightd-trace)
PROGRAMS := $(B)/weightd $(B)/weightd-cuda $(B)/weightd-load $(B)/weightctl $(SYNC_PROGRAMS) $(TRACE_PROGRAM)
# Pages have the date of the packages' last entry, so that two builds are the same.
man_date = $(or $(SOURCE_DATE_EPOCH),$(shell date +%s -d "$$(sed -n 's/^ -- .*>  //p' packaging/debian/changelog | head -n 1)"))
PUBLIC_HEADERS := libclient/include/weightd.h libclient/train/include/weightd-train.h
MAN_CALLS := $(if $(HAVE_PYTHON),$(B)/man/calls)
MAN_VERBS := $(if $(and $(HAVE_SCDOC),$(HAVE_PYTHON)),$(B)/man/verbs)
MAN := $(if $(HAVE_SCDOC),$(filter-out %/weightctl.1 $(if $(HAVE_PYTHON),,%/weightd-protocol.7),\
	$(patsubst packaging/man/%.scd,$(B)/man/%,$(wildcard packaging/man/*.scd))))
UNIT := $(if $(HAVE_CMOCKA),$(patsubst tests/%.c,$(B)/%,$(filter-out \
	$(if $(HAVE_OPENSSL),,tests/unit/test_sync_%) $(if $(HAVE_BPF),,$(addprefix tests/unit/test_,mmap_watch.c ring.c)),$(wildcard tests/unit/test_*.c))))
UNIT_SYNC := $(filter $(B)/unit/test_sync_%,$(UNIT))
UNIT_TRAIN := $(filter $(B)/unit/test_train_%,$(UNIT))
UNIT_BPF := $(filter $(B)/unit/test_mmap_watch,$(UNIT))
# The parser that Python's one is compared with.
TOOL_SAFETENSORS := $(B)/unit/tool_safetensors
# Benches that look inside weightd-sync.
TOOLS_SYNC := $(if $(HAVE_CMOCKA),$(if $(HAVE_OPENSSL),$(addprefix $(B)/unit/tool_,members connections)))
# A .c file with a header beside it is a part of every program in its folder, the others are programs.
parts = $(filter $(patsubst %.h,%.c,$(wildcard tests/$(1)/*.h)),$(wildcard tests/$(1)/*.c))
programs = $(filter-out $(call parts,$(1)),$(wildcard tests/$(1)/*.c))
DEMO := $(patsubst tests/%.c,$(B)/%,$(call programs,demo))
SOAK := $(patsubst tests/%.c,$(B)/%,$(call programs,soak))
REF := $(patsubst tests/%.c,$(B)/%,$(call programs,ref))
GPU := $(patsubst tests/%.c,$(B)/%,$(call programs,gpu))
BENCHES := $(patsubst tests/%.c,$(B)/%,$(call programs,bench))
BENCHES_TRAIN := $(patsubst tests/%.c,$(B)/%,$(call programs,bench/train))
ATTACKERS := $(patsubst tests/%.c,$(B)/%,$(call programs,bench/tenants))
FUZZ := $(filter-out $(if $(HAVE_CMOCKA),,sync_agent),$(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c)))

# A stand-in for the driver, which the tests put in its place: never sanitized, so that every program, plain
# or not, can open it.
FAKE := build/fake/libcuda.so.1
FAKE_OBJECTS := $(patsubst %.c,build/fake/obj/%.o,\
	$(wildcard tests/fake/*.c ipc/base/*.c) ipc/digest.c $(wildcard ipc/hash*.c))

# Likewise one for NCCL, in a folder of its own, where nothing finds it that is not to; and one that lacks half of it.
FAKE_NCCL := build/fake/nccl/libnccl.so.2
FAKE_NCCL_LACKING := build/fake/nccl-lacking/libnccl.so.2
FAKE_NCCL_OBJECTS := $(patsubst %.c,build/fake/obj/%.o,\
	$(wildcard tests/fake/nccl/*.c ipc/base/*.c) tests/fake/failure.c tests/fake/state.c)

# One for verbs: its symbols have more than one version.
FAKE_VERBS := build/fake/verbs/libibverbs.so.1

# And a kernel with TLS, for a program that is started with it in LD_PRELOAD.
FAKE_KTLS := $(if $(HAVE_OPENSSL),build/fake/ktls.so)

# A kernel that refuses BPF programs, and a system without threads, likewise.
FAKE_REFUSE := build/fake/refuse.so
FAKE_THREADS := build/fake/no-threads.so

# And NCCL for its profiler's plug-ins, sanitized as they are, with two more of them.
NCCL_HOST := $(addprefix $(B)/nccl-host/,host libnccl-profiler-next.so libnccl-profiler-old.so)

ifeq ($(V),0)
Q := @
say = @printf '  %-7s %s\n' '$(1)' '$@';
endif

# --- Build --------------------------------------------------------------------------------------

.PHONY: all programs faults unit threaded demos refs benches attackers soaks fakes gpu-programs man required
.DELETE_ON_ERROR:

all: programs demos refs man
	@for part in $(WITHOUT); do echo "weightd: built without $$part"; done

# Private, or the libraries that they are linked with would have it.
$(PROGRAMS) $(B)/install/weightctl $(B)/install/weightd-sync-local $(B)-faults/weightd: private ALL_LDFLAGS += -pie

programs: $(PROGRAMS) $(LIB) $(TRAIN_LIB) $(TRAIN_GLOO_LIB) $(NCCL_PLUGIN)
faults: $(B)-faults/weightd $(B)-faults/weightd-cuda
unit: $(UNIT) $(TOOL_SAFETENSORS) $(NCCL_HOST)
# Programs that the tests marked `threads` run.
threaded: $(filter-out $(addprefix $(B)/weightd-sync-,tcp gloo nccl),$(PROGRAMS)) $(LIB) $(NCCL_PLUGIN) $(NCCL_HOST) \
	$(filter $(addprefix $(B)/unit/,$(file <tests/unit/threads)),$(UNIT))
demos: $(DEMO)
refs: $(REF)
attackers: $(ATTACKERS)
benches: $(BENCHES) $(BENCHES_TRAIN) $(ATTACKERS) $(B)/unit/tool_flip $(B)/unit/tool_optimizer $(TOOLS_SYNC) $(NCCL_HOST)
soaks: $(SOAK)
fakes: $(FAKE) $(FAKE_NCCL) $(FAKE_NCCL_LACKING) $(FAKE_VERBS) $(FAKE_KTLS) $(FAKE_REFUSE) $(FAKE_THREADS)
gpu-programs: $(GPU)
man: $(MAN) $(MAN_CALLS) $(MAN_VERBS)

required:
	@$(if $(strip $(MISSING)),echo 'weightd: needs $(strip $(MISSING)); run packaging/install-deps' >&2; false)

$(B)/obj/%.o: %.c Makefile | required
	$(call say,CC)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

$(B)-faults/obj/%.o: %.c Makefile | required
	$(call say,CC)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -DWEIGHTD_FAULTS -MMD -MP -c -o $@ $<

# gcc's -O2 makes no vectors of its loops.
$(B)/obj/server/sync/gloo/mean.o: ALL_CFLAGS += -O3

# Likewise. It has the same bits on every instruction set.
$(B)/obj/libclient/select/cast.o: ALL_CFLAGS += $(if $(SAN),,-O3) -ffp-contract=off -fno-trapping-math

# Kernels have the same bits on every instruction set: a compiler must not fuse operations.
$(B)/obj/libclient/train/kernels/%.o: ALL_CFLAGS += $(if $(SAN),,-O3) -ffp-contract=off -fno-math-errno -fno-trapping-math $(ISA)
$(B)/obj/tests/unit/test_train_kernels.o: ALL_CFLAGS += -ffp-contract=off
ifneq ($(filter x86_64%,$(shell $(CC) -dumpmachine)),)
$(foreach v,v2 v3 v4,$(eval $(B)/obj/libclient/train/kernels/$(v).o: ISA := -march=x86-64-$(v)))
# In every tree, that of the fakes included.
%/ipc/hash_avx2.o: private ALL_CFLAGS += -mavx2
endif

$(B)/obj/%.o: %.cc Makefile | required
	$(call say,CXX)mkdir -p $(@D)
	$(Q)$(CXX) $(ALL_CXXFLAGS) -MMD -MP -c -o $@ $<

$(B)/obj/libclient/cuda/digest_image.o: $(FATBIN) $(PTX) # as gcc does not tell
$(B)/obj/libclient/load/torch/convert_text.o: libclient/load/torch/convert.py

SERVER_LIBS = $(call libs,$(if $(HAVE_INIH),inih))

# Tests start these thousands of times, and half of a start was finding the sanitizers' libraries and looking for leaks in
# their data. What a library of ours needs of them, the program that it is linked into has.
ifeq ($(SAN),address)
$(PROGRAMS) $(B)-faults/weightd $(LIB) $(TRAIN_LIB) $(TRAIN_GLOO_LIB): ALL_LDFLAGS += -static-libasan -static-libubsan
endif

$(B)/weightd: $(SERVER) $(IPC)
	$(call say,LINK)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(SERVER_LIBS)

$(B)-faults/weightd: $(SERVER_FAULTY) $(IPC)
	$(call say,LINK)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(SERVER_LIBS)

# It starts the allocator beside it, which has no such point.
$(B)-faults/weightd-cuda: $(B)/weightd-cuda
	$(Q)mkdir -p $(@D) && cp $< $@

$(B)/weightd-cuda: $(ALLOCATOR) $(IPC) $(CUDA)
	$(call say,LINK)$(CC) $(ALL_LDFLAGS) -o $@ $^

$(B)/weightd-load: $(PRELOAD) $(IPC)
	$(call say,LINK)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(SERVER_LIBS)

SYNC_LIBS = $(call libs,jansson openssl)

$(B)/weightd-sync: $(SYNC) $(SYNC_BASE) $(BASE_OBJECTS) $(IPC)
	$(call say,LINK)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(SYNC_LIBS) $(SERVER_LIBS)

SYNC_LOCAL_LINK = $(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) -L$(B) -lweightd $(SYNC_LIBS)

# In a build tree, it finds the library beside it; the one that is installed, where the system does.
$(B)/weightd-sync-local: $(SYNC_LOCAL) $(SYNC_BASE) $(IPC) $(LIB)
	$(call say,LINK)$(SYNC_LOCAL_LINK) -Wl,-rpath,'$$ORIGIN'

$(B)/install/weightd-sync-local: $(SYNC_LOCAL) $(SYNC_BASE) $(IPC) $(LIB)
	$(call say,LINK)mkdir -p $(@D)
	$(Q)$(SYNC_LOCAL_LINK)

$(B)/weightd-sync-tcp: $(SYNC_TCP) $(SYNC_ENGINE) $(BASE_OBJECTS) $(IPC)
	$(call say,LINK)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(SYNC_LIBS) $(SERVER_LIBS)

$(B)/weightd-sync-gloo: $(SYNC_GLOO) $(SYNC_ENGINE) $(BASE_OBJECTS) $(IPC)
	$(call say,LINK)$(CXX) $(ALL_LDFLAGS) -o $@ $^ -lgloo $(SYNC_LIBS) $(SERVER_LIBS)

$(B)/weightd-sync-nccl: $(SYNC_NCCL) $(SYNC_ENGINE) $(BASE_OBJECTS) $(IPC) $(CUDA)
	$(call say,LINK)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(SYNC_LIBS) $(SERVER_LIBS)

# The name that libbpf gives to this machine, for reading its registers.
BPF_ARCH = $(patsubst aarch64%,arm64,$(patsubst x86_64%,x86,$(shell $(CC) -print-multiarch)))

# All build trees share the programs that run in the kernel.
build/bpf/%.bpf.o: bpf/%.bpf.c Makefile
	$(call say,BPF)mkdir -p $(@D)
	$(Q)$(CLANG) -MMD -MP -g -O2 -target bpf -mcpu=v3 -Wall $(if $(WERROR),-Werror) -D__TARGET_ARCH_$(BPF_ARCH) -I. \
		-idirafter /usr/include/$(shell $(CC) -print-multiarch) -c -o $@ $<

# make must not delete the objects as intermediate files of the skeletons.
BPF_OBJECTS := $(patsubst %.c,build/%.o,$(wildcard bpf/*/*.bpf.c))
.SECONDARY: $(BPF_OBJECTS)

# FOLDER/x.bpf.c becomes <bpf/FOLDER/x.skel.h> with struct x_bpf.
build/bpf/%.skel.h: build/bpf/%.bpf.o
	$(call say,SKEL)$(BPFTOOL) gen skeleton $< name $(notdir $*)_bpf >$@

SKELETON_USERS := $(call objects,$(shell grep -l '\.skel\.h>' bpf/*/*.c))
$(SKELETON_USERS): $(BPF_OBJECTS:.bpf.o=.skel.h)
$(SKELETON_USERS): ALL_CFLAGS += -isystem build

$(B)/weightd-trace: $(TRACE)
	$(call say,LINK)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(call libs,libbpf jansson)

$(NCCL_PLUGIN): $(NCCL_PLUGIN_OBJECTS) $(NCCL_PLUGIN_MAP)
	$(call say,LINK)$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,$(@F) -Wl,--version-script=$(NCCL_PLUGIN_MAP) \
		$(if $(SAN),,-Wl,--no-undefined) -o $@ $(filter %.o,$^)

CLIENT_LIBS = $(call libs,jansson $(if $(HAVE_URING),liburing))

$(LIB).$(VERSION): $(CLIENT) $(IPC) $(CUDA) $(MAP)
	$(call say,LINK)$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,libweightd.so.$(SOVERSION) \
		-Wl,--version-script=$(MAP) $(if $(SAN),,-Wl,--no-undefined) \
		-o $@ $(filter %.o,$^) $(CLIENT_LIBS)

$(LIB): $(LIB).$(VERSION)
	$(Q)ln -sf $(<F) $(LIB).$(SOVERSION) && ln -sf $(LIB:$(B)/%=%).$(SOVERSION) $@

TRAIN_LINK = $(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,libweightd-train.so.$(SOVERSION) \
	-Wl,--version-script=$(TRAIN_MAP) $(if $(SAN),,-Wl,--no-undefined) \
	-o $@ $(filter %.o,$^) -L$(B) -lweightd $(call libs,jansson) -lm

$(TRAIN_LIB).$(VERSION): $(TRAIN) $(IPC) $(LIB) $(TRAIN_MAP)
	$(call say,LINK)$(TRAIN_LINK) -Wl,-rpath,'$$ORIGIN'

$(B)/install/libweightd-train.so: $(TRAIN) $(IPC) $(LIB) $(TRAIN_MAP)
	$(call say,LINK)mkdir -p $(@D)
	$(Q)$(TRAIN_LINK)

$(TRAIN_LIB): $(TRAIN_LIB).$(VERSION)
	$(Q)ln -sf $(<F) $(TRAIN_LIB).$(SOVERSION) && ln -sf $(TRAIN_LIB:$(B)/%=%).$(SOVERSION) $@

# UBSan's checks of C++ classes need a library that programs in C do not have.
$(TRAIN_GLOO): ALL_CXXFLAGS += $(if $(SAN),-fno-sanitize=vptr)

$(B)/libweightd-train-gloo.so: $(TRAIN_GLOO) $(TRAIN_GLOO_MAP)
	$(call say,LINK)$(CXX) $(ALL_LDFLAGS) -shared -Wl,-soname,$(@F) -Wl,--version-script=$(TRAIN_GLOO_MAP) \
		$(if $(SAN),,-Wl,--no-undefined) -o $@ $(filter %.o,$^) -lgloo

WEIGHTCTL_LINK = $(CC) $(ALL_LDFLAGS) -o $@ $(WEIGHTCTL) -L$(B) -lweightd-train -lweightd \
	$(call libs,jansson $(if $(HAVE_OPENSSL),libcrypto)) -lm

$(B)/weightctl: $(WEIGHTCTL) $(LIB) $(TRAIN_LIB)
	$(call say,LINK)$(WEIGHTCTL_LINK) -Wl,-rpath,'$$ORIGIN'

# That of the wheel has them inside: an environment has its programs and its packages at places that depend on Python's version.
$(B)/whole/weightctl: $(WEIGHTCTL) $(CLIENT) $(TRAIN) $(IPC) $(CUDA)
	$(call say,LINK)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $^ $(if $(HAVE_OPENSSL),$(call libs,libcrypto)) $(CLIENT_LIBS) -lm

# The one that is installed finds the libraries where the system does.
$(B)/install/weightctl: $(WEIGHTCTL) $(LIB) $(TRAIN_LIB)
	$(call say,LINK)mkdir -p $(@D)
	$(Q)$(WEIGHTCTL_LINK)

$(B)/man/%: packaging/man/%.scd
	$(call say,MAN)mkdir -p $(@D)
	$(Q)SOURCE_DATE_EPOCH=$(man_date) scdoc <$< >$@

$(B)/man/weightd-protocol.7: packaging/man/weightd-protocol.7.scd packaging/protocol-page ipc/wire.h ipc/codec.c
	$(call say,MAN)mkdir -p $(@D)
	$(Q)$(PYTHON) packaging/protocol-page $(filter-out packaging/protocol-page,$^) >$@.scd
	$(Q)SOURCE_DATE_EPOCH=$(man_date) scdoc <$@.scd >$@
	$(Q)rm $@.scd

# A folder: weightctl.1, and a page for each of its verbs.
VERB_FILES := $(wildcard libclient/weightctl/verbs/*.c) libclient/weightctl/main.c
$(B)/man/verbs: packaging/man/weightctl.1.scd packaging/verb-pages $(VERB_FILES)
	$(call say,MAN)rm -rf $@
	$(Q)$(PYTHON) packaging/verb-pages $< $@ $(VERB_FILES)
	$(Q)for page in $@/*.scd; do SOURCE_DATE_EPOCH=$(man_date) scdoc <$$page >$${page%.scd} || exit; rm $$page; done

# A folder: a page for each call, or a few that belong together.
$(B)/man/calls: packaging/header-pages packaging/debian/changelog $(PUBLIC_HEADERS)
	$(call say,MAN)rm -rf $@
	$(Q)$(PYTHON) packaging/header-pages $@ $(VERSION) $(man_date) $(PUBLIC_HEADERS)

# Programs of the demo, the benches and the soak know weightd.h and nothing else.
$(DEMO): $(call objects,$(call parts,demo))
$(BENCHES): $(call objects,$(call parts,bench))
$(SOAK): $(call objects,$(call parts,soak))
$(DEMO) $(BENCHES) $(SOAK): $(B)/%: $(B)/obj/tests/%.o $(LIB)
	$(call say,LINK)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) -L$(B) -lweightd -Wl,-rpath,'$$ORIGIN/..' -lm

# Trainers know weightd-train.h, too.
$(REF): $(B)/%: $(B)/obj/tests/%.o $(call objects,$(call parts,ref)) $(LIB) $(TRAIN_LIB)
	$(call say,LINK)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) -L$(B) -lweightd-train -lweightd -Wl,-rpath,'$$ORIGIN/..' -lm

$(BENCHES_TRAIN): $(B)/%: $(B)/obj/tests/%.o $(call objects,$(call parts,bench/train) tests/bench/connection.c tests/bench/stopwatch.c) \
		$(LIB) $(TRAIN_LIB)
	$(call say,LINK)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) -L$(B) -lweightd-train -lweightd -Wl,-rpath,'$$ORIGIN/../..' -lm

# An attacker speaks the protocol without the library; its victim has it.
$(ATTACKERS): $(B)/%: $(B)/obj/tests/%.o $(call objects,$(call parts,bench/tenants) tests/bench/connection.c tests/bench/stopwatch.c) \
		$(IPC) $(LIB)
	$(call say,LINK)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) -L$(B) -lweightd -Wl,-rpath,'$$ORIGIN/../..' -lm

# Those of the GPU know the driver, too.
$(GPU): $(B)/%: $(B)/obj/tests/%.o $(call objects,$(call parts,gpu)) $(CUDA) $(IPC) $(LIB)
	$(call say,LINK)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) -L$(B) -lweightd -Wl,-rpath,'$$ORIGIN/..'

$(B)/obj/tests/demo/%.o $(B)/obj/tests/soak/%.o: ALL_CFLAGS += -O3
# Benches have stand-ins for the code of others, which has no flags of ours.
$(B)/obj/tests/bench/%.o: ALL_CFLAGS := $(filter-out $(HARDEN),$(ALL_CFLAGS)) -O3

build/fake/obj/%.o: %.c Makefile
	$(call say,CC)mkdir -p $(@D)
	$(Q)$(CC) $(BASE) $(CFLAGS) $(CPPFLAGS) $(WARN) $(if $(WERROR),-Werror) -MMD -MP -c -o $@ $<

$(FAKE): $(FAKE_OBJECTS) tests/fake/libcuda.map
	$(call say,LINK)$(CC) -pthread -shared -Wl,-soname,$(@F) -Wl,--version-script=tests/fake/libcuda.map \
		-Wl,--no-undefined -o $@ $(FAKE_OBJECTS)

$(FAKE_REFUSE): build/fake/obj/tests/fake/bpf/refuse.o
$(FAKE_THREADS): build/fake/obj/tests/fake/threads/none.o
$(FAKE_REFUSE) $(FAKE_THREADS):
	$(call say,LINK)$(CC) -shared -Wl,--no-undefined -o $@ $^

build/fake/ktls.so: build/fake/obj/tests/fake/ktls/ktls.o
	$(call say,LINK)$(CC) -shared -Wl,--no-undefined -o $@ $^ $(call libs,openssl)

$(FAKE_NCCL): tests/fake/nccl/libnccl.map
$(FAKE_NCCL_LACKING): tests/fake/nccl/lacking.map
$(FAKE_NCCL) $(FAKE_NCCL_LACKING): $(FAKE_NCCL_OBJECTS)
	$(call say,LINK)mkdir -p $(@D)
	$(Q)$(CC) -pthread -shared -Wl,-soname,$(@F) -Wl,--version-script=$(filter %.map,$^) \
		-Wl,--no-undefined -o $@ $(filter %.o,$^)

$(B)/nccl-host/host: $(addprefix $(B)/obj/tests/bpf/nccl/,host.o descr.o)
	$(call say,LINK)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^

$(B)/nccl-host/libnccl-profiler-next.so: NEWEST = 6
$(B)/nccl-host/libnccl-profiler-old.so: NEWEST = 4
$(B)/nccl-host/libnccl-profiler-%.so: tests/bpf/nccl/next.c Makefile
	$(call say,LINK)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -DNEWEST=$(NEWEST) -shared -Wl,-soname,$(@F) -o $@ $<

# Its functions begin as those of large libraries do.
build/fake/obj/tests/fake/verbs/%.o: BASE += -fno-shrink-wrap

$(FAKE_VERBS): build/fake/obj/tests/fake/verbs/verbs.o tests/fake/verbs/libibverbs.map
	$(call say,LINK)mkdir -p $(@D)
	$(Q)$(CC) -shared -Wl,-soname,$(@F) -Wl,--version-script=$(filter %.map,$^) -Wl,--no-undefined -o $@ $<

# Committed, so that nobody needs nvcc to build. A driver refuses PTX of a newer version than its own, whatever is in
# it: nothing in it is newer than 6.0 and Volta, which ptxas checks when it makes the fat binary. That has code for the
# GPUs below, which drivers of nvcc's major version or later load; not compressed, as they know several ways of that.
DIGEST_GPUS := 80 90 100
.PHONY: digest-kernel
digest-kernel: libclient/cuda/digest.cu
	$(if $(NVCC),,$(error nvcc is not here; name one by NVCC=))
	$(call say,NVCC)mkdir -p $(B)
	$(Q)$(NVCC) -ptx -arch=compute_75 -o $(B)/nvcc.ptx $<
	$(Q){ echo "// sha256 of digest.cu: $$(sha256sum $< | cut -d' ' -f1)"; \
		echo "// by 'make digest-kernel', nvcc $$($(NVCC) --version | sed -n 's/.* V//p')"; \
		sed '/^\/\//d; /^$$/d; s/^\.version.*/.version 6.0/; s/^\.target.*/.target sm_70/' $(B)/nvcc.ptx; } >$(PTX)
	$(Q)$(NVCC) -fatbin --no-compress $(foreach gpu,$(DIGEST_GPUS),-gencode arch=compute_$(gpu),code=sm_$(gpu)) \
		-Xfatbin --ident=sha256:$$(sha256sum $(PTX) | cut -d' ' -f1) -o $(FATBIN) $(PTX)

# --- Tests --------------------------------------------------------------------------------------

.PHONY: check check-san check-all flaky lint format demo demo-train train-table bench matrix soak fuzz deps model torch2 fetch-programs fetch-llama deepspeed perfetto kubernetes guest

# The part of weightctl that unit tests call, alone and against weightd-sync.
PUSH_MODEL := $(call objects,libclient/weightctl/verbs/push_model.c)
UNDER_TEST := $(IPC) $(CUDA) $(CLIENT) $(filter-out $(B)/obj/server/main.o,$(SERVER)) \
	$(PUSH_MODEL) $(RESHARD) $(call objects,$(addprefix libclient/weightctl/,http/connections.c http/listener.c output/rate.c) bpf/base/cgroup.c bpf/tcp/socket_census.c bpf/tcp/stall.c \
	$(addprefix bpf/rdma/,nldev.c qp.c rdma_port.c sysfs_line.c) \
	$(addprefix bpf/probe/,attached.c gpu_handle.c uprobe_multi.c) $(wildcard bpf/elf/*.c))
TEST_LIBS = $(CLIENT_LIBS) $(SERVER_LIBS) -lm
# Two daemons do not go into one program: tests of weightd-sync, test_sync_*, are linked with its parts.
UNDER_SYNC_TEST := $(filter-out $(B)/obj/server/sync/main.o,$(SYNC)) $(SYNC_BASE) $(BASE_OBJECTS) $(IPC) $(PUSH_MODEL) \
	$(RESHARD)

# Archives of them: the linker takes what a test calls, and leaves the other 200 objects. They are thin, lists of objects.
UNDER_TEST_A := $(B)/unit/server.a
UNDER_SYNC_TEST_A := $(B)/unit/sync.a
UNDER_TRAIN_TEST_A := $(B)/unit/train.a
$(UNDER_TEST_A): $(UNDER_TEST)
$(UNDER_SYNC_TEST_A): $(UNDER_SYNC_TEST)
$(UNDER_TRAIN_TEST_A): $(TRAIN) $(IPC)
ARCHIVE = mkdir -p $(@D) && rm -f $@ && $(AR) --thin -crs $@ $^
$(UNDER_TEST_A) $(UNDER_SYNC_TEST_A) $(UNDER_TRAIN_TEST_A):
	$(call say,AR)$(ARCHIVE)

# They compute little: gcc takes half the time for them with less optimization, where the caller leaves that to us.
ifeq ($(origin CFLAGS),file)
$(B)/obj/tests/unit/test_%.o: ALL_CFLAGS += $(if $(SAN),,-O1 -g1)
endif

# It has a libbpf of its own.
$(B)/unit/test_ring: $(call objects,bpf/base/ring.c)
$(B)/unit/test_probed_file: $(call objects,bpf/probe/probed_file.c)
$(filter-out $(UNIT_SYNC) $(UNIT_BPF) $(UNIT_TRAIN),$(UNIT)): $(B)/%: $(B)/obj/tests/%.o $(UNDER_TEST_A)
	$(call say,LINK)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(UNDER_TEST_A) $(call libs,cmocka) $(TEST_LIBS)

$(UNIT_SYNC) $(TOOLS_SYNC): $(B)/%: $(B)/obj/tests/%.o $(call objects,$(call parts,unit)) $(UNDER_SYNC_TEST_A)
	$(call say,LINK)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(call libs,cmocka) $(SYNC_LIBS) $(SERVER_LIBS) -lm

# Tests of the training library see its insides, and the rest of weightd through its library.
$(UNIT_TRAIN): $(B)/%: $(B)/obj/tests/%.o $(UNDER_TRAIN_TEST_A) $(LIB)
	$(call say,LINK)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(UNDER_TRAIN_TEST_A) -L$(B) -lweightd -Wl,-rpath,'$$ORIGIN/..' \
		$(call libs,cmocka jansson) -lm

# They look for it beside themselves, as the library does.
UNIT_TRAIN_GLOO_LIB := $(TRAIN_GLOO_LIB:$(B)/%=$(B)/unit/%)
$(UNIT_TRAIN): | $(UNIT_TRAIN_GLOO_LIB)
$(UNIT_TRAIN_GLOO_LIB): $(TRAIN_GLOO_LIB)
	$(Q)mkdir -p $(@D) && ln -sf ../$(<F) $@

# Kernels, words and transfers of their ranks may be the last.
$(B)/unit/test_train_nodes_state: private ALL_LDFLAGS += -Wl,--wrap=kernels_get -Wl,--wrap=wait_publish
$(B)/unit/test_train_replays: private ALL_LDFLAGS += -Wl,--wrap=wait_publish -Wl,--wrap=reallocarray
$(B)/unit/test_train_values: private ALL_LDFLAGS += -Wl,--wrap=kernels_get -Wl,--wrap=wait_publish -Wl,--wrap=link_exchange

# Turns have a clock that moves by the work that is done in them, and listings one that is late.
$(B)/unit/test_turns $(B)/unit/test_listing: private ALL_LDFLAGS += -Wl,--wrap=num_now_ns
$(B)/unit/test_turns: private ALL_LDFLAGS += -Wl,--wrap=epoll_wait

# A service manager that receives as fast as messages are sent, each of which lasts.
$(B)/unit/test_notify: private ALL_LDFLAGS += -Wl,--wrap=num_now_ns -Wl,--wrap=sendmsg

# A journal that reads when the test lets it.
$(B)/unit/test_journal: private ALL_LDFLAGS += -Wl,--wrap=libsystemd_open

# Calls that return memory to the kernel are counted.
$(B)/unit/test_server: private ALL_LDFLAGS += -Wl,--wrap=malloc_trim

# Torch is compared with the optimizer itself.
$(B)/unit/tool_optimizer: $(B)/%: $(B)/obj/tests/%.o $(call objects,libclient/train/optimizer.c $(wildcard libclient/train/kernels/*.c))
	$(call say,LINK)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ -lm

# Tests of the output of BPF programs link all of weightd-trace.
$(UNIT_BPF): $(B)/%: $(B)/obj/tests/%.o $(filter-out $(B)/obj/bpf/main.o,$(TRACE))
	$(call say,LINK)mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(call libs,cmocka libbpf jansson)

# A bench that looks inside the server.
$(TOOL_SAFETENSORS) $(B)/unit/tool_flip: $(B)/%: $(B)/obj/tests/%.o $(UNDER_TEST_A)
	$(call say,LINK)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(TEST_LIBS)

TEST_ENV = WEIGHTD_LIBRARY=$(abspath build/libweightd.so) WEIGHTD_MODEL=$(abspath $(MODEL)) \
	WEIGHTD_PYTHON_TORCH2=$(abspath $(wildcard build/torch2/bin/python)) \
	WEIGHTD_PYTHON_PROGRAMS=$(abspath $(wildcard build/programs/bin/python))
PYTEST = WEIGHTD_BUILD=$(abspath $(B)) $(TEST_ENV) $(PYTHON) -m pytest
LANES = $(TEST_ENV) $(PYTHON) tests/lanes

# install-deps changes the result of pkg-config, hence the second make.
check: deps
	$(Q)$(MAKE) --no-print-directory to-check
	$(Q)$(LANES) check $(LANE)

check-san: deps
	$(Q)$(MAKE) --no-print-directory to-check-san
	$(Q)$(LANES) san $(LANE)

# Both at once keep the processors busy to the end. The lanes build the sanitized trees beside tests of the plain one.
SAN_BUILD ?= make --no-print-directory -j$(shell nproc) to-check-san
check-all: deps
	$(Q)$(MAKE) --no-print-directory to-check
	$(Q)WEIGHTD_SAN_BUILD='$(SAN_BUILD)' $(LANES) all $(LANE)

.PHONY: to-check to-check-san
to-check:
	$(Q)$(MAKE) --no-print-directory model || true # offline: the tests that need it will skip
	$(Q)$(MAKE) --no-print-directory all faults unit benches soaks fakes gpu-programs fuzz-sources

# Python loads the plain library, because a sanitized one cannot be loaded into a plain interpreter;
# the daemon, weightctl and every C program of the tests are sanitized.
to-check-san:
	$(Q)$(MAKE) --no-print-directory model || true
	$(Q)$(MAKE) --no-print-directory all fakes
	$(Q)$(MAKE) --no-print-directory SAN=address programs faults unit refs attackers gpu-programs
	$(Q)$(MAKE) --no-print-directory SAN=thread threaded

# Lists the tests that need not run sanitized. Takes an hour.
.PHONY: arcs
arcs: all fakes
	$(Q)$(MAKE) --no-print-directory SAN=coverage programs faults unit refs attackers gpu-programs
	$(Q)rm -rf build/lanes/arcs
	$(Q)$(LANES) arcs; $(PYTHON) tests/runner/arcs.py >tests/plain

# make flaky LANE=trouble N=20, or LANE=tests/bpf/test_life.py: no install, no build.
flaky:
	$(Q)$(TEST_ENV) $(PYTHON) tests/flaky $(if $(N),--rounds $(N)) $(if $(SEED),--seed $(SEED)) $(if $(SAN),--san $(SAN)) \
		$(or $(LANE),$(error name what to run: LANE=trouble, or LANE=tests/bpf/test_life.py))

# make pytest ARGS='-k seal tests/integration': no install. tests/lint, tests/runner and tests of other folders need no build.
PATHS = $(filter tests/% /%,$(subst ',,$(subst ",,$(ARGS))))
.PHONY: pytest
pytest: $(if $(filter-out tests/lint% tests/runner% /%,$(or $(PATHS),tests)),$(if $(SAN),programs,all) faults unit fakes)
	$(Q)$(if $(filter thread,$(SAN)),setarch -R) env $(PYTEST) $(ARGS)

lint:
	$(Q)$(LANES) lint; r=$$?; $(PYTHON) tests/lint/figures.py; exit $$r

# Settings of git: checks before each commit, and a blame that skips commits which only move or rename.
.PHONY: hooks
hooks:
	$(Q)git config core.hooksPath .githooks
	$(Q)git config blame.ignoreRevsFile .git-blame-ignore-revs

C_FILES = $(shell find server libclient ipc bpf tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cc')
format:
	$(Q)$(or $(call has_program,clang-format-14),clang-format) -i $(C_FILES)
	$(Q)$(PYTHON) tests/lint/manual.py

# install-deps changes the result of pkg-config, hence the second make. It uses every processor unless the caller passes -j.
demo:
	@$(if $(wildcard $(B)/weightd),,echo 'demo: $(B)/ will take 20 MB')
	@$(if $(filter build/model,$(MODEL)),$(if $(wildcard build/model),,echo 'demo: the model will take 92 MB in build/model/'))
	$(Q)packaging/install-deps demo
	$(Q)$(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc)) programs demos model
	$(Q)WEIGHTD_BUILD=$(abspath $(B)) MODEL=$(MODEL) tests/demo/run

# Without peft it leaves the adapters out.
demo-train:
	@$(if $(wildcard build/torch2),,echo 'demo-train: torch and peft will take 1.4 GB in build/')
	$(Q)packaging/install-deps demo train
	$(Q)packaging/fetch-torch2 build/torch2
	$(Q)packaging/fetch-programs build/programs || true
	$(Q)$(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc)) programs
	$(Q)WEIGHTD_BUILD=$(abspath $(B)) $$(ls build/programs/bin/python build/torch2/bin/python 2>/dev/null | head -n 1) \
		tests/demo/train/run

# Each strategy of training beside what its plan predicts; fails where they differ.
train-table: all
	$(Q)WEIGHTD_BUILD=$(abspath $(B)) $(TEST_ENV) tests/table/run $(if $(RANKS),--ranks $(RANKS))

bench: deps
	$(Q)$(MAKE) --no-print-directory model
	$(Q)$(if $(filter attach load sync train,$(or $(BENCH),sync)),packaging/install-deps bench)
	$(Q)$(if $(filter load train train-step,$(BENCH)),$(MAKE) --no-print-directory torch2)
	$(Q)$(if $(filter train train-step,$(BENCH)),-$(MAKE) --no-print-directory deepspeed)
	$(Q)$(MAKE) --no-print-directory all benches
	$(Q)WEIGHTD_BUILD=$(abspath $(B)) MODEL=$(MODEL) tests/bench/run $(BENCH)

matrix: all fakes
	$(Q)WEIGHTD_BUILD=$(abspath $(B)) tests/soak/matrix $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) $(if $(ENGINE),--engine $(ENGINE)) $(if $(OPERATION),--operation $(OPERATION)) $(KINDS)

# A pack for a machine with a GPU that cannot build: programs, and the libraries that they need, below 16 MB. WHEELS=1
# adds the packages for Python that weightd is compared with there (12 MB at most).
.PHONY: gpu-pack gpu-rehearsal
gpu-pack: programs gpu-programs
	$(Q)$(PYTHON) tests/gpu/pack $(if $(WHEELS),--wheels) $(B) build-gpu

# tests/gpu/run with that pack on a bare Debian of another release, the stand-in for libcuda in the place of a driver.
gpu-rehearsal: gpu-pack fakes
	$(Q)WEIGHTD_BARE=part $(PYTEST) $(ARGS) tests/bare/test_gpu.py

soak: KILLS ?= 1000
soak: all soaks
	$(Q)$(MAKE) --no-print-directory to-check to-check-san
	$(Q)$(if $(SECONDS),WEIGHTD_SOAK_SECONDS=$(SECONDS)) WEIGHTD_KILLS=$(KILLS) WEIGHTD_PYTHON_KILLS=30 \
		WEIGHTD_PYTHON_STEPS=2500 WEIGHTD_PYTHON_COMPILE=inductor $(PYTEST) $(ARGS) tests/soak \
		tests/integration/train/test_kills.py \
		tests/integration/train/nodes/test_nodes_kills.py \
		tests/integration/train/nodes/test_units_kills.py \
		tests/integration/train/test_saving.py::test_ranks_that_are_killed_while_they_save_leave_whole_checkpoints_alone \
		tests/integration/train/test_torch_habits.py::test_a_compiled_module_trains_as_an_eager_one \
		tests/integration/train/test_torch_life.py::test_random_kills_leave_no_trace \
		tests/integration/train/test_torch_nodes.py::test_random_kills_on_two_nodes_leave_no_trace
	$(Q)$(LANES) long $(LANE)

# The two commands of the README on a bare Debian; WEIGHTD_BARE=full runs all tests there.
.PHONY: bare
bare:
	$(Q)WEIGHTD_BARE=$(or $(WEIGHTD_BARE),part) $(PYTEST) $(ARGS) tests/bare/test_bare.py tests/bare/test_first_attach.py

deps:
	$(Q)packaging/install-deps

# Packages for this Debian, into build/deb; with debug symbols, and what an upload wants, into build/deb/upload. Made from a
# copy of the sources, as dpkg-buildpackage wants debian/ at its top, and out of reach of the variables of this make.
# REUSE=1 takes the objects of this tree, with its flags and not Debian's: for tests.
DEB := build/deb
.PHONY: deb check-deb
deb: $(if $(REUSE),programs man)
	$(Q)packaging/install-deps build deb
	$(Q)rm -rf $(DEB) && mkdir -p $(DEB)/upload/weightd/build
	$(Q)cp -a Makefile LICENSE *.md server libclient ipc bpf packaging packaging/debian $(DEB)/upload/weightd/
	$(if $(REUSE),$(Q)cp -al build/obj build/bpf build/man $(DEB)/upload/weightd/build/)
	$(Q)cd $(DEB)/upload/weightd && env -i HOME="$$HOME" LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin \
		DEB_BUILD_OPTIONS='$(DEB_BUILD_OPTIONS)' dpkg-buildpackage -us -uc -b $(if $(REUSE),-nc)
	$(Q)rm -rf $(DEB)/upload/weightd
	$(Q)for package in $(DEB)/upload/*.deb; do case $$package in *-dbgsym_*) ;; *) ln $$package $(DEB)/ || exit;; esac; done
	$(Q)ls $(DEB)/*.deb

check-deb: deb
	$(Q)WEIGHTD_DEBS=$(abspath $(DEB)) WEIGHTD_VISITORS=300 WEIGHTD_BARE=part $(PYTEST) $(ARGS) tests/systemd/test_packages.py \
		tests/bare/test_first_attach.py

# A wheel for Python 3.9 and later into build/wheel, for glibc 2.28: a compiler of its own, and objects of its own. weightd-sync
# and weightd-trace are services with users of their own, and not in it; nor are keys for the former, which need OpenSSL, and
# metrics by HTTP. zig defines NDEBUG where it optimizes, and warns of more than gcc does: its warnings are no errors.
WHEEL_TOOLS := build/wheel-tools
WHEEL_MAKE = $(MAKE) --no-print-directory WERROR= B=build/wheel CC=$(WHEEL_TOOLS)/cc CFLAGS=-O2 \
	CPPFLAGS='-I$(WHEEL_TOOLS)/include -UNDEBUG -Wno-unused-function' LDFLAGS='-L$(WHEEL_TOOLS)/lib -s' HAVE_SDT=yes HAVE_OPENSSL= HAVE_GLOO= HAVE_MICROHTTPD=
.PHONY: wheel wheel-programs check-wheel
wheel:
	$(Q)packaging/install-deps build
	$(Q)packaging/fetch-wheel-tools $(WHEEL_TOOLS)
	+$(Q)$(WHEEL_MAKE) wheel-programs
	$(Q)$(PYTHON) packaging/pack-wheel build/wheel $(WHEEL_TOOLS)/licenses

wheel-programs: $(LIB) $(TRAIN_LIB) $(B)/weightd $(B)/weightd-cuda $(B)/whole/weightctl

# Not a part of `make check`: a compiler of 500 MB, and a minute of a processor.
check-wheel: wheel
	$(Q)WEIGHTD_WHEEL=$(abspath $(wildcard build/wheel/*.whl)) $(PYTEST) $(ARGS) tests/wheel

# A container image of the packages, for docker, podman and Kubernetes: packaging/kubernetes.
IMAGE := build/image/weightd.tar
.PHONY: image check-image
image: deb
	$(Q)packaging/install-deps image
	$(Q)packaging/make-image $(DEB) $(IMAGE)

# By podman, with the manifests. Not a part of `make check`, which runs them around the programs of this tree.
check-image: image kubernetes
	$(Q)WEIGHTD_IMAGE=$(abspath $(IMAGE)) WEIGHTD_DEBS=$(abspath $(DEB)) $(PYTEST) $(ARGS) tests/integration/containers

# Only into its own place, never into a folder that the user named.
model:
	$(Q)$(if $(filter build/model,$(MODEL)),packaging/install-deps model && packaging/fetch-model $(MODEL))

# All of tests/bpf, and services under a memory limit, in a kernel that refuses nothing: half an hour.
.PHONY: check-guest
check-guest: all unit fakes guest
	$(Q)WEIGHTD_GUEST_WHOLE=1 $(PYTEST) tests/bpf/test_guest.py tests/systemd/test_guest.py

# Only where asked for (CI does): 1.1 GB for the tests that run on both major versions of torch.
torch2: | deps
	$(Q)packaging/fetch-torch2 build/torch2

# Likewise: for the tests with programs that know nothing of weightd. llama.cpp takes 15 minutes to build.
fetch-programs: torch2
	$(Q)packaging/fetch-programs build/programs

fetch-llama: torch2
	$(Q)packaging/fetch-programs build/programs llama

# Likewise: a peer of the benches of training, which compiles for minutes.
deepspeed: torch2
	$(Q)packaging/fetch-deepspeed build/deepspeed

# Only where asked for, as torch2 is: for the test that opens a timeline with it.
perfetto: | deps
	$(Q)packaging/fetch-perfetto build/perfetto

kubernetes: | deps
	$(Q)packaging/fetch-kubernetes build/kubernetes

# Likewise: for the tests that run on other kernels than that of this machine.
guest: build/guest/init | deps
	$(Q)packaging/fetch-kernel build/guest

build/guest/init: tests/bpf/guest/init.c Makefile
	$(call say,LINK)mkdir -p $(@D)
	$(Q)$(CC) $(BASE) $(CFLAGS) $(CPPFLAGS) $(WARN) $(if $(WERROR),-Werror) -static -o $@ $<

# --- Fuzz targets: clang, objects of their own --------------------------------------------------

F := build/fuzz
FUZZ_CFLAGS := $(BASE) -O1 -g1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
fuzz_objects = $(patsubst %.c,$(F)/obj/%.o,$(1))
# Objects that targets call. A quarter of clang's time went into others; the linker names what is missing here.
FUZZ_OBJECTS := $(patsubst $(B)/obj/%,$(F)/obj/%,$(IPC) $(BASE_OBJECTS) $(PROTOCOL) $(SLICING)) \
	$(call fuzz_objects,$(wildcard libclient/image/*.c bpf/elf/*.c) bpf/rdma/nldev.c libclient/connection/sentence.c \
	libclient/load/folder/index.c $(addprefix libclient/version/,difference.c layout.c tensor.c) \
	$(addprefix server/state/,access.c buffer_names.c config.c quota.c share.c))
FUZZ_PROGRAMS := $(FUZZ:%=$(F)/fuzz_%)

$(F)/obj/%.o: %.c Makefile | required
	$(call say,CLANG)mkdir -p $(@D)
	$(Q)$(CLANG) $(FUZZ_CFLAGS) -MMD -MP -c -o $@ $<

$(F)/server.a: $(FUZZ_OBJECTS)
$(F)/sync.a: $(UNDER_SYNC_TEST:$(B)/obj/%=$(F)/obj/%)
$(F)/server.a $(F)/sync.a:
	$(call say,AR)$(ARCHIVE)

# The parts of the agent, and those of the process that knows weightd for it.
FUZZ_LOCAL := $(F)/fuzz_sync_planner
FUZZ_SYNC := $(filter-out $(FUZZ_LOCAL),$(filter $(F)/fuzz_sync_%,$(FUZZ_PROGRAMS)))
FUZZ_TRAIN := $(filter $(F)/fuzz_train_%,$(FUZZ_PROGRAMS))
$(filter-out $(FUZZ_SYNC) $(FUZZ_LOCAL) $(FUZZ_TRAIN),$(FUZZ_PROGRAMS)): $(F)/%: $(F)/obj/tests/fuzz/%.o $(F)/server.a
	$(call say,LINK)$(CLANG) -pthread -fsanitize=fuzzer,address,undefined -o $@ $^ $(TEST_LIBS)

# Agents in the world of the unit tests.
$(F)/fuzz_sync_agent: $(patsubst %.c,$(F)/obj/%.o,$(call parts,unit))
$(F)/fuzz_sync_agent: FUZZ_LIBS = $(call libs,cmocka)
$(FUZZ_SYNC): $(F)/%: $(F)/obj/tests/fuzz/%.o $(F)/sync.a
	$(call say,LINK)$(CLANG) -pthread -fsanitize=fuzzer,address,undefined -o $@ $(filter %.o,$^) $(F)/sync.a $(FUZZ_LIBS) $(SYNC_LIBS) $(SERVER_LIBS)

$(FUZZ_LOCAL): $(F)/%: $(F)/obj/tests/fuzz/%.o $(patsubst $(B)/obj/%,$(F)/obj/%,\
	$(filter-out %/main.o,$(SYNC_LOCAL)) $(SYNC_BASE) $(IPC) $(CUDA) $(CLIENT))
	$(call say,LINK)$(CLANG) -pthread -fsanitize=fuzzer,address,undefined -o $@ $^ $(CLIENT_LIBS) $(SYNC_LIBS) $(SERVER_LIBS)

# Plans are functions of nothing else.
$(FUZZ_TRAIN): $(F)/%: $(F)/obj/tests/fuzz/%.o $(patsubst %.c,$(F)/obj/%.o,$(wildcard libclient/train/plan/*.c)) $(IPC:$(B)/obj/%=$(F)/obj/%)
	$(call say,LINK)$(CLANG) -pthread -fsanitize=fuzzer,address,undefined -o $@ $^ $(call libs,jansson) -lm

# As any compiler reads them: a change of what they call is an error of `make check`, not only of `make fuzz`.
.PHONY: fuzz-sources
fuzz-sources: $(FUZZ:%=$(B)/obj/tests/fuzz/fuzz_%.o)

.PHONY: fuzz-programs $(FUZZ:%=fuzz-%)
fuzz-programs: $(FUZZ_PROGRAMS)
fuzz: $(FUZZ:%=fuzz-%)

# New finds stay in the build tree; the ones worth keeping are copied to the corpus by hand.
$(FUZZ:%=fuzz-%): fuzz-%: $(F)/fuzz_%
	$(Q)mkdir -p $(F)/new/$*
	$(Q)$< -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
		-artifact_prefix=$(F)/$*- $(F)/new/$* $(wildcard tests/fuzz/corpus/$*) >$(F)/$*.log 2>&1 || \
		{ tail -n 60 $(F)/$*.log; echo 'fuzz: $* failed'; exit 1; }
	@sed -n 's/^Done \([0-9]*\) runs in \([0-9]*\).*/fuzz: $* survived \1 runs in \2 s/p' $(F)/$*.log

# 10^7 headers, and a fourth as many indexes: 20 minutes of a processor.
.PHONY: differential
differential: $(B)/unit/tool_safetensors torch2
	$(Q)build/torch2/bin/python tests/fuzz/differential.py --cases $(or $(CASES),12500000) $(if $(SEED),--seed $(SEED)) --tool $<

# --- Install ------------------------------------------------------------------------------------

.PHONY: install uninstall clean help

# Programs that are built with OpenSSL only.
SYNC_INSTALLED := $(SYNC_PROGRAMS:$(B)/weightd-sync-local=$(B)/install/weightd-sync-local)

PYTHON_PARTS := $(patsubst libclient/python/weightd/%/__init__.py,%,$(wildcard libclient/python/weightd/*/__init__.py))

install: programs man $(B)/install/weightctl $(B)/install/libweightd-train.so $(SYNC_INSTALLED)
	install -d $(addprefix $(DESTDIR),$(bindir) $(sbindir) $(libdir)/pkgconfig $(includedir) \
		$(addprefix $(mandir)/man,1 3 5 7 8) $(docdir)/examples/failover $(unitdir) $(generatordir) $(sysusersdir) $(tmpfilesdir) $(catalogdir) \
		$(completiondir) $(zshcompletiondir) $(fishcompletiondir) \
		$(PYTHON_PARTS:%=$(pythondir)/weightd/%))
	install -m 755 $(B)/weightd $(B)/weightd-cuda $(B)/weightd-load $(DESTDIR)$(sbindir)/
	$(if $(SYNC_INSTALLED)$(TRACE_PROGRAM),install -m 755 $(SYNC_INSTALLED) $(TRACE_PROGRAM) $(DESTDIR)$(sbindir)/)
	install -m 755 $(B)/install/weightctl $(DESTDIR)$(bindir)/
	install -m 644 $(LIB).$(VERSION) $(NCCL_PLUGIN) $(DESTDIR)$(libdir)/
	ln -sf libweightd.so.$(VERSION) $(DESTDIR)$(libdir)/libweightd.so.$(SOVERSION)
	ln -sf libweightd.so.$(SOVERSION) $(DESTDIR)$(libdir)/libweightd.so
	install -m 644 $(B)/install/libweightd-train.so $(DESTDIR)$(libdir)/libweightd-train.so.$(VERSION)
	ln -sf libweightd-train.so.$(VERSION) $(DESTDIR)$(libdir)/libweightd-train.so.$(SOVERSION)
	ln -sf libweightd-train.so.$(SOVERSION) $(DESTDIR)$(libdir)/libweightd-train.so
	$(if $(TRAIN_GLOO_LIB),install -m 644 $(TRAIN_GLOO_LIB) $(DESTDIR)$(libdir)/)
	install -m 644 libclient/include/weightd.h libclient/train/include/weightd-train.h $(DESTDIR)$(includedir)/
	for module in weightd weightd-train; do \
		sed 's|@includedir@|$(includedir)|; s|@libdir@|$(libdir)|; s|@version@|$(VERSION)|' \
			packaging/$$module.pc.in >$(DESTDIR)$(libdir)/pkgconfig/$$module.pc || exit; done
	for page in $(MAN); do \
		install -m 644 $$page $(DESTDIR)$(mandir)/man$${page##*.}/ || exit; done
	$(if $(MAN_VERBS),install -m 644 $(MAN_VERBS)/*.1 $(DESTDIR)$(mandir)/man1/)
	$(if $(MAN_CALLS),install -m 644 $(MAN_CALLS)/*.3 $(DESTDIR)$(mandir)/man3/)
	sed 's|@sbindir@|$(sbindir)|' packaging/systemd/weightd.service >$(DESTDIR)$(unitdir)/weightd.service
	$(if $(SYNC_INSTALLED),sed 's|@sbindir@|$(sbindir)|' packaging/systemd/weightd-sync.service \
		>$(DESTDIR)$(unitdir)/weightd-sync.service)
	$(if $(TRACE_PROGRAM),sed 's|@sbindir@|$(sbindir)|' packaging/systemd/weightd-trace.service \
		>$(DESTDIR)$(unitdir)/weightd-trace.service)
	sed 's|@bindir@|$(bindir)|' packaging/systemd/weightd-export@.service >$(DESTDIR)$(unitdir)/weightd-export@.service
	sed 's|@sbindir@|$(sbindir)|; s|@bindir@|$(bindir)|' packaging/systemd/weightd-load@.service >$(DESTDIR)$(unitdir)/weightd-load@.service
	sed 's|@sbindir@|$(sbindir)|' packaging/systemd/weightd-load-generator >$(DESTDIR)$(generatordir)/weightd-load-generator
	chmod 755 $(DESTDIR)$(generatordir)/weightd-load-generator
	install -m 644 packaging/weightd.conf $(if $(SYNC_INSTALLED),packaging/weightd-sync.conf) $(DESTDIR)$(docdir)/
	install -m 644 packaging/systemd/weightd.socket packaging/systemd/weightd-models.target $(DESTDIR)$(unitdir)/
	install -m 644 packaging/systemd/numa.conf packaging/systemd/preserve.conf $(wildcard packaging/prometheus/*) $(DESTDIR)$(docdir)/
	install -m 644 $(wildcard packaging/examples/failover/*) $(DESTDIR)$(docdir)/examples/failover/
	for name in $(if $(HAVE_MICROHTTPD),weightd-metrics) weightd-metrics-textfile; do \
		sed 's|@bindir@|$(bindir)|' packaging/systemd/$$name.service >$(DESTDIR)$(unitdir)/$$name.service || exit; done
	install -m 644 packaging/systemd/weightd-metrics-textfile.timer $(DESTDIR)$(unitdir)/
	for name in weightd $(if $(SYNC_INSTALLED),weightd-sync) $(if $(TRACE_PROGRAM),weightd-trace); do \
		install -m 644 packaging/systemd/$$name.sysusers $(DESTDIR)$(sysusersdir)/$$name.conf || exit; done
	install -m 644 packaging/systemd/weightd.tmpfiles $(DESTDIR)$(tmpfilesdir)/weightd.conf
	install -m 644 packaging/systemd/weightd.catalog $(if $(SYNC_INSTALLED),packaging/systemd/weightd-sync.catalog) $(DESTDIR)$(catalogdir)/
	install -m 644 packaging/completions/weightctl $(DESTDIR)$(completiondir)/
	sed 's|@completiondir@|$(completiondir)|' packaging/completions/_weightctl >$(DESTDIR)$(zshcompletiondir)/_weightctl
	sed 's|@completiondir@|$(completiondir)|' packaging/completions/weightctl.fish >$(DESTDIR)$(fishcompletiondir)/weightctl.fish
	install -m 644 $(wildcard libclient/python/weightd/*.py) libclient/python/weightd/py.typed \
		$(DESTDIR)$(pythondir)/weightd/
	for part in $(PYTHON_PARTS); do \
		install -m 644 libclient/python/weightd/$$part/*.py $(DESTDIR)$(pythondir)/weightd/$$part/ || exit; done
	$(if $(DESTDIR),,ldconfig)
	@if [ -z '$(DESTDIR)' ] && [ -d /run/systemd/system ] && [ "$$(id -u)" = 0 ]; then \
		systemd-sysusers && systemd-tmpfiles --create $(tmpfilesdir)/weightd.conf && systemctl daemon-reload && \
		journalctl --update-catalog; \
	else \
		echo 'weightd: on the system that runs it, as root: systemd-sysusers'; \
		echo '                                            systemd-tmpfiles --create $(tmpfilesdir)/weightd.conf'; \
		echo '                                            systemctl daemon-reload'; \
		echo '                                            journalctl --update-catalog'; \
	fi

uninstall:
	rm -f $(addprefix $(DESTDIR)$(sbindir)/weightd,-load -sync -sync-local -sync-tcp -sync-gloo -sync-nccl -trace) \
		$(addprefix $(DESTDIR)$(unitdir)/weightd-,export@.service metrics.service metrics-textfile.service metrics-textfile.timer load@.service models.target sync.service trace.service) \
		$(DESTDIR)$(generatordir)/weightd-load-generator \
		$(DESTDIR)$(docdir)/weightd-sync.conf
	rm -f $(DESTDIR)$(libdir)/libnccl-profiler-weightd.so
	rm -f $(addprefix $(DESTDIR),$(sbindir)/weightd $(sbindir)/weightd-cuda $(bindir)/weightctl $(includedir)/weightd.h \
		$(includedir)/weightd-train.h $(libdir)/libweightd.so* $(libdir)/libweightd-train.so* \
		$(libdir)/libweightd-train-gloo.so \
		$(libdir)/pkgconfig/weightd.pc $(libdir)/pkgconfig/weightd-train.pc $(unitdir)/weightd.service \
		$(unitdir)/weightd.socket $(addprefix $(sysusersdir)/weightd,.conf -sync.conf -trace.conf) $(tmpfilesdir)/weightd.conf $(addprefix $(catalogdir)/weightd,.catalog -sync.catalog) \
		$(completiondir)/weightctl $(zshcompletiondir)/_weightctl $(fishcompletiondir)/weightctl.fish \
		$(docdir)/weightd.conf $(docdir)/numa.conf $(docdir)/preserve.conf \
		$(addprefix $(docdir)/,$(notdir $(wildcard packaging/prometheus/*))) $(mandir)/man1/weightctl.1 $(mandir)/man5/weightd.conf.5 \
		$(mandir)/man8/weightd.8 $(mandir)/man8/weightd-load.8 $(mandir)/man8/weightd-sync.8 $(mandir)/man8/weightd-trace.8 $(mandir)/man5/weightd-sync.conf.5 \
		$(mandir)/man3/libweightd.3 $(mandir)/man3/weightd-python.3 $(mandir)/man7/weightd-gpu.7 $(mandir)/man7/weightd-protocol.7 $(mandir)/man7/weightd-train.7)
	rm -f $(addprefix $(DESTDIR)$(mandir)/,man1/weightctl-*.1 $(addprefix man3/weightd,_*.3 .h.3 -train.h.3))
	rm -rf $(DESTDIR)$(pythondir)/weightd $(DESTDIR)$(docdir)/examples

# Keeps downloads: they are no build product.
clean:
	rm -rf $(wildcard build-*) $(filter-out $(addprefix build/,model torch2 programs llama deepspeed perfetto kubernetes guest wheel-tools bare bench-venv bench-safetensors),$(wildcard build/*))

help:
	@echo 'make            everything, into build/ (V=1 shows commands, WERROR=1 is strict)'
	@echo 'make demo       install what is missing, build, share a real model (MODEL=path) between processes and nodes'
	@echo 'make demo-train  train a small GPT by four ranks on one copy, kill one, and train adapters (torch and peft: 1.4 GB)'
	@echo 'make train-table  strategies of training: losses, bits, bytes and memory, as planned and as counted (RANKS=1,2)'
	@echo 'make check      install what is missing, build, run every test this machine can run;  LANE="bpf cuda" chooses lanes'
	@echo 'make flaky      LANE=trouble N=20 runs the tests of a lane, or of a file, N times beside a load, in random order'
	@echo 'make pytest     ARGS="-k seal tests/integration" runs these tests alone, and builds what they need'
	@echo 'make check-san  the tests under ASan+UBSan and TSan;  SAN=address|thread builds such a tree,'
	@echo 'make faults     weightd that dies where it is told to, into build-faults/'
	@echo 'make arcs       tests/plain anew: what need not run sanitized, by the arcs of our code that each test takes'
	@echo 'make check-all  check and check-san in one pool, as CI runs them'
	@echo 'make bench      figures as JSON lines;  BENCH=attach runs one'
	@echo 'make matrix     each kind of failure among four nodes, ROUNDS=20 times: what is served, and what is told'
	@echo '                KINDS="link-down disk-full" ENGINE=gloo OPERATION=average SEED= chooses'
	@echo 'make soak       random deaths of weightd, its users, and nodes for SECONDS=300, and the long forms of tests'
	@echo '                ARGS="-k nodes" is that of nodes alone;  KILLS=1000 is the number of deaths in each training job'
	@echo 'make bare       make demo and a part of make check on a bare Debian (WEIGHTD_BARE=full: all of it)'
	@echo 'make fakes      the stand-in for libcuda that the tests run on, where there is no GPU'
	@echo 'make fuzz       every fuzz target for FUZZ_SECONDS=$(FUZZ_SECONDS)'
	@echo 'make differential  readers of headers and indexes beside the safetensors package, in CASES=12500000 mutated ones (SEED=1)'
	@echo 'make torch2     today'"'"'s torch and transformers into build/torch2 (1.1 GB), for the tests that want both versions'
	@echo 'make fetch-programs  diffusers, peft and their like into build/programs (250 MB), for the tests that run them unmodified;'
	@echo '                make fetch-llama adds llama-cpp-python, which takes 15 minutes to build'
	@echo 'make deepspeed  DeepSpeed into build/deepspeed (35 MB), for make bench BENCH="train train-step"; compiles for minutes'
	@echo 'make kubernetes  kubernetes-validate into build/kubernetes (45 MB), for the test of the manifests'
	@echo 'make perfetto   Perfetto'"'"'s trace processor into build/perfetto (9 MB), for the test that asks it'
	@echo 'make guest      other kernels into build/guest (26 MB), for the tests of what this one may refuse'
	@echo 'make check-guest  all of tests/bpf and an OOM kill in the newer of them, emulated: half an hour'
	@echo 'make digest-kernel  libclient/cuda/digest.ptx and digest.fatbin anew, by nvcc'
	@echo 'make lint       formatting, allowed includes, symbols, and figures: knots, folders, prose;  make format applies the formatting'
	@echo 'make hooks      the same of what changed, before each git commit'
	@echo 'tests/gpu/run   shows on a real GPU what no stand-in can'
	@echo 'make gpu-pack   programs and libraries for it into build-gpu (14 MB), for a machine that can build nothing'
	@echo 'make gpu-rehearsal  tests/gpu/run with that pack on a bare Debian of another release, on the stand-in for libcuda'
	@echo 'make deb        packages for Debian into build/deb, and with debug symbols into build/deb/upload'
	@echo 'make check-deb  builds them, and installs, upgrades and purges them in a booted system, under 300 clients'
	@echo 'make wheel      a wheel for Python into build/wheel, with libraries and programs, after 110 MB of tools'
	@echo 'make image      a container image of the packages into build/image, for docker, podman and Kubernetes'
	@echo 'make check-image  builds it, and runs it and the manifests by podman'
	@echo 'make check-wheel  builds it, installs it into environments of Python, and tries it with other releases'
	@echo 'make install    PREFIX=$(PREFIX) DESTDIR= libdir=;  make uninstall;  make clean'

-include $(shell find $(B)/obj $(B)-faults/obj $(F)/obj build/fake/obj build/bpf -name '*.d' 2>/dev/null)
