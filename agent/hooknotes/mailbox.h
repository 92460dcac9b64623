/* The mailbox: a directory where hooks leave their notes while no agent answers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "lib/base/bound.h"

typedef struct Mailbox Mailbox;

typedef struct Mail { /* borrowed for the call */
        const char *name;
        const char *data; /* NUL-terminated behind n */
        size_t n;
        Owner owner;           /* of the file */
        uint64_t written_usec; /* CLOCK_REALTIME when it was last changed, by the kernel */
} Mail;

typedef struct MailboxOptions {
        sd_event *event;  /* borrowed */
        const char *path; /* copied */
        /* A file that may be a note; each pass finds it again until mailbox_remove(). */
        void (*on_mail)(const Mail *mail, void *userdata);
        /* Something was removed. @param why  static; NULL: its owner has too many files, which is
         * logged already */
        void (*on_refused)(const Owner *o, const char *why, void *userdata);
        void *userdata;
} MailboxOptions;

/** Creates the directory if it is missing, and starts the first pass.
 * @return 0; -ENOTDIR, -EPERM: a file of another user is in its place; -errno */
int mailbox_new(Mailbox **ret, const MailboxOptions *options);
Mailbox *mailbox_free(Mailbox *m); /* takes NULL, returns NULL */

/** Removes a file that was read. */
void mailbox_remove(Mailbox *m, const char *name);
/** Starts another pass, after the one that is underway. */
void mailbox_rescan(Mailbox *m);
/** @return whether a pass is underway */
bool mailbox_is_scanning(const Mailbox *m);
/** Whose the files of the last pass are, for the view. */
const Bound *mailbox_bound(const Mailbox *m);
