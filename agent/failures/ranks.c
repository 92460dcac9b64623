/* Who runs is found by others (the records of the `jobs` collector, every 30 s); when one ends is
 * seen here, at once by a pidfd, or within 5 s where the kernel has none or refuses it. */
#include "agent/failures/ranks.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "collectors/host/procfs.h"
#include "lib/base/cleanup.h"
#include "lib/base/list.h"
#include "lib/event/timer.h"
#include "lib/neuron/owners.h"

#define POLL_USEC (5 * USEC_PER_SEC)

typedef struct Entry {
        Ranks *owner;
        ListLink link; /* oldest first */
        Rank rank;
        int pid_fd; /* -1: polled */
        sd_event_source *exit;
} Entry;

struct Ranks {
        RanksContext context;
        ListLink entries;
        Owners shares;
        sd_event_source *poll;
};

static inline uint64_t now_usec(const Ranks *r) {
        return r->context.clock->boottime_usec(r->context.clock);
}

static void entry_free(Entry *e) {
        sd_event_source_disable_unref(e->exit);
        cleanup_closep(&e->pid_fd);
        free(e);
}
DEFINE_CLEANUP(Entry, entry_free);

static Owner owner_of(const Rank *rank) {
        return (Owner){ .uid = rank->uid };
}

static void remove_entry(Entry *e) {
        const Owner owner = owner_of(&e->rank);
        owners_release(&e->owner->shares, &owner, 1);
        list_remove(&e->link);
}

/* ---- records ---- */

/* Printable ASCII without blanks, and not cut, as in a note. */
static bool read_word(const json_t *v, char *buf, size_t size) {
        const char *s = v ? json_string_value(v) : "";
        size_t n = s ? strlen(s) : size;
        if (n >= size)
                return false;
        for (size_t i = 0; i < n; i++)
                if (s[i] <= ' ' || s[i] >= 0x7f)
                        return false;
        memcpy(buf, s, n + 1);
        return true;
}

/* @return -1: it is missing, or none that can be */
static int64_t read_number(const json_t *object, const char *key, int64_t max) {
        const json_t *v = json_object_get(object, key);
        json_int_t n = json_is_integer(v) ? json_integer_value(v) : -1;
        return n >= 0 && n <= max ? n : -1;
}

static bool read_job(const json_t *v, JobIdentity *ret) {
        *ret = (JobIdentity){ .source = job_source_find(
                                      json_string_value(json_object_get(v, "source"))) };
        for (size_t i = 0; i < N_JOB_MEMBERS; i++) {
                const JobMember *m = &job_members[i];
                if (m->size == 0)
                        *(int64_t *)job_member(ret, m) = read_number(v, m->name, INT32_MAX);
                else if (!read_word(json_object_get(v, m->name), job_member(ret, m), m->size))
                        return false;
        }
        return ret->key[0] != '\0';
}

static uint64_t ticks_to_usec(uint64_t ticks) {
        uint64_t hz = (uint64_t)sysconf(_SC_CLK_TCK);
        return ticks / hz * USEC_PER_SEC + ticks % hz * USEC_PER_SEC / hz;
}

/* @return whether it names a process with a job */
static bool read_record(const char *text, Rank *ret) {
        json_t *v = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        int64_t pid = read_number(v, "pid", INT_MAX);
        int64_t ticks = read_number(v, "start_ticks", INT64_MAX / (int64_t)USEC_PER_SEC);
        int64_t uid = read_number(v, "uid", (int64_t)UINT32_MAX - 1);
        *ret = (Rank){ .pid = (pid_t)pid, .start_ticks = (uint64_t)ticks, .uid = (uid_t)uid };
        bool is_valid =
                pid > 0 && ticks > 0 && uid >= 0 && read_job(json_object_get(v, "job"), &ret->job);
        json_decref(v);
        if (is_valid)
                ret->started_usec = ticks_to_usec(ret->start_ticks);
        return is_valid;
}

static const Entry *find(const Ranks *r, const Rank *rank) {
        LIST_FOREACH (l, &r->entries) {
                const Entry *e = CONTAINER_OF(l, Entry, link);
                if (e->rank.pid == rank->pid && e->rank.start_ticks == rank->start_ticks)
                        return e;
        }
        return NULL;
}

/* ---- their ends ---- */

/* @return 0: it lives, 1: it has ended, another one may have its pid; -errno or an outcome of
 * procfs.h: that cannot be seen now */
static int check_process(const Ranks *r, const Rank *rank) {
        Proc p = { .dir_fd = -1 };
        int outcome = procfs_open(&p, r->context.proc_root, rank->pid, rank->start_ticks);
        bool has_ended = outcome == PROCFS_E_GONE || outcome == PROCFS_E_REPLACED ||
                         (outcome == 0 && procfs_is_zombie(&p));
        procfs_close(&p);
        return has_ended ? 1 : outcome > 0 ? -EACCES : outcome;
}

static void end_rank(Entry *e) {
        const RanksContext *c = &e->owner->context;
        e->rank.has_ended = true;
        e->rank.ended_usec = now_usec(e->owner);
        remove_entry(e);
        c->on_rank(&e->rank, c->userdata);
        entry_free(e);
}

static int on_exit_seen(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        (void)s, (void)fd, (void)revents;
        end_rank(userdata);
        return 0;
}

static void arm_poll(Ranks *r);

static int on_poll(sd_event_source *s, uint64_t usec, void *userdata) {
        Ranks *r = userdata;
        (void)s, (void)usec;
        LIST_FOREACH_SAFE (l, &r->entries) {
                Entry *e = CONTAINER_OF(l, Entry, link);
                if (e->pid_fd < 0 && check_process(r, &e->rank) == 1)
                        end_rank(e);
        }
        arm_poll(r);
        return 0;
}

/* While there is a rank without a pidfd. */
static void arm_poll(Ranks *r) {
        if (r->poll && sd_event_source_get_enabled(r->poll, NULL) > 0)
                return;
        LIST_FOREACH (l, &r->entries)
                if (CONTAINER_OF(l, Entry, link)->pid_fd < 0) {
                        /* fails only in another process, or for lack of memory at the first */
                        (void)timer_arm(&r->poll, &(TimerOptions){ .event = r->context.event,
                                                                   .usec = POLL_USEC,
                                                                   .handler = on_poll,
                                                                   .userdata = r });
                        return;
                }
}

/* ---- new ones ---- */

/* The last of that user that was seen; it is seen again in 10 minutes, when there may be room. */
static void displace(Ranks *r, const Owner *largest) {
        for (ListLink *l = r->entries.prev; l != &r->entries; l = l->prev) {
                Entry *e = CONTAINER_OF(l, Entry, link);
                if (e->rank.uid != largest->uid)
                        continue;
                end_rank(e); /* its end would not be seen: nobody must wait for it */
                return;
        }
}

static bool request_place(Ranks *r, const Rank *rank) {
        const Owner owner = owner_of(rank);
        Owner largest;
        int answer = owners_request(&r->shares, &owner, 1, &largest);
        if (answer == OWNERS_DISPLACE) {
                displace(r, &largest);
                owners_count_refused(&r->shares, &largest, now_usec(r));
                answer = owners_request(&r->shares, &owner, 1, &largest);
        } else if (answer == OWNERS_REFUSED)
                owners_count_refused(&r->shares, &owner, now_usec(r));
        return answer == OWNERS_GRANTED;
}

/* The pidfd comes before the check: whose start ticks are right then is whom it stands for.
 * @return NULL: it has ended, cannot be read, or there is no memory */
static Entry *watch_process(Ranks *r, const Rank *rank) {
        _cleanup_(entry_freep) Entry *e = calloc(1, sizeof *e);
        if (!e)
                return NULL;
        *e = (Entry){ .owner = r, .rank = *rank };
        e->pid_fd = (int)syscall(SYS_pidfd_open, rank->pid, 0); /* glibc has it since 2.36 only */
        if (check_process(r, rank) != 0)
                return NULL;
        if (e->pid_fd >= 0 &&
            sd_event_add_io(r->context.event, &e->exit, e->pid_fd, EPOLLIN, on_exit_seen, e) < 0) {
                cleanup_closep(&e->pid_fd);
                e->pid_fd = -1;
        }
        return TAKE_PTR(e);
}

void ranks_on_job(Ranks *r, const char *record) {
        Rank rank;
        if (!read_record(record, &rank) || find(r, &rank))
                return;
        rank.seen_usec = now_usec(r);
        Entry *e = watch_process(r, &rank);
        if (!e)
                return;
        if (!request_place(r, &rank)) {
                entry_free(e);
                return;
        }
        list_append(&r->entries, &e->link);
        arm_poll(r);
        r->context.on_rank(&e->rank, r->context.userdata);
}

/* ---- life, and questions ---- */

int ranks_new(Ranks **ret, const RanksContext *context) {
        Ranks *r = calloc(1, sizeof *r);
        if (!r)
                return -ENOMEM;
        *r = (Ranks){ .context = *context,
                      .shares = { .what = "ranks of this node", .max = RANKS_MAX } };
        list_init(&r->entries);
        *ret = r;
        return 0;
}

void ranks_rebind(Ranks *r, const char *proc_root) {
        r->context.proc_root = proc_root;
}

Ranks *ranks_free(Ranks *r) {
        if (!r)
                return NULL;
        LIST_FOREACH_SAFE (l, &r->entries)
                entry_free(CONTAINER_OF(l, Entry, link));
        sd_event_source_disable_unref(r->poll);
        owners_done(&r->shares);
        free(r);
        return NULL;
}

bool ranks_has_job(const Ranks *r, const char *job_key) {
        LIST_FOREACH (l, &r->entries)
                if (strcmp(CONTAINER_OF(l, Entry, link)->rank.job.key, job_key) == 0)
                        return true;
        return false;
}

bool ranks_are_others(const Ranks *r, const char *job_key, uid_t uid) {
        bool any = false;
        LIST_FOREACH (l, &r->entries) {
                const Rank *rank = &CONTAINER_OF(l, Entry, link)->rank;
                if (strcmp(rank->job.key, job_key) != 0)
                        continue;
                if (rank->uid == uid)
                        return false;
                any = true;
        }
        return any;
}

size_t ranks_n(const Ranks *r) {
        return (size_t)r->shares.total;
}

bool job_is_local(const JobIdentity *job, size_t n_here, bool rendezvous_is_here) {
        return job->world_size > 0 ? n_here >= (size_t)job->world_size : rendezvous_is_here;
}
