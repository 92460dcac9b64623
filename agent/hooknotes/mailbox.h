/* The mailbox: notes of hooks that found no agent. All users may create files in the directory
 * (mode 1733), so its content is untrusted: only regular files are read, never through a link or a
 * mount; the owner is the sender; what is not a note or exceeds the MailboxQuota is removed. */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "lib/base/clock.h"

typedef struct Mailbox Mailbox;

typedef struct Mail { /* borrowed for the call */
        const char *name;
        const char *data; /* NUL-terminated behind n */
        size_t n;
        uid_t uid;             /* owner of the file */
        uint64_t written_usec; /* CLOCK_REALTIME when it was last changed, by the kernel */
} Mail;

typedef struct MailboxCallbacks {
        /* Called again with every pass until mailbox_remove(). */
        void (*on_mail)(const Mail *mail, void *userdata);
        /* Something was removed: not a note, or one too many. @param why  static */
        void (*on_refused)(uid_t uid, const char *why, void *userdata);
        void *userdata;
} MailboxCallbacks;

/** Creates the directory if it is missing, and scans it on the loop: now, after an event, and every
 * minute.
 * @return 0; -ENOTDIR, -EPERM: a file of another user is in its place; -errno */
int mailbox_new(Mailbox **ret, sd_event *event, const char *path,
                const MailboxCallbacks *callbacks);
Mailbox *mailbox_free(Mailbox *m);

/** For a note that is durable in the store, or invalid. */
void mailbox_remove(Mailbox *m, const char *name);
/** Scans the directory again. */
void mailbox_rescan(Mailbox *m);
/** @return whether nothing waits to be read */
bool mailbox_is_idle(const Mailbox *m);
