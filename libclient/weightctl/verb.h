/*
 * The verbs, each in a file of verbs/ with its name
 */
#pragma once

#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/output/column.h"

extern const struct verb verb_cat;
extern const struct verb verb_chmod;
extern const struct verb verb_chown;
extern const struct verb verb_copy;
extern const struct verb verb_devices;
extern const struct verb verb_diff;
extern const struct verb verb_doctor;
extern const struct verb verb_exec;
extern const struct verb verb_export;
extern const struct verb verb_files;
extern const struct verb verb_history;
extern const struct verb verb_load;
extern const struct verb verb_ls;
extern const struct verb verb_metrics;
extern const struct verb verb_nodes;
extern const struct verb verb_ping;
extern const struct verb verb_pki_ca;
extern const struct verb verb_pki_node;
extern const struct verb verb_pki_revoke;
extern const struct verb verb_pki_show;
extern const struct verb verb_rm;
extern const struct verb verb_rollback;
extern const struct verb verb_save;
extern const struct verb verb_show;
extern const struct verb verb_stat;
extern const struct verb verb_sync_average;
extern const struct verb verb_sync_cancel;
extern const struct verb verb_sync_gather;
extern const struct verb verb_sync_history;
extern const struct verb verb_sync_metrics;
extern const struct verb verb_sync_plan;
extern const struct verb verb_sync_push;
extern const struct verb verb_sync_reshard;
extern const struct verb verb_sync_scatter;
extern const struct verb verb_sync_status;
extern const struct verb verb_sync_watch;
extern const struct verb verb_tensors;
extern const struct verb verb_top;
extern const struct verb verb_train_metrics;
extern const struct verb verb_train_profile;
extern const struct verb verb_train_run;
extern const struct verb verb_train_status;
extern const struct verb verb_trace_attached;
extern const struct verb verb_trace_doctor;
extern const struct verb verb_trace_explain;
extern const struct verb verb_trace_log;
extern const struct verb verb_trace_merge;
extern const struct verb verb_trace_messages;
extern const struct verb verb_trace_metrics;
extern const struct verb verb_trace_rdma;
extern const struct verb verb_trace_record;
extern const struct verb verb_trace_watch;
extern const struct verb verb_verify;
extern const struct verb verb_version;
extern const struct verb verb_wait;
extern const struct verb verb_watch;

/* Columns of struct weightd_buffer_info, for ls and show; in ls.c. */
extern const struct column ls_columns[];

/* Columns of struct weightd_tensor, for tensors and the plan of load; in tensors.c. */
extern const struct column tensors_columns[];
