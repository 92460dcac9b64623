/* The record of one process of a job, as the collector jobs writes it and the agent reads it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "collectors/host/procfs.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/job.h"

/** What a record says of its process. */
typedef struct JobRecord {
        pid_t pid;
        uint64_t start_ticks;
        uid_t uid;
        JobIdentity job; /* with a key */
} JobRecord;

/** Reads a record, which is as hostile as the process that it is about.
 * @return whether it is about a process of a job */
bool job_record_parse(const char *record, JobRecord *ret);

/** Adds what is known of a job (source, key, rank …) to the object that is open. */
void job_record_add_members(StrBuf *b, const JobIdentity *id);
/** Adds "container" from the text of a cgroup file, or null. */
void job_record_add_container(StrBuf *b, const char *cgroup, size_t n);
/** Adds "job" from the environment of a process, or null, and "container" from its cgroup, or null.
 * May wait (procfs.h), so only in a child. */
void job_record_add_identity(StrBuf *b, const Proc *p);
