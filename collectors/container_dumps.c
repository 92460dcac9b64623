/* Dumps in containers: what a hook's directory holds that this machine's own tree does not have, copied while the hook lives. Each user's in a process of
 * its own: what one has made hang (a file system of his own) holds up nobody else's. See docs/HOOK.md, "Containers".
 *
 * Records, in the order in which things become known. `path` is as INTERFACE spells paths; but for `dump` it is below the unit's directory.
 *   {"type":"dump","note":ID,"where":"here"}                               the hook sees the machine's own files: nothing is copied
 *   {"type":"dump","note":ID,"where":"container","unit":UNIT,"container":ID or null,"path":PATH}
 *   {"type":"dump","note":ID,"where":"none","detail":SENTENCE}             it is not to be had
 *   {"type":"seen","unit":UNIT,"path":PATH,"bytes":N}                      a regular file, held open by now; once
 *   {"type":"file","unit":UNIT,"path":PATH,"file":"f000001","bytes":N,"mtime_nsec":N}    copied whole; of several of one path the last counts
 *   {"type":"left_out","unit":UNIT,"path":PATH,"detail":SENTENCE}          not copied, and why; a later `file` of the path is another file
 *   {"type":"renamed","unit":UNIT,"path":PATH}                             a file that was seen has another name now, under which it is told of
 *   {"type":"end","unit":UNIT,"is_whole":BOOL}                             true: its hooks have ended, and nothing was left out
 * Raw files that no record names are copies of what was written to meanwhile. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "collectors/container_dumps_private.h"
#include "collectors/runner/crew.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/json_out.h"

#define SLACK_USEC (3 * USEC_PER_SEC) /* before the supervisor's time is over */
#define LINE_BYTES_MAX (64 << 10)
#define RECORDS_OF_ONE_MIN (128 * KIB)

typedef struct User {
        uid_t uid;
        DumpHook *hooks;
        size_t n_hooks;
} User;

typedef struct Run {
        const CollectOrder *order;
        CollectOut out; /* records */
        int raw_fd;
        DumpsShared *shared;
        User *users;
        size_t n_users;
        uint64_t deadline_usec;
} Run;

uint64_t dumps_now(void) {
        return clock_system()->boottime_usec(clock_system());
}

void dumps_say_none(CollectOut *out, const char *note, const char *detail) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        json_out_object(&b, NULL);
        json_out_string(&b, "type", "dump");
        json_out_path(&b, "note", note);
        json_out_string(&b, "where", "none");
        json_out_string(&b, "detail", detail);
        json_out_end_object(&b);
        (void)collect_emit(out, &b); /* what does not fit is remembered there */
}

/* ---- in a user's process ---- */

static int run_user(const CrewTask *task, int fd, void *userdata) {
        const User *u = task->userdata;
        const Run *run = userdata;
        bool is_alone = run->n_users == 1;
        CollectOut out = { .fd = fd,
                           .dir_fd = run->raw_fd >= 0 ? CREW_KEPT_FD : -1,
                           .max_bytes = run->out.max_bytes };
        /* Of several, none has more than half. */
        Dumps d = { .order = run->order,
                    .uid = u->uid,
                    .out = &out,
                    .shared = run->shared,
                    .max_bytes = run->order->max_bytes / (is_alone ? 1 : 2),
                    .max_files = CONTAINER_FILES_MAX / (is_alone ? 1 : 2),
                    .deadline_usec = run->deadline_usec,
                    .hooks = u->hooks,
                    .n_hooks = u->n_hooks };
        return dumps_run(&d);
}

/* ---- in the collector's ---- */

/* A record that answers a note begins so: see dumps_say_none() and container_dumps_find.c. */
static bool answers(const char *line, const char *note) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        json_out_object(&b, NULL);
        json_out_string(&b, "type", "dump");
        json_out_path(&b, "note", note);
        return strbuf_error(&b) == 0 && strncmp(line, b.text, b.n) == 0;
}

static int on_line(const CrewTask *task, char *line, size_t n, void *userdata) {
        static const char dump[] = "{\"type\":\"dump\"";
        User *u = task->userdata;
        Run *run = userdata;
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        for (size_t i = 0; strncmp(line, dump, sizeof dump - 1) == 0 && i < u->n_hooks; i++)
                u->hooks[i].is_answered =
                        u->hooks[i].is_answered || answers(line, u->hooks[i].dump->note);
        strbuf_add_n(&b, line, n);
        int r = collect_emit(&run->out, &b);
        return r == -EFBIG ? 0 : r;
}

static int on_end(const CrewTask *task, int result, void *userdata) {
        const User *u = task->userdata;
        Run *run = userdata;
        const char *why = result == -ETIMEDOUT ? "the time was over before it was found"
                          : result == -EPIPE   ? "the process that looked for it was ended: the "
                                                 "user's file system may hang"
                                               : "nobody could look for it";
        for (size_t i = 0; i < u->n_hooks; i++)
                if (!u->hooks[i].is_answered)
                        dumps_say_none(&run->out, u->hooks[i].dump->note, why);
        return 0;
}

/* Makes room in `hooks` for each user's, one after the other. */
static void group(Run *run, DumpHook *hooks) {
        const CollectOrder *o = run->order;
        size_t n = 0;
        for (size_t i = 0; i < o->n_container_dumps; i++) {
                uid_t uid = o->container_dumps[i].uid;
                bool is_known = false;
                for (size_t k = 0; k < run->n_users && !is_known; k++)
                        is_known = run->users[k].uid == uid;
                if (is_known)
                        continue;
                User *u = &run->users[run->n_users++];
                *u = (User){ .uid = uid, .hooks = hooks + n };
                for (size_t k = i; k < o->n_container_dumps; k++)
                        if (o->container_dumps[k].uid == uid)
                                u->hooks[u->n_hooks++].dump = &o->container_dumps[k];
                n += u->n_hooks;
        }
}

static int run_users(Run *run) {
        uint64_t timeout = run->order->timeout_usec, slack = MIN(timeout / 5, SLACK_USEC);
        uint64_t share = run->out.max_bytes / (run->n_users + 1);
        _cleanup_free_ CrewTask *tasks = calloc(run->n_users + 1, sizeof *tasks);
        Crew crew = { .run = run_user,
                      .on_line = on_line,
                      .on_end = on_end,
                      .userdata = run,
                      .max_at_once = CREW_AT_ONCE_MAX,
                      .kept_fd = MAX(run->raw_fd, 0),
                      .timeout_usec = timeout - slack / 2,
                      .max_line_bytes = LINE_BYTES_MAX,
                      .max_bytes_each = MAX(share, RECORDS_OF_ONE_MIN) };
        if (!tasks)
                return -ENOMEM;
        run->deadline_usec = dumps_now() + timeout - slack;
        for (size_t i = 0; i < run->n_users; i++)
                tasks[i] = (CrewTask){ .name = "user", .userdata = &run->users[i] };
        return crew_run(&crew, tasks, run->n_users);
}

int collect_container_dumps(const CollectOrder *order, CollectOut *out) {
        size_t n = order->n_container_dumps;
        _cleanup_free_ DumpHook *hooks = calloc(n + 1, sizeof *hooks);
        _cleanup_free_ User *users = calloc(n + 1, sizeof *users);
        Run run = { .order = order,
                    .out = { .fd = out->fd, .dir_fd = -1, .max_bytes = CONTAINER_RECORDS_BYTES },
                    .raw_fd = out->dir_fd,
                    .users = users };
        if (!hooks || !users)
                return -ENOMEM;
        run.shared = mmap(NULL, sizeof *run.shared, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (run.shared == MAP_FAILED)
                return -errno;
        group(&run, hooks);
        int r = run_users(&run);
        out->is_cut = run.out.is_cut;
        (void)munmap(run.shared, sizeof *run.shared); /* fails only for a wrong address */
        return r;
}
