/* Notes of hooks: received by the socket and the mailbox, stored, answered, related to a unit and a
 * process. Hook notes are untrusted input. docs/API.md is the contract with the hook. */
#pragma once

#include <systemd/sd-event.h>

#include "agent/api/view.h"
#include "agent/store/store.h"
#include "config/config.h"
#include "lib/base/clock.h"
#include "lib/base/owner.h"
#include "lib/neuron/note.h"

typedef struct HookNotes HookNotes;

typedef struct NoteView { /* borrowed for the call */
        const HookNote *note;
        uint64_t received_usec; /* CLOCK_REALTIME */
        bool by_mailbox;
        /* Of the hook: by SO_PEERCRED and its cgroup, or the owner of the mailbox's file. */
        Owner owner;
        bool is_owner_known; /* its container is known, or it is in none */
        pid_t hook_pid;      /* on this machine; 0 = not known (mailbox) */
        /* Of the process that failed, on this machine; 0 = not known: pid_why has the reason
         * (hidden by namespaces, ended …), or the supervisor of the snapshot finds it. */
        pid_t pid;
        uint64_t start_ticks;  /* of pid; 0 = not known */
        const char *pid_why;   /* static; NULL */
        const char *container; /* id from /proc/PID/cgroup, of the hook; NULL */
        const char *source;    /* name of the source whose directory was named; NULL */
        const char *unit_path; /* absolute, as this machine sees it; NULL */
        const char *refused;   /* why no file is expected for it, a sentence; NULL */
        /* The directory was missing when the note was received. It is checked again when the hook
         * has ended, for on_finished. */
        bool may_come;
        const char *s3_prefix; /* `s3://bucket/prefix`, granted; NULL: the destination's own */
        /* For on_finished: files that it named and has not withdrawn. NULL: fewer, or its hook was
         * not connected until its end (mailbox, restart) */
        const char *promised[NOTE_FILES_MAX];
        const char *prefix_refused; /* why --s3-output-prefix was not granted, a sentence; NULL */
} NoteView;

typedef struct HookNotesContext { /* borrowed */
        sd_event *event;
        Clock *clock;
        Store *store;
        /* A note is durable, and new to this run. */
        void (*on_note)(const NoteView *v, void *userdata);
        /* The hook of a note has ended, and writes no more files. */
        void (*on_finished)(const NoteView *v, void *userdata);
        void *userdata;
} HookNotesContext;

/** @param fd  listening SOCK_SEQPACKET, taken over; -1: none, mailbox only */
int hooknotes_new(HookNotes **ret, const HookNotesContext *context, const Config *config, int fd);
HookNotes *hooknotes_free(HookNotes *n);
/** Continues with another configuration (sources, deadline, allow_prefixes, environment). */
void hooknotes_rebind(HookNotes *n, const Config *config);

/** @return whether all that was in the mailbox at the start has been read, for --once */
bool hooknotes_is_idle(const HookNotes *n);

/** @return whether the mailbox has not been read yet after the start, which takes seconds: a bundle
 * that is delivered now could lack its failure */
bool hooknotes_has_unread_mail(const HookNotes *n);

/** Sends the hook the part of the snapshot that it may read. @param fd  a sealed memfd, borrowed;
 * -1: there is none, for a reason (a sentence) */
void hooknotes_report_snapshot(HookNotes *n, const char *note_id, int fd, const char *reason);

/** Counts n refused notes that the caller has logged. */
void hooknotes_count_refused(HookNotes *n, uint64_t n_notes);

/** Sets the fields of ret->hook about notes, and adds what is bounded for them; the others stay. */
void hooknotes_fill_view(const HookNotes *n, AgentView *ret);
