#include "agent/hooknotes/mailbox_room.h"

#include "lib/base/cleanup.h"

static MailboxSender *sender_of(MailboxRoom *room, uid_t uid) {
        for (size_t i = 0; i < room->n_senders; i++)
                if (room->senders[i].uid == uid)
                        return &room->senders[i];
        if (room->n_senders == ELEMENTSOF(room->senders))
                return &room->senders[room->n_senders - 1];
        room->senders[room->n_senders] = (MailboxSender){ .uid = uid };
        return &room->senders[room->n_senders++];
}

/* ---- levels ---- */

static uint64_t notes_asked(const MailboxSender *s) {
        return s->n_notes_asked;
}

static uint64_t bytes_asked(const MailboxSender *s) {
        return s->bytes_asked;
}

typedef uint64_t (*Asked)(const MailboxSender *s);

static bool fits(const MailboxRoom *room, Asked asked, uint64_t level, uint64_t max) {
        uint64_t sum = 0; /* of at most 1,000 bounds of a user */
        for (size_t i = 0; i < room->n_senders; i++)
                sum += MIN(asked(&room->senders[i]), level);
        return sum <= max;
}

/* @return the most that each may have so that all who asked for less get it, and all together fit */
static uint64_t find_level(const MailboxRoom *room, Asked asked, uint64_t max_of_uid,
                           uint64_t max) {
        uint64_t low = 0, high = max_of_uid;
        while (low < high) {
                uint64_t middle = high - (high - low) / 2;
                if (fits(room, asked, middle, max))
                        low = middle;
                else
                        high = middle - 1;
        }
        return low;
}

/* ---- looks ---- */

void mailbox_room_init(MailboxRoom *room) {
        room->n_senders = 0;
        room->level_notes = MAILBOX_NOTES_MAX_OF_UID;
        room->level_bytes = MAILBOX_BYTES_MAX_OF_UID;
}

bool mailbox_room_next(MailboxRoom *room) {
        uint64_t notes = room->level_notes, bytes = room->level_bytes;
        room->level_notes =
                find_level(room, notes_asked, MAILBOX_NOTES_MAX_OF_UID, MAILBOX_NOTES_MAX);
        room->level_bytes =
                find_level(room, bytes_asked, MAILBOX_BYTES_MAX_OF_UID, MAILBOX_BYTES_MAX);
        room->n_senders = 0;
        return room->level_notes < notes || room->level_bytes < bytes;
}

MailboxPlace mailbox_room_place(MailboxRoom *room, uid_t uid, uint64_t bytes, bool is_note) {
        MailboxSender *sender = sender_of(room, uid);
        uint64_t counted = MAX(bytes, (uint64_t)MAILBOX_ENTRY_BYTES);
        uint64_t rest = MAILBOX_BYTES_MAX_OF_UID - sender->bytes_asked;
        sender->bytes_asked += MIN(counted, rest);
        sender->n_notes_asked += is_note && sender->n_notes_asked < MAILBOX_NOTES_MAX_OF_UID;
        if (is_note && sender->n_notes >= room->level_notes)
                return MAILBOX_FULL;
        if (!is_note &&
            (sender->bytes > room->level_bytes || counted > room->level_bytes - sender->bytes))
                return MAILBOX_FULL;
        sender->bytes += MIN(counted, MAILBOX_BYTES_MAX_OF_UID); /* so that no sum overflows */
        sender->n_notes += is_note;
        return is_note ? MAILBOX_TAKE : MAILBOX_WAIT;
}
