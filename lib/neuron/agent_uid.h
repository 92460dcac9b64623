/* Decides by its owner whether an agent has written a file. On storage that other users can write
 * to, an agent believes only files whose owner is an agent. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/** Looks up the names in `trusted`, which may block.
 * @param st_uid   the file's owner
 * @param own_uid  the owner of a file that this process has created there; differs from its own uid
 *   where the server maps users (root_squash)
 * @param trusted  `agreement.trusted_uids`: user names or numbers, NULL at the end; may be NULL. A
 *   name that this machine does not know matches no uid
 * @return whether the owner is an agent's user: own_uid; a user in `trusted`; or root, unless the
 *   server maps root to another user, which shows when this process is root and own_uid is not */
bool agent_uid_is_trusted(uid_t st_uid, uid_t own_uid, char *const *trusted);
