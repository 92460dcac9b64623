#include "hook/mailbox.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

#include "hook/put_file.h"
#include "lib/base/cleanup.h"
#include "lib/neuron/note.h"

int mailbox_leave(const char *directory, const char *id, const char *note, size_t n) {
        char name[NOTE_ID_SIZE + sizeof ".json"];
        /* O_PATH: it may be written by everybody, and listed by nobody. */
        _cleanup_close_ int fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        (void)snprintf(name, sizeof name, "%s.json", id);
        return put_file(fd, name, 0600, &(PutContent){ .text = note, .n = n });
}
