/* All dumps of one user: finds each, looks through it while its hook lives, copies what is there, and looks once more when the hook has ended. */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "collectors/container_dumps_private.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"

#define LOOK_USEC (50 * USEC_PER_MSEC)
#define TICK_USEC (10 * USEC_PER_MSEC)
#define PIECE_MAX (1 << 20)
#define FDS_SPARE 16
/* For a directory to be there: an order that waits for one holds a place that others need. A quarter of the order's time at most. */
#define ABSENT_USEC (10 * USEC_PER_SEC)
#define STALL_SEC                                                                                  \
        60 /* of a file system that hangs; a signal that kills ends even a wait for FUSE or NFS */

/* A rest that would follow is left out, and said. */
static void give_up_rest(Dumps *d, DumpUnit *u) {
        for (size_t i = 0; i < u->n_files; i++) {
                DumpFile *f = &u->files[i];
                if (f->state != DUMP_FILE_WAITING)
                        continue;
                _cleanup_free_ char *path = dumps_path(u, f);
                dumps_tell_seen(d, u, f);
                if (path)
                        dumps_leave_out(d, u, path, "the time was over before it was copied");
                f->state = DUMP_FILE_LEFT_OUT;
        }
}

static void say_end(Dumps *d, DumpUnit *u) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        give_up_rest(d, u);
        json_out_object(&b, NULL);
        json_out_string(&b, "type", "end");
        json_out_string(&b, "unit", u->id);
        json_out_bool(&b, "is_whole", d->is_over && !u->is_incomplete && !d->out->is_cut);
        json_out_end_object(&b);
        (void)collect_emit(d->out, &b); /* without it, it is not whole */
}

/* @return whether all hooks have ended */
static bool find_and_look(Dumps *d, bool *ret_any) {
        bool have_ended = true;
        for (size_t i = 0; i < d->n_hooks; i++) {
                DumpHook *h = &d->hooks[i];
                h->is_late = dumps_now() >= d->absent_usec;
                if (!h->is_answered)
                        dumps_find(d, h);
                /* Asked before the look: what it has written is there then. */
                if (!h->has_ended)
                        h->has_ended = h->is_answered && dumps_hook_has_ended(d, h);
                have_ended = have_ended && h->has_ended;
        }
        *ret_any = false;
        for (size_t i = 0; i < d->n_units; i++)
                *ret_any = dumps_look(d, d->units[i]) || *ret_any;
        return have_ended;
}

static void run(Dumps *d, DumpCopy *c) {
        uint64_t next_look = 0;
        bool have_ended = false, is_last = false;
        while (dumps_now() < d->deadline_usec) {
                (void)alarm(STALL_SEC);
                uint64_t begun = dumps_now();
                if (begun >= next_look) {
                        bool any;
                        have_ended = find_and_look(d, &any);
                        is_last = have_ended && !any;
                        uint64_t now = dumps_now();
                        next_look = now + MAX(LOOK_USEC, 4 * (now - begun));
                }
                if (dumps_copy_step(d, c, have_ended))
                        continue;
                d->is_over = is_last && !dumps_are_waiting(d);
                if (d->is_over)
                        return;
                (void)usleep(TICK_USEC);
        }
}

static int find_max_fds(void) {
        struct rlimit limit;
        if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur < FDS_SPARE)
                return 0;
        return (int)MIN(limit.rlim_cur - FDS_SPARE, (rlim_t)INT32_MAX);
}

int dumps_run(Dumps *d) {
        DumpCopy c = { .fd = -1, .buffer = malloc(PIECE_MAX) };
        d->max_fds = find_max_fds();
        d->absent_usec = dumps_now() + MIN(ABSENT_USEC, d->order->timeout_usec / 4);
        d->units = calloc(d->n_hooks + 1, sizeof *d->units);
        int r = d->units && c.buffer ? 0 : -ENOMEM;
        if (r == 0)
                run(d, &c);
        dumps_copy_done(&c);
        for (size_t i = 0; r == 0 && i < d->n_hooks; i++)
                if (!d->hooks[i].is_answered)
                        dumps_say_none(d->out, d->hooks[i].dump->note,
                                       "the time was over before its directory was there");
        for (size_t i = 0; r == 0 && i < d->n_units; i++) {
                say_end(d, d->units[i]);
                (void)dumps_unit_free(d->units[i]);
        }
        free(d->units);
        free(c.buffer);
        return r;
}
