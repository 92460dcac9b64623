/* The note where an agent that is not there now finds it later. */
#pragma once

#include <stddef.h>

/** Leaves a note as `<id>.json`, mode 0600: the agent can read it all the same. The directory is the agent's (mode 1733), and is not made.
 * @return 0; -ENOENT: there is no mailbox, so there has never been an agent; -errno */
int mailbox_leave(const char *directory, const char *id, const char *note, size_t n);
