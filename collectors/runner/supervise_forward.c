/* Records that the agent is told of before the document is there. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "collectors/runner/supervise_private.h"

#define LINE_MAX_BYTES (PROBE_PACKET_MAX - 64)
#define BUSY_MSEC 1000 /* an agent that does not read finds the record in the document */

static void tell(const Forward *f) {
        static const char prefix[] = "{\"type\":\"dump\",";
        if (strncmp(f->line, prefix, sizeof prefix - 1) != 0)
                return;
        if (supervise_say(f->fd, "%s %s", f->word, f->line) != -EAGAIN)
                return;
        struct pollfd p = { .fd = f->fd, .events = POLLOUT };
        if (poll(&p, 1, BUSY_MSEC) > 0)
                (void)supervise_say(f->fd, "%s %s", f->word,
                                    f->line); /* the same: it is in the document */
}

int forward_take(Forward *f, const char *data, size_t n) {
        if (!f->line && !(f->line = malloc(LINE_MAX_BYTES + 1)))
                return -ENOMEM;
        for (size_t i = 0; i < n; i++) {
                if (data[i] == '\0')
                        f->is_too_long = true; /* no record either */
                if (data[i] != '\n') {
                        f->is_too_long = f->is_too_long || f->n >= LINE_MAX_BYTES;
                        if (!f->is_too_long)
                                f->line[f->n++] = data[i];
                        continue;
                }
                f->line[f->n] = '\0';
                if (!f->is_too_long)
                        tell(f);
                f->n = 0;
                f->is_too_long = false;
        }
        return 0;
}

void forward_done(Forward *f) {
        free(f->line);
        f->line = NULL;
}
