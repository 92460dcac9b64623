/* Who is an agent: on storage that others write to, too, a file says something to an agent only if
 * its owner is one. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/** Tells whether the owner of a file is an agent's user: the one that this agent is there; one that
 * is listed; or root, unless the server takes root's files for another user's (root_squash), as it
 * does when this process is root and own_uid is not. Names are looked up, which may block.
 * @param st_uid   the file's owner
 * @param own_uid  the owner of a file that this process has created there: not always its own uid
 * @param trusted  `agreement.trusted_uids`: user names or numbers, NULL at the end; may be NULL. A
 *   name that is not known is nobody's */
bool agent_uid_is_trusted(uid_t st_uid, uid_t own_uid, char *const *trusted);
