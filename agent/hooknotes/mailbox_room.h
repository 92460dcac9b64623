/* How much may lie in the mailbox: decides, of the entries of one look, which are taken, which stay and which have to go. Pure: it touches no file. Everybody
 * on the machine may write there, and a user namespace has many uids, so that there is a bound of a user and one of all.
 *
 * Where all together have more than the bound of all, it is who has most that has to make room, not who comes last: entries come in no order, so that a look
 * only finds out what one user may have for all to fit (the level), and the next look holds everybody to it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define MAILBOX_NOTES_MAX 1000
#define MAILBOX_NOTES_MAX_OF_UID 100
#define MAILBOX_BYTES_MAX (64ULL * 1024 * 1024)
#define MAILBOX_BYTES_MAX_OF_UID (16ULL * 1024 * 1024)
#define MAILBOX_ENTRY_BYTES                                                                        \
        4096 /* that an entry counts as at least: so 4,096 of a user, 16,384 in all */

typedef struct MailboxSender {
        uid_t uid;
        uint64_t n_notes, bytes;             /* that may stay */
        uint64_t n_notes_asked, bytes_asked; /* with what has to go, up to a user's bound */
} MailboxSender;

typedef struct MailboxRoom {
        MailboxSender senders[MAILBOX_NOTES_MAX];
        size_t n_senders; /* when there are more, the last one is all others together */
        uint64_t level_notes,
                level_bytes; /* what a user may have in this look: his bound, or less */
} MailboxRoom;

typedef enum MailboxPlace {
        MAILBOX_TAKE, /* read it now; never refused for want of bytes: 100 notes of a user are 6.4 MiB */
        MAILBOX_WAIT, /* unfinished, and there is room for it to lie there */
        MAILBOX_FULL, /* a note too many, or no room: it has to go */
} MailboxPlace;

void mailbox_room_init(MailboxRoom *room);
/** A look has ended, the next one begins.
 * @return whether somebody has more than he may have from now on, so that the next look should be soon */
bool mailbox_room_next(MailboxRoom *room);
/** @param bytes  that it has on disk @param is_note  false: it only lies there, unfinished, and cannot be taken now */
MailboxPlace mailbox_room_place(MailboxRoom *room, uid_t uid, uint64_t bytes, bool is_note);
