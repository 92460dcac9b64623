/* Decides by its owner whether an agent has written a file: see agent_uid.h for the rule. What
 * follows for the file is left to the callers. */
#include "lib/neuron/agent_uid.h"

#include <pwd.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"

#define PASSWD_BYTES (16 * KIB) /* of one entry's strings */

static bool is_user(uid_t uid, const char *user) {
        struct passwd entry, *found = NULL;
        uint64_t number;

        if (parse_u64_range(user, 0, UINT32_MAX - 1, &number) == 0)
                return uid == (uid_t)number;
        _cleanup_free_ char *space = malloc(PASSWD_BYTES);
        return space && getpwnam_r(user, &entry, space, PASSWD_BYTES, &found) == 0 && found &&
               found->pw_uid == uid;
}

bool agent_uid_is_trusted(uid_t st_uid, uid_t own_uid, char *const *trusted) {
        bool is_squashed = geteuid() == 0 && own_uid != 0;

        if (st_uid == own_uid || (st_uid == 0 && !is_squashed))
                return true;
        for (; trusted && *trusted; trusted++)
                if (is_user(st_uid, *trusted))
                        return true;
        return false;
}
