/* Whose core a file is: by its name, the journal of systemd-coredump, and its first notes. All of
 * it is hostile. Blocking: from a worker. */
#pragma once

#include <stddef.h>

#include "agent/node_events/kernel_log.h"
#include "lib/base/strbuf.h"

typedef struct CoreFacts {
        CrashedProcess process;
        bool is_of_systemd; /* systemd-coredump has written it */
        char *job;          /* JSON, from its journal; NULL */
        char *cgroup;       /* its path, or its container's id; NULL */
} CoreFacts;
void core_facts_done(CoreFacts *f);

/** What is not known is empty.
 * @param patterns  of variables that may be recorded (snapshot.environment) */
void core_facts_read(int fd, const char *path, char *const *patterns, CoreFacts *ret);

/** `core.COMMAND.UID.BOOT.PID.TIME[.zst]`, as systemd-coredump names it, with `\xNN` in COMMAND for
 * dots and blanks. @return whether it is */
bool core_name_parse(const char *name, CrashedProcess *ret);
/** `core.COMMAND.PID.TIME`, as docs/OPERATIONS.md has the kernel name it: with the pid on the node.
 * @return whether it is */
bool core_pattern_name_parse(const char *name, CrashedProcess *ret);
/** The first notes of an ELF core; those beyond its first 64 KiB are not found.
 * @return whether there is a NT_PRPSINFO */
bool core_head_read(int fd, CrashedProcess *ret);
/** From the journal's fields, which may be NULL. @return JSON of the caller's; NULL: no job, no
 * container */
char *core_job_compose(const char *environment, const char *cgroup, char *const *patterns);
