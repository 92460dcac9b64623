/* How much may be copied out of containers, decided without looking at a disk. */
#pragma once

#include <stdint.h>

/* One user may have half of hook.container_bytes, and nothing is copied that would leave less of the state directory's file system free than this. */
#define CONTAINERS_KEEP_FREE_PERCENT 10
#define CONTAINERS_LEAST_BYTES ((uint64_t)1 << 20) /* with less no copy is begun */
#define CONTAINERS_FAIR_BYTES ((uint64_t)64 << 20) /* so much is not halved any more */

typedef struct ContainersRoom {          /* bytes */
        uint64_t limit;                  /* hook.container_bytes */
        uint64_t used, used_by_uid;      /* by what lies there */
        uint64_t promised, promised_uid; /* to copies that are underway */
        uint64_t disk, disk_free;        /* of the file system */
} ContainersRoom;

/** @param ret_why  static, a sentence with the remedy; only with 0
 * @return what a copy for this user may take: half of what there is, the other is for those that come while it is underway; 0: too little to begin */
uint64_t containers_room_for(const ContainersRoom *r, const char **ret_why);
