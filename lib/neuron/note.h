/* A note of the hook: the arguments of neuron-dump and its environment. One JSON text of at most
 * NOTE_MAX_BYTES, the same in the socket's packet, in the mailbox and in the record beside the
 * dump. docs/API.md is its contract. Hook notes are untrusted input. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/base/strbuf.h"
#include "lib/neuron/job.h"
#include "lib/neuron/record.h"

#define NOTE_SCHEMA "neuron-collectd/hook-note/1"
#define NOTE_MAX_BYTES (64 * 1024)
#define NOTE_ID_SIZE 33     /* 32 hex digits of 128 random bits */
#define NOTE_VALUE_MAX 4096 /* a flag's value; longer ones are cut and marked */
#define NOTE_EXTRA_MAX 64   /* unknown flags */
#define NOTE_VARIABLES_MAX 512
#define NOTE_FILES_MAX 2 /* record and snapshot */

typedef struct NoteFlag {
        char *name, *value; /* value may be NULL: the flag had none */
} NoteFlag;

/** What the hook was given; a string that it was not given is NULL. All are owned, and have the
 * bytes that the hook got, within the limits of JSON. */
typedef struct HookNote {
        char id[NOTE_ID_SIZE];
        uint64_t written_usec; /* CLOCK_REALTIME of the hook */
        char *neff_name, *neff_uuid, *date_time, *pid, *tid, *log_id, *instance_id, *cluster_id,
                *error_location, *error_code, *local_output_dir, *s3_output_prefix;
        NoteFlag *extra; /* unknown flags */
        size_t n_extra;
        char **environment; /* NAME=VALUE by the allow-list, NULL-terminated */
        JobIdentity job;
        uint64_t hook_pid, hook_ppid; /* in the hook's pid namespace */
        uint64_t pid_namespace,
                mount_namespace; /* inodes of /proc/self/ns/{pid,mnt}; 0 = not known */
        int64_t error_number;    /* of error_code; valid when has_error_number */
        bool has_error_number;
        char *record_name,
                *snapshot_name; /* files that the hook writes into local_output_dir; NULL */
} HookNote;

void hook_note_done(HookNote *n);

/** The arguments of neuron-dump that a note carries, by the names of their JSON members. */
typedef struct NoteArgument {
        const char *name;
        size_t offset; /* of a char * in HookNote */
        bool is_path;
} NoteArgument;
#define N_NOTE_ARGUMENTS 12
extern const NoteArgument note_arguments[N_NOTE_ARGUMENTS];
static inline char **note_argument(HookNote *n, const NoteArgument *a) {
        return (char **)(void *)((char *)n + a->offset);
}

/** Writes the note as JSON, values redacted, the environment filtered once more. Needs no library.
 * @param patterns  of environment_is_allowed() @return 0, -ENOMEM, -EFBIG when it is too large even
 * without its environment and extra flags (which are dropped first, marked by `"cut": true`) */
int hook_note_format(const HookNote *n, char *const *patterns, StrBuf *ret);

/** Reads an untrusted note: at most NOTE_MAX_BYTES, the schema, an id, every string bounded,
 * secrets removed, the environment filtered by the allow-list. A note that is made to be slow takes
 * more than 100 ms, so call it in a worker.
 * @param ret_why  static, a sentence for people, when refused
 * @return 0; NOTE_E_REFUSED; -ENOMEM */
enum { NOTE_E_REFUSED = 1 };
int hook_note_parse(const void *data, size_t n, char *const *patterns, HookNote *ret,
                    const char **ret_why);
/** Reads a note that hook_note_format() has written: quick, since it has no secrets any more. */
int hook_note_parse_stored(const char *document, HookNote *ret);
