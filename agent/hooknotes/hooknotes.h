/* Notes of hooks: received by the socket and the mailbox, stored, answered, related to a unit and a
 * process. Hook notes are untrusted input. docs/HOOK.md is the contract with the hook. */
#pragma once

#include <systemd/sd-event.h>

#include "agent/api/view.h"
#include "agent/store/store.h"
#include "config/config.h"
#include "lib/base/clock.h"
#include "lib/neuron/note.h"

typedef struct HookNotes HookNotes;

typedef struct NoteView { /* borrowed for the call */
        const HookNote *note;
        uint64_t received_usec; /* CLOCK_REALTIME */
        bool by_mailbox;
        uid_t uid;      /* of the hook: by SO_PEERCRED, or the owner of the mailbox's file */
        pid_t hook_pid; /* on this machine; 0 = not known (mailbox) */
        /* of the process that failed, on this machine; 0 = not known, and pid_why has the reason
         * (hidden by namespaces, ended …) or it is the supervisor's to find */
        pid_t pid;
        uint64_t start_ticks;  /* of pid; 0 = not known */
        const char *pid_why;   /* static; NULL */
        const char *container; /* id from /proc/PID/cgroup; NULL */
        const char *source;    /* name of the source whose directory was named; NULL */
        const char *unit_path; /* absolute, as this machine sees it; NULL */
        const char *refused;   /* why no file is expected for it, a sentence; NULL */
        /* the directory was not there when the note came: it is checked again when the hook has
         * ended, and on_finished gets what is there then */
        bool may_come;
        const char *s3_prefix; /* `s3://bucket/prefix`, granted; NULL: the destination's own */
        /* For on_finished: files that it named and has not taken back. NULL: fewer, or its hook was
         * not connected to the end (mailbox, restart) */
        const char *promised[NOTE_FILES_MAX];
        const char *prefix_refused; /* why --s3-output-prefix was not granted, a sentence; NULL */
} NoteView;

typedef struct HookNotesContext { /* borrowed */
        sd_event *event;
        Clock *clock;
        Store *store;
        const char *instance_id;
        void (*on_note)(const NoteView *v, void *userdata); /* it is durable and new */
        void (*on_finished)(const NoteView *v,
                            void *userdata); /* its hook has ended: all files it was to write are
                                                there, or never will be */
        void *userdata;
} HookNotesContext;

/** @param fd  listening SOCK_SEQPACKET, taken over; -1: none, mailbox only */
int hooknotes_new(HookNotes **ret, const HookNotesContext *context, const Config *config, int fd);
HookNotes *hooknotes_free(HookNotes *n);
/** Continues with another configuration (sources, deadline, allow_prefixes, environment). */
void hooknotes_rebind(HookNotes *n, const Config *config);

/** @return whether what lay in the mailbox at the start has been read: what --once asks */
bool hooknotes_is_idle(const HookNotes *n);

/** What may be shown to the hook's caller of the snapshot is there. @param fd  a sealed memfd,
 * borrowed; -1: there is none, for a reason (a sentence) */
void hooknotes_report_snapshot(HookNotes *n, const char *note_id, int fd, const char *reason);

/** Counts n more notes of which something was refused and reported. */
void hooknotes_count_refused(HookNotes *n, uint64_t n_notes);

typedef struct HookNotesStats {
        uint64_t n_socket, n_mailbox, n_refused, n_duplicates; /* since the state was made */
        uint64_t n_unseen;   /* whose directory the agent cannot see; since the state was made */
        uint64_t n_open;     /* hooks that wait now */
        uint64_t n_awaited;  /* notes whose directory is not there yet */
        const char *trouble; /* NULL */
        Histogram seconds;   /* from a note to the answer about its snapshot */
} HookNotesStats;
void hooknotes_stats(const HookNotes *n, HookNotesStats *ret);
