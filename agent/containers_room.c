#include "agent/containers_room.h"

#include "lib/base/cleanup.h"

static uint64_t less(uint64_t a, uint64_t b) {
        return a > b ? a - b : 0;
}

uint64_t containers_room_for(const ContainersRoom *r, const char **ret_why) {
        uint64_t all = less(less(r->limit, r->used), r->promised);
        uint64_t own = less(less(r->limit / 2, r->used_by_uid), r->promised_uid);
        uint64_t disk =
                less(less(r->disk_free, r->disk / 100 * CONTAINERS_KEEP_FREE_PERCENT), r->promised);
        uint64_t room = MIN(all, own);
        room = MIN(room, disk);
        if (room >= CONTAINERS_LEAST_BYTES)
                return MIN(room, MAX(room / 2, CONTAINERS_FAIR_BYTES));
        *ret_why = room == disk
                           ? "the file system of the state directory is nearly full; free some "
                             "of it"
                   : room == all ? "hook.container_bytes are taken; raise it, or deliver what is "
                                   "waiting"
                                 : "its user has half of hook.container_bytes; raise it, or "
                                   "deliver what is waiting";
        return 0;
}
