#include "agent/failures/failures.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "agent/failures/arbiter.h"
#include "agent/failures/pointers.h"
#include "agent/failures/ranks.h"
#include "agent/peers/agreement.h"
#include "agent/peers/bus.h"
#include "agent/peers/record.h"
#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/list.h"
#include "lib/base/log.h"
#include "lib/event/timer.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/owners.h"

#define REVISION_EPOCH_SEC UINT64_C(1767225600) /* 2026 */
#define PROCESSES_MAX 8192
#define UNITS_MAX 8192
#define UNITS_OF_OWNER_MAX 1024
#define KEYS_OF_OWNER_MAX 32
#define PROCESSES_OF_OWNER_MAX 2048
/* A unit of which no hook has spoken for so long is claimed without one. */
#define NOTE_WAIT_USEC (INT64_C(2) * 1000000)
/* READY without a name: so long beyond `settle`, or in a hurry in all. */
#define NAME_WAIT_USEC (INT64_C(15) * 1000000)
#define NAME_WAIT_HURRY_USEC (INT64_C(2) * 1000000)
/* With --once what is due so soon is waited for, and for so long in all. */
#define SOON_USEC (INT64_C(1200) * 1000)
#define IDLE_WAIT_USEC (INT64_C(5) * 1000000)
/* Names of hosts are looked up meanwhile, and the bus may get its key. */
#define MEETING_USEC (INT64_C(2) * 1000000)
#define BOOT_ID_PATH "/proc/sys/kernel/random/boot_id"

/* The job, or the cluster id, that failures are numbered by. */
typedef struct Key {
        ListLink link;
        char key[CLAIM_KEY_SIZE];
        char job[JOB_KEY_SIZE]; /* "" = by cluster id */
        JobIdentity identity;   /* of one of its ranks; key "" = not known */
        uid_t uid;
        Arbiter *arbiter; /* NULL: none can decide */
        bool is_local;    /* the job is on this node alone */
        size_t n_processes;
        uint32_t n_reported; /* failures whose snapshot was asked for */
} Key;

/* For a pointer to what was delivered before the state database was lost. */
typedef enum Search { SEARCH_NOT, SEARCH_UNDERWAY, SEARCH_ENDED } Search;

typedef struct FailureUnit {
        ListLink link;
        char *source, *path;
        uid_t uid;
        struct Process *first;       /* whose failure names it; NULL: none yet */
        char bundle[BUNDLE_ID_SIZE]; /* "" = not found yet */
        int64_t due_usec;            /* claimed without a note then; 0 = claimed */
        int64_t ready_usec;          /* asked for its name; 0 = not yet */
        Search search;
        int64_t search_until_usec; /* while its place cannot be reached */
        ObjectCall *call;          /* of the search */
        FailureName found;
        Failures *failures;
} FailureUnit;
typedef FailureUnit Unit;

/* A process of this node, and so a claim. */
typedef struct Process {
        ListLink link;
        char key[CLAIM_KEY_SIZE];
        uid_t uid; /* whose it counts as */
        Claim claim;
        Unit *unit;     /* NULL: none */
        uid_t note_uid; /* whose hook reported it; 0: none, the agent itself */
        uint32_t n;     /* of its failure; 0 = not known */
        bool is_placed;
        int64_t changed_usec;
} Process;

struct Failures {
        FailuresContext context;
        const Config *config;
        Scheduler *scheduler;
        Agreement *agreement;
        Ranks *ranks;
        Pointers *pointers;
        Bus *bus; /* NULL: none */
        ListLink keys, units, processes;
        size_t n_keys, n_units, n_processes;
        sd_event_source *timer;
        char boot_id[CLAIM_BOOT_ID_SIZE];
        bool hurry;
        bool is_unable; /* an arbiter turned out to be: what waited for it may go without a name */
        int64_t prune_usec;    /* next */
        int64_t meeting_usec;  /* next look at where jobs meet */
        uint64_t created_usec; /* the state database, CLOCK_REALTIME */
        int64_t drop_usec;     /* its old rows, next */
        int64_t busy_usec;     /* since when is waited for what is to be written; 0 = it is not */
        FailuresFigures figures;
};

static int64_t now_usec(const Failures *f) {
        return (int64_t)f->context.clock->boottime_usec(f->context.clock);
}

/* CLOCK_REALTIME less CLOCK_BOOTTIME. */
static int64_t realtime_offset(const Failures *f) {
        Clock *c = f->context.clock;
        return (int64_t)c->realtime_usec(c) - (int64_t)c->boottime_usec(c);
}

/* A time of the past by CLOCK_REALTIME, which may have been set since. */
static int64_t boottime_of(const Failures *f, uint64_t realtime_usec) {
        int64_t now = now_usec(f), t = (int64_t)realtime_usec - realtime_offset(f);
        return realtime_usec == 0 || t > now ? now : MAX(t, now - AGREEMENT_KEEP_USEC);
}

static void step(Failures *f);

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        step(userdata);
        return 0;
}

static void arm(Failures *f, int64_t at) {
        uint64_t now = (uint64_t)now_usec(f);
        int r = timer_arm(&f->timer,
                          &(TimerOptions){ .event = f->context.event,
                                           .usec = (uint64_t)at > now ? (uint64_t)at - now : 0,
                                           .slack_usec = 10 * USEC_PER_MSEC,
                                           .handler = on_timer,
                                           .userdata = f });
        if (r < 0 && r != -ESTALE) /* the loop has ended */
                log_error(r, "cannot arm the timer of the agreement between nodes");
}

static void step_soon(Failures *f) {
        arm(f, 0);
}

/* ---- keys ---- */

static Key *find_key(const Failures *f, const char *key) {
        LIST_FOREACH (l, &f->keys) {
                Key *k = CONTAINER_OF(l, Key, link);
                if (strcmp(k->key, key) == 0)
                        return k;
        }
        return NULL;
}

static void free_key(Failures *f, Key *k) {
        agreement_forget(f->agreement, k->key);
        list_remove(&k->link);
        if (k->arbiter)
                arbiter_cancel(k->arbiter); /* the agreement waits for it */
        arbiter_free(k->arbiter);
        free(k);
        f->n_keys--;
}

static void on_arbiter_done(Arbiter *a, void *userdata) {
        Failures *f = userdata;
        f->is_unable = f->is_unable || arbiter_is_unable(a);
        step_soon(f);
}

/* The first destination of the source, or of the first source that has dumps. */
static const ConfigSource *source_of(const Failures *f, const char *source) {
        const ConfigSource *c = source ? config_find_source(f->config, source) : NULL;
        for (size_t i = 0; !c && i < f->config->n_sources; i++)
                if (f->config->sources[i].kind == CONFIG_NEURON_CORE_DUMP)
                        c = &f->config->sources[i];
        return c && c->destinations.n > 0 ? c : NULL;
}

static void find_arbiter(Failures *f, Key *k, const char *source) {
        const ConfigSource *c = source_of(f, source);
        if (k->arbiter || !c || !f->scheduler ||
            !objects_are_shared(f->scheduler, c->destinations.items[0]))
                return;
        int r = arbiter_new(&k->arbiter,
                            &(ArbiterOptions){ .clock = f->context.clock,
                                               .agreement = f->agreement,
                                               .instance_id = f->context.instance_id,
                                               .key = k->key,
                                               .job_key = k->job,
                                               .destination = c->destinations.items[0],
                                               .kind = source_kind_name((SourceKind)c->kind),
                                               .source = c->name,
                                               .on_done = on_arbiter_done,
                                               .userdata = f });
        if (r < 0)
                log_error(r, "failure %s: cannot ask destination %s", k->key,
                          c->destinations.items[0]);
}

static void set_arbiter(Failures *f, const Key *k) {
        int r = agreement_set_arbiter(f->agreement, k->key,
                                      k->arbiter && !arbiter_is_unable(k->arbiter));
        if (r < 0)
                log_warning(r, "failure %s: it is named by this node alone", k->key);
}

/* With other destinations it may be another one, or be able now. */
static void replace_arbiter(Failures *f, Key *k) {
        const ConfigSource *c = source_of(f, k->arbiter ? arbiter_source_name(k->arbiter) : NULL);
        bool stays = k->arbiter && c && !arbiter_is_unable(k->arbiter) &&
                     strcmp(c->destinations.items[0], arbiter_destination(k->arbiter)) == 0 &&
                     objects_are_shared(f->scheduler, c->destinations.items[0]);
        if (!stays) {
                if (k->arbiter)
                        arbiter_cancel(k->arbiter);
                k->arbiter = arbiter_free(k->arbiter);
                set_arbiter(f, k);
                find_arbiter(f, k, c ? c->name : NULL);
        }
        set_arbiter(f, k);
}

static size_t keys_of(const Failures *f, uid_t uid) {
        size_t n = 0;
        LIST_FOREACH (l, &f->keys)
                n += CONTAINER_OF(l, Key, link)->uid == uid;
        return n;
}

static bool is_settled(const Process *p) {
        return !p->unit && p->claim.state != CLAIM_ALIVE &&
               (p->is_placed || p->claim.state == CLAIM_ENDED);
}

static void free_process(Failures *f, Process *p) {
        Key *k = find_key(f, p->key);
        if (k)
                k->n_processes--;
        list_remove(&p->link);
        free(p);
        f->n_processes--;
}

/* The oldest one of which all is settled goes; of an owner who has many, one of his.
 * @return whether there is room for one more */
static bool make_room_for_key(Failures *f, uid_t uid) {
        bool has_many = uid != 0 && keys_of(f, uid) >= KEYS_OF_OWNER_MAX;
        if (!has_many && f->n_keys < AGREEMENT_KEYS_MAX)
                return true;
        LIST_FOREACH (l, &f->keys) {
                Key *k = CONTAINER_OF(l, Key, link);
                bool is_needed = has_many && k->uid != uid;
                LIST_FOREACH (m, &f->processes) {
                        const Process *p = CONTAINER_OF(m, Process, link);
                        is_needed = is_needed || (!is_settled(p) && strcmp(p->key, k->key) == 0);
                }
                if (is_needed)
                        continue;
                LIST_FOREACH_SAFE (m, &f->processes) {
                        Process *p = CONTAINER_OF(m, Process, link);
                        if (strcmp(p->key, k->key) == 0)
                                free_process(f, p);
                }
                free_key(f, k);
                return true;
        }
        return false;
}

/* @return NULL: one more of this owner is too many, or no memory */
static Key *get_key(Failures *f, const char *key, const char *job, uid_t uid, const char *source) {
        Key *k = find_key(f, key);
        if (!k) {
                k = make_room_for_key(f, uid) ? calloc(1, sizeof *k) : NULL;
                if (!k) {
                        f->figures.n_dropped++;
                        return NULL;
                }
                (void)strcpy(k->key, key); /* as long as this, by claim_key_build() */
                (void)snprintf(k->job, sizeof k->job, "%s", job);
                k->uid = uid;
                list_append(&f->keys, &k->link);
                f->n_keys++;
        }
        if (!k->job[0] && job[0]) { /* after a restart */
                (void)snprintf(k->job, sizeof k->job, "%s", job);
                k->uid = uid;
        }
        find_arbiter(f, k, source);
        set_arbiter(f, k);
        return k;
}

/* ---- jobs ---- */

/* @return when the last process of a job started; what ended before was another launch of it, with
 * other ranks on this node */
static int64_t last_start(const Failures *f, const char *key) {
        int64_t t = INT64_MIN;
        LIST_FOREACH (l, &f->processes) {
                const Process *p = CONTAINER_OF(l, Process, link);
                if (p->claim.started_usec > t && strcmp(p->key, key) == 0)
                        t = p->claim.started_usec;
        }
        return t;
}

/* @return how many ranks of the job's last launch are or were here; those that no job on this node
 * alone has are not compared with each other */
static size_t ranks_here(const Failures *f, const char *key) {
        bool is_seen[PROCESSES_MAX] = { false };
        int64_t start = last_start(f, key);
        size_t n = 0;
        LIST_FOREACH (l, &f->processes) {
                const Claim *c = &CONTAINER_OF(l, Process, link)->claim;
                if (c->rank < 0 || (c->state != CLAIM_ALIVE && c->event_usec < start) ||
                    strcmp(CONTAINER_OF(l, Process, link)->key, key) != 0)
                        continue;
                n += c->rank >= PROCESSES_MAX || !is_seen[c->rank];
                if (c->rank < PROCESSES_MAX)
                        is_seen[c->rank] = true;
        }
        return n;
}

static bool find_whether_local(const Failures *f, const Key *k) {
        char host[JOB_HOST_SIZE];
        if (k->job[0] == '\0' || k->identity.key[0] == '\0')
                return false;
        bool is_here = !job_rendezvous_host(&k->identity, host) ||
                       (f->bus && bus_is_own_host(f->bus, host));
        return job_is_local(&k->identity, ranks_here(f, k->key), is_here);
}

/* The centre of a job's star is the agent on the node of its rendezvous. */
static Role role_of(const Failures *f, const Key *k) {
        char host[JOB_HOST_SIZE];
        BusView bus;
        if (!job_rendezvous_host(&k->identity, host) || k->is_local)
                return ROLE_NONE;
        bus_view(f->bus, &bus);
        return !bus.has_key ? ROLE_NONE : bus_is_own_host(f->bus, host) ? ROLE_CENTRE : ROLE_LEAF;
}

/* ---- processes ---- */

static Process *find_process(const Failures *f, const Claim *c) {
        LIST_FOREACH (l, &f->processes) {
                Process *p = CONTAINER_OF(l, Process, link);
                if (claim_compare_process(&p->claim, c) == 0)
                        return p;
        }
        return NULL;
}

/* Of those that are settled the oldest goes; of an owner who has his share, one of his. */
static bool make_room(Failures *f, uid_t uid) {
        Process *any = NULL, *own = NULL;
        size_t n_own = 0;
        LIST_FOREACH (l, &f->processes) {
                Process *p = CONTAINER_OF(l, Process, link);
                n_own += p->uid == uid;
                if (is_settled(p)) {
                        any = any ? any : p;
                        own = own || p->uid != uid ? own : p;
                }
        }
        bool has_share = uid != 0 && n_own >= PROCESSES_OF_OWNER_MAX;
        Process *p = has_share ? own : any;
        if (!has_share && f->n_processes < PROCESSES_MAX)
                return true;
        if (p)
                free_process(f, p);
        return p;
}

static void store_process(const Failures *f, const Process *p) {
        _cleanup_(record_done) Record r = { .n = p->n };
        char name[CLAIM_BOOT_ID_SIZE + 48];
        Claim c = p->claim;
        size_t n;
        claim_shift(&c, realtime_offset(f));
        (void)snprintf(name, sizeof name, "%s-%u-%llu", c.boot_id, c.pid,
                       (unsigned long long)c.start_ticks);
        (void)strcpy(r.key, p->key);
        (void)snprintf(r.instance_id, sizeof r.instance_id, "%s", f->context.instance_id);
        _cleanup_free_ char *text =
                claim_set_add(&r.claims, &c) >= 0 ? record_format(&r, &n) : NULL;
        int error = text ? store_failure_put(
                                   f->context.store,
                                   &(StoredFailure){ .name = name,
                                                     .key = p->key,
                                                     .n = p->n,
                                                     .time_usec = f->context.clock->realtime_usec(
                                                             f->context.clock),
                                                     .document = text })
                         : -ENOMEM;
        if (error < 0)
                log_warning(error,
                            "failure %s: a claim cannot be stored; after a restart it is missing",
                            p->key);
}

static void claim_process(Failures *f, Process *p) {
        Key *k = find_key(f, p->key);
        if (!k)
                return;
        bool is_local = find_whether_local(f, k);
        if (is_local != k->is_local)
                f->meeting_usec = 0;
        k->is_local = is_local;
        /* They rise after a loss of state, too. */
        uint64_t sec = f->context.clock->realtime_usec(f->context.clock) / USEC_PER_SEC;
        uint32_t least = sec > REVISION_EPOCH_SEC ? (uint32_t)(sec - REVISION_EPOCH_SEC) : 0;
        p->claim.revision = MAX(p->claim.revision + 1, least);
        p->changed_usec = now_usec(f);
        log_debug("failure %s: rank %lld, pid %u: %s, bundle %s", p->key, (long long)p->claim.rank,
                  p->claim.pid, claim_state_name(p->claim.state),
                  claim_bundle_name(p->claim.bundle_state));
        int r = agreement_claim(f->agreement, p->key, &p->claim, k->is_local, now_usec(f));
        if (r < 0) {
                f->figures.n_dropped++;
                log_warning(r, "failure %s: a claim is dropped", p->key);
        } else if (p->claim.state != CLAIM_ALIVE)
                store_process(f, p);
        step_soon(f);
}

/* @param c  only its process counts */
static Process *get_process(Failures *f, Key *k, const Claim *c, uid_t uid) {
        Process *p = find_process(f, c);
        if (p)
                return p;
        p = make_room(f, uid) ? calloc(1, sizeof *p) : NULL;
        if (!p) {
                f->figures.n_dropped++;
                return NULL;
        }
        k->n_processes++;
        (void)strcpy(p->key, k->key);
        p->uid = uid;
        p->claim = *c;
        list_append(&f->processes, &p->link);
        f->n_processes++;
        return p;
}

static int64_t start_of(uint64_t start_ticks) {
        long hz = sysconf(_SC_CLK_TCK);
        return start_ticks == 0 || hz <= 0 ? INT64_MIN
                                           : (int64_t)(start_ticks * (USEC_PER_SEC / (uint64_t)hz));
}

/* A claim of this node whose process is not known: its number is above all pids (pid_max). */
static uint32_t number_of_unknown(const char *what) {
        uint8_t digest[SHA256_SIZE];
        sha256_of(what, strlen(what), digest);
        return UINT32_C(0x80000000) | (uint32_t)digest[0] << 16 | (uint32_t)digest[1] << 8 |
               digest[2];
}

static void init_claim(const Failures *f, Claim *c) {
        *c = (Claim){ .rank = -1, .world_size = -1, .started_usec = INT64_MIN };
        (void)strcpy(c->boot_id, f->boot_id);
        (void)snprintf(c->instance_id, sizeof c->instance_id, "%s", f->context.instance_id);
}

/* Only what may stand in a path; anything else is as if there was none. Without a date-time it is
 * the time of day, by this node's clock. */
static void set_names(const Failures *f, Claim *c, const char *cluster_id, const char *date_time) {
        Decision d = { .date_time = "20000101-000000" };
        char now[CLOCK_ISO_SIZE];
        uint64_t usec;
        (void)snprintf(d.cluster_id, sizeof d.cluster_id, "%s", cluster_id ? cluster_id : "");
        if (decision_name_is_valid(&d))
                (void)strcpy(c->cluster_id, d.cluster_id);
        if (!date_time || date_time_parse(date_time, &usec) < 0)
                date_time = clock_format_compact(
                        now, f->context.clock->realtime_usec(f->context.clock), '-');
        (void)snprintf(c->date_time, sizeof c->date_time, "%s", date_time);
}

static void set_printable(char *ret, size_t size, const char *text) {
        size_t n = 0;
        for (; text && text[n] && n + 1 < size; n++)
                ret[n] = text[n] >= ' ' && text[n] <= '~' ? text[n] : '?';
        ret[n] = '\0';
}

/* ---- units ---- */

static Unit *find_unit(const Failures *f, const char *source, const char *path) {
        LIST_FOREACH (l, &f->units) {
                Unit *u = CONTAINER_OF(l, Unit, link);
                if (strcmp(u->path, path) == 0 && strcmp(u->source, source) == 0)
                        return u;
        }
        return NULL;
}

static void free_unit(Failures *f, Unit *u) {
        LIST_FOREACH (l, &f->processes) {
                Process *p = CONTAINER_OF(l, Process, link);
                if (p->unit == u)
                        p->unit = NULL;
        }
        Bundle *b = u->bundle[0] ? bundle_table_find(f->context.bundles, u->bundle) : NULL;
        if (b)
                b->failure_unit = NULL;
        object_call_cancel(u->call);
        list_remove(&u->link);
        free(u->source);
        free(u->path);
        free(u);
        f->n_units--;
}

/* Of those that a hook named, and that were never found, the oldest goes. */
static void make_room_for_unit(Failures *f) {
        LIST_FOREACH (l, &f->units) {
                Unit *u = CONTAINER_OF(l, Unit, link);
                if (u->bundle[0] == '\0') {
                        free_unit(f, u);
                        return;
                }
        }
}

static size_t units_of(const Failures *f, uid_t uid) {
        size_t n = 0;
        LIST_FOREACH (l, &f->units)
                n += CONTAINER_OF(l, Unit, link)->uid == uid;
        return n;
}

static Unit *get_unit(Failures *f, const char *source, const char *path, uid_t uid) {
        Unit *u = find_unit(f, source, path);
        if (u)
                return u;
        if (f->n_units >= UNITS_MAX)
                make_room_for_unit(f);
        bool has_space =
                f->n_units < UNITS_MAX && (uid == 0 || units_of(f, uid) < UNITS_OF_OWNER_MAX);
        u = has_space ? calloc(1, sizeof *u) : NULL;
        if (!u) {
                f->figures.n_dropped++;
                return NULL;
        }
        u->uid = uid;
        u->failures = f;
        u->source = strdup(source);
        u->path = strdup(path);
        list_append(&f->units, &u->link);
        f->n_units++;
        if (!u->source || !u->path) {
                free_unit(f, u);
                return NULL;
        }
        return u;
}

static Process *first_of(const Failures *f, const Unit *u) {
        LIST_FOREACH (l, &f->processes) {
                Process *p = CONTAINER_OF(l, Process, link);
                if (p->unit == u)
                        return p;
        }
        return NULL;
}

/* A process lies in one unit: the last one that was named. */
static void add_to_unit(Failures *f, Unit *u, Process *p) {
        Unit *before = p->unit;
        p->unit = u;
        if (!u->first)
                u->first = p;
        if (!before || before == u || before->first != p)
                return;
        before->first = first_of(f, before);
        if (!before->first && !before->bundle[0])
                free_unit(f, before);
}

/* What becomes of a unit is what becomes of the claims that lie in it. */
static void set_bundle(Failures *f, Unit *u, ClaimBundle state) {
        LIST_FOREACH (l, &f->processes) {
                Process *p = CONTAINER_OF(l, Process, link);
                if (p->unit != u || (p->claim.bundle_state == state && p->claim.bundle[0]))
                        continue;
                p->claim.bundle_state = state;
                (void)strcpy(p->claim.bundle, u->bundle);
                claim_process(f, p);
        }
}

/* ---- what is reported ---- */

static bool set_key_of_job(const JobIdentity *job, const char *cluster_id,
                           char ret[CLAIM_KEY_SIZE]) {
        return claim_key_build(job ? job->key : "", cluster_id, ret);
}

static void learn_job(Failures *f, Key *k, const JobIdentity *job) {
        if (!job->key[0] || strcmp(job->key, k->job) != 0)
                return;
        if (k->identity.key[0] == '\0')
                f->meeting_usec = 0;
        k->identity = *job;
}

/* The process of a note that does not say which it is: the last one here that had its rank. */
static const Process *find_rank(const Failures *f, const char *key, int64_t rank) {
        const Process *last = NULL;
        LIST_FOREACH (l, &f->processes) {
                const Process *p = CONTAINER_OF(l, Process, link);
                if (rank >= 0 && p->claim.rank == rank && p->claim.state != CLAIM_FAILED &&
                    strcmp(p->key, key) == 0)
                        last = p;
        }
        return last;
}

static void set_process(const Failures *f, const NoteView *v, const char *key, Claim *c) {
        const Process *p = v->pid > 0 ? NULL : find_rank(f, key, v->note->job.rank);
        c->pid = v->pid > 0 ? (uint32_t)v->pid : p ? p->claim.pid : number_of_unknown(v->note->id);
        c->start_ticks = v->pid > 0 ? v->start_ticks : p ? p->claim.start_ticks : 0;
}

void failures_on_note(Failures *f, const NoteView *v) {
        const HookNote *n = v->note;
        char key[CLAIM_KEY_SIZE];
        Claim c;
        init_claim(f, &c);
        set_names(f, &c, n->cluster_id, n->date_time);
        if (!set_key_of_job(&n->job, c.cluster_id, key))
                return;
        if (v->owner.uid != 0 && ranks_are_others(f->ranks, n->job.key, v->owner.uid)) {
                log_warning(0,
                            "failure %s: a note of uid %u is ignored: the job's ranks here are "
                            "of another user",
                            key, (unsigned)v->owner.uid);
                return;
        }
        Key *k = get_key(f, key, n->job.key, v->owner.uid, v->source);
        if (!k)
                return;
        learn_job(f, k, &n->job);
        set_process(f, v, key, &c);
        Process *p = get_process(f, k, &c, v->owner.uid);
        if (!p || strcmp(p->key, key) != 0)
                return; /* of another job: a process has one */
        Unit *u = v->source && v->unit_path ? get_unit(f, v->source, v->unit_path, v->owner.uid)
                                            : NULL;
        p->note_uid = note_sender(&v->owner, v->container, v->by_mailbox).uid;
        Claim *to = &p->claim;
        to->rank = n->job.rank;
        to->world_size = n->job.world_size;
        (void)strcpy(to->cluster_id, c.cluster_id);
        (void)strcpy(to->date_time, c.date_time);
        to->has_error = n->has_error_number;
        to->error_code = n->error_number;
        set_printable(to->error_location, sizeof to->error_location, n->error_location);
        to->started_usec = start_of(c.start_ticks);
        if (to->state != CLAIM_FAILED)
                to->event_usec = boottime_of(f, v->by_mailbox ? n->written_usec : v->received_usec);
        to->state = CLAIM_FAILED;
        if (u) {
                add_to_unit(f, u, p);
                u->due_usec = 0;
                (void)strcpy(to->bundle, u->bundle);
                if (to->bundle_state == CLAIM_BUNDLE_NONE)
                        to->bundle_state = CLAIM_BUNDLE_PENDING;
        }
        claim_process(f, p);
}

static void on_rank(const Rank *r, void *userdata) {
        Failures *f = userdata;
        char key[CLAIM_KEY_SIZE];
        Claim c;
        init_claim(f, &c);
        c.pid = (uint32_t)r->pid;
        c.start_ticks = r->start_ticks;
        Key *k =
                set_key_of_job(&r->job, "", key) ? get_key(f, key, r->job.key, r->uid, NULL) : NULL;
        Process *p = k ? get_process(f, k, &c, r->uid) : NULL;
        if (!p || strcmp(p->key, key) != 0 || p->claim.state == CLAIM_FAILED)
                return;
        learn_job(f, k, &r->job);
        k->uid = r->uid; /* of a note it may be somebody else's, of a restored claim it is 0 */
        p->claim.rank = r->job.rank;
        p->claim.world_size = r->job.world_size;
        p->claim.started_usec = (int64_t)r->started_usec;
        p->claim.state = r->has_ended ? CLAIM_ENDED : CLAIM_ALIVE;
        p->claim.event_usec = (int64_t)(r->has_ended ? r->ended_usec : r->seen_usec);
        claim_process(f, p);
}

void failures_on_job(Failures *f, const char *record) {
        ranks_on_job(f->ranks, record);
}

/* ---- bundles ---- */

static bool has_rank_since(const Failures *f, const char *key, int64_t usec) {
        LIST_FOREACH (l, &f->processes) {
                const Claim *c = &CONTAINER_OF(l, Process, link)->claim;
                if (c->rank >= 0 && (c->state == CLAIM_ALIVE || c->event_usec >= usec) &&
                    strcmp(CONTAINER_OF(l, Process, link)->key, key) == 0)
                        return true;
        }
        return false;
}

/* The key of the job whose ranks this user had here then, if it is one. */
static const Key *job_of_user(const Failures *f, uid_t uid, int64_t usec) {
        const Key *only = NULL;
        LIST_FOREACH (l, &f->keys) {
                const Key *k = CONTAINER_OF(l, Key, link);
                if (!k->job[0] || k->uid != uid || !has_rank_since(f, k->key, usec))
                        continue;
                if (only)
                        return NULL;
                only = k;
        }
        return only;
}

/* No hook has spoken of it. */
static void claim_unit(Failures *f, Unit *u, const Bundle *b) {
        int64_t seen_usec = boottime_of(f, b->rec.first_seen_usec);
        const Key *job =
                job_of_user(f, b->rec.uid, seen_usec - (int64_t)f->config->agreement.window_usec);
        char key[CLAIM_KEY_SIZE];
        Claim c;
        u->due_usec = 0;
        init_claim(f, &c);
        set_names(f, &c, b->rec.cluster_id, b->rec.date_time);
        if (job)
                (void)strcpy(key, job->key);
        else if (!claim_key_build("", c.cluster_id, key))
                return;
        Key *k = get_key(f, key, job ? job->job : "", b->rec.uid, b->rec.source);
        if (!k)
                return;
        c.pid = number_of_unknown(b->rec.id);
        Process *p = get_process(f, k, &c, b->rec.uid);
        if (!p)
                return;
        add_to_unit(f, u, p);
        p->claim.state = CLAIM_FAILED;
        p->claim.event_usec = seen_usec;
        p->claim.bundle_state = CLAIM_BUNDLE_PENDING;
        (void)strcpy(p->claim.bundle, u->bundle);
        claim_process(f, p);
}

static bool has_failure(const BundleRecord *rec) {
        return source_kind_has_incident(rec->kind) && rec->supplement_of[0] == '\0';
}

/* @return the unit of a bundle, with the claims that were restored for it; NULL: too many */
static Unit *unit_of(Failures *f, Bundle *b) {
        if (b->failure_unit)
                return b->failure_unit;
        Unit *u = get_unit(f, b->rec.source, b->rec.path, b->rec.uid);
        b->failure_unit = u;
        if (!u || strcmp(u->bundle, b->rec.id) == 0)
                return u;
        (void)strcpy(u->bundle, b->rec.id);
        LIST_FOREACH (l, &f->processes) {
                Process *p = CONTAINER_OF(l, Process, link);
                if (strcmp(p->claim.bundle, b->rec.id) == 0)
                        add_to_unit(f, u, p);
        }
        if (u->first)
                set_bundle(f, u, CLAIM_BUNDLE_PENDING);
        else
                u->due_usec = now_usec(f) + NOTE_WAIT_USEC;
        return u;
}

void failures_on_found(Failures *f, Bundle *b) {
        if (has_failure(&b->rec) && unit_of(f, b))
                step_soon(f);
}

void failures_on_final(Failures *f, const Bundle *b) {
        Unit *u = has_failure(&b->rec) ? find_unit(f, b->rec.source, b->rec.path) : NULL;
        if (!u)
                return;
        bool is_delivered = b->rec.state == BUNDLE_DELIVERED;
        if (u->bundle[0] == '\0')
                (void)strcpy(u->bundle, b->rec.id);
        set_bundle(f, u,
                   is_delivered                         ? CLAIM_BUNDLE_DELIVERED
                   : b->rec.state == BUNDLE_QUARANTINED ? CLAIM_BUNDLE_PENDING
                                                        : CLAIM_BUNDLE_EMPTY);
        const Process *p = u->first;
        if (is_delivered)
                pointers_on_delivered(f->pointers, &b->rec, p ? p->key : "", p ? &p->claim : NULL);
        if (b->rec.state != BUNDLE_QUARANTINED)
                free_unit(f, u);
}

/* ---- names ---- */

/* @param d  NULL: alone, under its own name */
static FailureName name_of(const Decision *d) {
        FailureName n = { 0 };
        (void)strcpy(n.agreed, agreed_name(d ? d->agreed : AGREED_ALONE)); /* 5 bytes at most */
        if (!d)
                return n;
        (void)strcpy(n.cluster_id, d->cluster_id);
        (void)strcpy(n.date_time, d->date_time);
        (void)strcpy(n.key, d->key);
        n.derived = d->derived;
        n.n = d->n;
        return n;
}

static void count_name(Failures *f, const BundleRecord *rec, const Decision *d) {
        const FailureName *n = &rec->name;
        uint64_t *count = d && d->agreed == AGREED_STORE ? &f->figures.n_store
                          : d && d->agreed == AGREED_BUS ? &f->figures.n_bus
                                                         : &f->figures.n_alone;
        ++*count;
        if (d)
                log_dump(rec->id, LOG_INFO, 0, "belongs to failure %s/%u: %s-%s, agreed: %s",
                         n->key, n->n, n->date_time, n->cluster_id, n->agreed);
}

/* A supplement is named as what it supplements, and waits for its name. @return false: it waits */
static bool name_supplement(Failures *f, BundleRecord *rec, uint64_t *ret_wait_usec) {
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        Bundle *open = bundle_table_find(f->context.bundles, rec->supplement_of);
        if (open && open->rec.state == BUNDLE_READY && open->rec.supplement_of[0] == '\0' &&
            !failures_is_named(f, open, ret_wait_usec))
                return false;
        if (open && open->rec.name.agreed[0]) /* its row may not say so yet */
                rec->name = open->rec.name;
        else if (store_get(f->context.store, rec->supplement_of, &base) == 0 && base.name.agreed[0])
                rec->name = base.name;
        else
                rec->name = name_of(NULL);
        return true;
}

/* Nobody but the arbiter would take it, and the arbiter is away, or back and being asked. */
static bool only_arbiter_is_left(const Key *k, const BundleRecord *rec) {
        if (!k || !k->arbiter ||
            (!arbiter_is_unreachable(k->arbiter) && !arbiter_is_busy(k->arbiter)))
                return false;
        for (size_t i = 0; i < rec->n_deliveries; i++)
                if (strcmp(rec->deliveries[i].destination, arbiter_destination(k->arbiter)) != 0)
                        return false;
        return true;
}

static int64_t name_wait(const Failures *f) {
        return f->hurry ? NAME_WAIT_HURRY_USEC
                        : (int64_t)f->config->agreement.settle_usec + NAME_WAIT_USEC;
}

/* @return until when it waits for its name, by CLOCK_BOOTTIME; 0: no longer */
static int64_t waits_until(const Failures *f, const Unit *u, const Process *p,
                           const BundleRecord *rec) {
        int64_t now = now_usec(f);
        if (!agreement_is_pending(f->agreement, p->key, &p->claim))
                return 0;
        int64_t limit = u->ready_usec + name_wait(f);
        if (now < limit)
                return limit;
        return !f->hurry && only_arbiter_is_left(find_key(f, p->key), rec)
                       ? now + (int64_t)USEC_PER_SEC
                       : 0;
}

/* ---- a state database that was lost: pointers lead to what was delivered ---- */

static bool is_agreed(const char *name) {
        for (Agreed a = AGREED_ALONE; a < N_AGREED; a++)
                if (strcmp(name, agreed_name(a)) == 0)
                        return true;
        return false;
}

static void on_pointer(const ObjectResult *r, void *userdata) {
        Unit *u = userdata;
        json_t *v = r->outcome == OBJECT_OK ? json_loadb(r->data, r->n, 0, NULL) : NULL;
        const char *agreed = json_string_value(json_object_get(v, "agreed"));
        const char *cluster_id = json_string_value(json_object_get(v, "cluster_id"));
        const char *date_time = json_string_value(json_object_get(v, "date_time"));
        u->call = NULL;
        u->search = SEARCH_ENDED;
        if (r->outcome == OBJECT_UNREACHABLE && now_usec(u->failures) < u->search_until_usec)
                u->search = SEARCH_NOT; /* the scheduler asks again */
        if (agreed && is_agreed(agreed) && cluster_id && strlen(cluster_id) < CLUSTER_ID_SIZE &&
            date_time && strlen(date_time) < DATE_TIME_SIZE) {
                Decision d = { 0 };
                (void)strcpy(d.cluster_id, cluster_id);
                (void)strcpy(d.date_time, date_time);
                (void)strcpy(u->found.agreed, agreed);
                if (decision_name_is_valid(&d)) { /* else it went under its own */
                        (void)strcpy(u->found.cluster_id, d.cluster_id);
                        (void)strcpy(u->found.date_time, d.date_time);
                }
        }
        json_decref(v);
        if (u->search == SEARCH_ENDED)
                u->failures->context.on_named(u->failures->context.userdata);
}

/* What is older than the state database may have been delivered by the one before, under another
 * name than it would get now. */
static bool may_be_elsewhere(Failures *f, Unit *u, const BundleRecord *rec) {
        const ConfigSource *c = config_find_source(f->config, rec->source);
        if (u->search == SEARCH_ENDED || rec->oldest_mtime_usec >= f->created_usec || !c ||
            c->destinations.n == 0 || !f->scheduler)
                return false;
        if (u->search == SEARCH_UNDERWAY)
                return true;
        const char *destination = c->destinations.items[0];
        _cleanup_free_ char *directory = objects_bundle_directory(f->scheduler, destination, rec);
        _cleanup_free_ char *name =
                directory ? strbuf_format("%s/%s" POINTER_SUFFIX, directory, rec->id) : NULL;
        if (!name || object_call_new(&u->call, f->scheduler,
                                     &(ObjectRequest){ .operation = OBJECT_GET,
                                                       .destination = destination,
                                                       .name = name,
                                                       .on_done = on_pointer,
                                                       .userdata = u }) < 0)
                return false;
        if (u->search_until_usec == 0)
                u->search_until_usec = now_usec(f) + name_wait(f);
        u->search = SEARCH_UNDERWAY;
        return true;
}

/* @return false: it is not known yet whether it was delivered before, elsewhere */
static bool name_unit(Failures *f, Unit *u, BundleRecord *rec, const Decision *d) {
        if (u && u->found.agreed[0]) {
                rec->name = u->found;
                log_dump(rec->id, LOG_NOTICE, 0, "was delivered before as %s-%s",
                         bundle_record_date_time(rec), bundle_record_cluster_id(rec));
                return true;
        }
        rec->name = name_of(d);
        if (u && may_be_elsewhere(f, u, rec)) {
                rec->name = (FailureName){ 0 };
                return false;
        }
        count_name(f, rec, d);
        return true;
}

/* Another user's hook does not name these files. */
static void check_first(const Failures *f, Unit *u, const Bundle *b) {
        if (!u->first || uid_may_annotate(&b->owners, u->first->note_uid))
                return;
        u->first = NULL;
        LIST_FOREACH (l, &f->processes) {
                Process *p = CONTAINER_OF(l, Process, link);
                if (p->unit != u || uid_may_annotate(&b->owners, p->note_uid))
                        continue;
                p->unit = NULL;
                p->claim.bundle[0] = '\0';
                p->claim.bundle_state = CLAIM_BUNDLE_NONE;
        }
        u->first = first_of(f, u);
}

bool failures_is_named(Failures *f, Bundle *b, uint64_t *ret_wait_usec) {
        BundleRecord *rec = &b->rec;
        if (!source_kind_has_incident(rec->kind) || rec->name.agreed[0])
                return true;
        if (rec->supplement_of[0])
                return name_supplement(f, rec, ret_wait_usec);
        Unit *u = bundle_has_begun(b) ? NULL : unit_of(f, b);
        if (u)
                check_first(f, u, b);
        if (u && !u->first)
                claim_unit(f, u, b);
        const Process *p = u ? u->first : NULL;
        *ret_wait_usec = USEC_PER_SEC;
        if (!p) /* nobody could agree on it, or an earlier version has begun to deliver it */
                return name_unit(f, u, rec, NULL);
        if (u->ready_usec == 0)
                u->ready_usec = now_usec(f);
        const Decision *d = agreement_find(f->agreement, p->key, &p->claim);
        int64_t until = d ? 0 : waits_until(f, u, p, rec);
        if (until == 0)
                return name_unit(f, u, rec, d);
        *ret_wait_usec = MAX((uint64_t)(until - now_usec(f)), UINT64_C(1000));
        return false;
}

bool failures_is_idle(Failures *f) {
        int64_t now = now_usec(f);
        bool is_busy = agreement_next_time(f->agreement) < now + SOON_USEC;
        LIST_FOREACH (l, &f->keys) {
                const Key *k = CONTAINER_OF(l, Key, link);
                is_busy = is_busy || (k->arbiter && arbiter_is_busy(k->arbiter));
        }
        if (!is_busy) {
                f->busy_usec = 0;
                return true;
        }
        if (f->busy_usec == 0)
                f->busy_usec = now;
        return now - f->busy_usec > IDLE_WAIT_USEC;
}

char *failures_explain(const Failures *f, const BundleRecord *rec) {
        const FailureName *n = &rec->name;
        char wait[64];
        if (n->key[0])
                return strbuf_format("It belongs to failure %s/%u, %s-%s (agreed: %s).", n->key,
                                     n->n, n->date_time, n->cluster_id, n->agreed);
        const Unit *u = rec->state == BUNDLE_READY && !n->agreed[0]
                                ? find_unit(f, rec->source, rec->path)
                                : NULL;
        const Process *p = u && u->ready_usec ? u->first : NULL;
        int64_t until = p ? waits_until(f, u, p, rec) : 0, now = now_usec(f);
        if (until <= now)
                return NULL;
        const Key *k = find_key(f, p->key);
        const char *error = k && k->arbiter ? arbiter_error(k->arbiter) : NULL;
        return strbuf_format("It waits, %s more at most, until the nodes of failure %s have agreed "
                             "on a name%s%s.",
                             clock_format_duration(wait, (uint64_t)(until - now)), p->key,
                             error ? "; the last error: " : "", error ? error : "");
}

void failures_figures(const Failures *f, FailuresFigures *ret) {
        *ret = f->figures;
}

static void add_failure_status(const Failures *f, const AgreementFailure *x, StrBuf *b) {
        const Key *k = find_key(f, x->decision->key);
        uint64_t n_failed = 0;
        for (size_t i = 0; i < x->claims->n; i++)
                n_failed += claim_is_failure(&x->claims->items[i]);
        json_out_object(b, NULL);
        json_out_string(b, "key", x->decision->key);
        json_out_u64(b, "n", x->decision->n);
        json_out_string(b, "cluster_id", x->decision->cluster_id);
        json_out_string(b, "date_time", x->decision->date_time);
        json_out_bool(b, "derived", x->decision->derived);
        json_out_string(b, "agreed", agreed_name(x->decision->agreed));
        json_out_string(b, "job", k && k->job[0] ? k->job : NULL);
        json_out_u64(b, "processes", x->claims->n);
        json_out_u64(b, "failed", n_failed);
        json_out_end_object(b);
}

static void add_bus_status(const Failures *f, StrBuf *b) {
        BusView v = { .state = "off" };
        if (f->bus)
                bus_view(f->bus, &v);
        json_out_object(b, "bus");
        json_out_string(b, "state", v.state);
        json_out_string(b, "last_error", v.last_error);
        json_out_bool(b, "has_key", v.has_key);
        json_out_u64(b, "connected", v.n_connected);
        json_out_u64(b, "dialled", v.n_dialled);
        json_out_u64(b, "sent", v.n_sent);
        json_out_u64(b, "sent_bytes", v.n_sent_bytes);
        json_out_u64(b, "received", v.n_received);
        json_out_u64(b, "rejected", v.n_rejected);
        json_out_u64(b, "restarts", v.n_restarts);
        json_out_end_object(b);
}

void failures_add_status(Failures *f, StrBuf *b) {
        AgreementFailure x;
        const char *error = NULL, *destination = NULL;
        LIST_FOREACH (l, &f->keys) {
                const Key *k = CONTAINER_OF(l, Key, link);
                if (!k->arbiter || (error && !arbiter_error(k->arbiter)))
                        continue;
                error = arbiter_error(k->arbiter);
                destination = arbiter_destination(k->arbiter);
        }
        json_out_object(b, NULL);
        json_out_bool(b, "enabled", true);
        json_out_u64(b, "ranks", ranks_n(f->ranks));
        json_out_u64(b, "keys", f->n_keys);
        json_out_string(b, "arbiter", destination);
        json_out_string(b, "last_error", error);
        json_out_u64(b, "dropped", f->figures.n_dropped);
        add_bus_status(f, b);
        json_out_array(b, "failures");
        for (size_t i = 0; agreement_failure(f->agreement, i, &x); i++)
                add_failure_status(f, &x, b);
        json_out_end_array(b);
        json_out_end_object(b);
}

/* ---- what is due ---- */

static void store_decision(const Failures *f, const Key *k, const Decision *d) {
        char name[CLAIM_KEY_SIZE + 16];
        size_t n;
        _cleanup_free_ char *text = decision_format(d, k->job, &n);
        (void)snprintf(name, sizeof name, "%s/%u", d->key, d->n);
        int r = text ? store_failure_put(
                               f->context.store,
                               &(StoredFailure){
                                       .name = name,
                                       .key = d->key,
                                       .n = d->n,
                                       .time_usec = (uint64_t)(d->opened_usec + realtime_offset(f)),
                                       .document = text })
                     : -ENOMEM;
        if (r < 0)
                log_warning(r,
                            "failure %s/%u: it cannot be stored; after a restart it is asked for "
                            "again",
                            d->key, d->n);
}

/* Which failure each claim belongs to is written down as soon as it has a number. */
static bool place_claims(Failures *f) {
        bool any = false;
        LIST_FOREACH (l, &f->processes) {
                Process *p = CONTAINER_OF(l, Process, link);
                const Key *k = find_key(f, p->key);
                if (!k || (p->is_placed && p->n > 0))
                        continue;
                const Decision *d = agreement_find(f->agreement, p->key, &p->claim);
                if (!d || (p->is_placed && d->n == 0))
                        continue;
                any = any || !p->is_placed;
                p->is_placed = true;
                p->n = d->n;
                if (d->n == 0)
                        continue;
                store_decision(f, k, d);
                if (p->claim.state != CLAIM_ALIVE)
                        store_process(f, p);
        }
        return any;
}

/* Live ranks of a job that failed elsewhere: what their node looks like then is evidence. */
static void report_peers(Failures *f) {
        AgreementFailure x;
        for (size_t i = 0; agreement_failure(f->agreement, i, &x); i++) {
                Key *k = find_key(f, x.decision->key);
                if (!k || x.decision->n <= k->n_reported)
                        continue;
                bool failed_here = false;
                for (size_t j = 0; j < x.claims->n; j++)
                        failed_here = failed_here || (claim_is_failure(&x.claims->items[j]) &&
                                                      strcmp(x.claims->items[j].instance_id,
                                                             f->context.instance_id) == 0);
                k->n_reported = x.decision->n;
                if (failed_here || !ranks_has_job(f->ranks, k->job))
                        continue;
                _cleanup_free_ char *what =
                        strbuf_format("failure %s/%u of job %s", k->key, x.decision->n, k->job);
                if (what)
                        f->context.on_peer_failure(what, f->context.userdata);
        }
}

/* @return what the state database has to say about it */
static int drop_stored(const Failures *f) {
        uint64_t now = f->context.clock->realtime_usec(f->context.clock);
        uint64_t keep = (uint64_t)AGREEMENT_KEEP_USEC;
        return now > keep ? store_failure_drop(f->context.store, now - keep) : 0;
}

static void prune(Failures *f) {
        int64_t now = now_usec(f);
        if (now >= f->drop_usec) {
                f->drop_usec = now + (int64_t)USEC_PER_HOUR;
                (void)drop_stored(f); /* again in an hour */
        }
        LIST_FOREACH_SAFE (l, &f->processes) {
                Process *p = CONTAINER_OF(l, Process, link);
                int64_t keep = p->is_placed ? AGREEMENT_KEEP_USEC : (int64_t)USEC_PER_HOUR;
                if (!p->unit && p->claim.state != CLAIM_ALIVE && now - p->changed_usec > keep)
                        free_process(f, p);
        }
        LIST_FOREACH_SAFE (l, &f->units) { /* of which no file has come */
                Unit *u = CONTAINER_OF(l, Unit, link);
                if (!u->bundle[0] && now - u->first->changed_usec > (int64_t)USEC_PER_HOUR)
                        free_unit(f, u);
        }
        LIST_FOREACH_SAFE (l, &f->keys) {
                Key *k = CONTAINER_OF(l, Key, link);
                if (k->n_processes == 0)
                        free_key(f, k);
        }
}

/* The agents of the jobs that run here meet at the nodes of their rendezvous. */
static void set_rendezvous(Failures *f) {
        char hosts[BUS_PEERS_MAX][JOB_HOST_SIZE], *list[BUS_PEERS_MAX + 1];
        size_t n = 0;
        LIST_FOREACH (l, &f->keys) {
                const Key *k = CONTAINER_OF(l, Key, link);
                int r = agreement_set_role(f->agreement, k->key, role_of(f, k));
                if (r < 0)
                        log_debug("failure %s: no role on the bus: %s", k->key, strerror(-r));
                if (n == BUS_PEERS_MAX || strcmp(f->config->agreement.rendezvous, "auto") != 0 ||
                    k->is_local || !job_rendezvous_host(&k->identity, hosts[n]))
                        continue;
                list[n] = hosts[n];
                n++;
        }
        list[n] = NULL;
        bus_set_rendezvous(f->bus, list);
}

static int64_t claim_units(Failures *f) {
        int64_t next = AGREEMENT_NEVER, now = now_usec(f);
        LIST_FOREACH_SAFE (l, &f->units) {
                Unit *u = CONTAINER_OF(l, Unit, link);
                if (u->due_usec == 0)
                        continue;
                const Bundle *b = u->due_usec <= now
                                          ? bundle_table_find(f->context.bundles, u->bundle)
                                          : NULL;
                if (b)
                        claim_unit(f, u, b);
                else if (u->due_usec > now)
                        next = MIN(next, u->due_usec);
                else
                        free_unit(f, u); /* it is gone */
        }
        return next;
}

static void step(Failures *f) {
        Action action;
        int64_t next = claim_units(f);
        if (f->bus && now_usec(f) >= f->meeting_usec) {
                set_rendezvous(f);
                f->meeting_usec = now_usec(f) + MEETING_USEC;
        }
        while (agreement_next_action(f->agreement, now_usec(f), &action) != ACTION_NONE) {
                Key *k = find_key(f, action.key);
                if (action.kind == ACTION_SEND && f->bus)
                        (void)bus_send(f->bus, action.message); /* it is sent again */
                else if (k && k->arbiter && action.kind != ACTION_SEND)
                        arbiter_execute(k->arbiter, f->scheduler, &action);
        }
        if (place_claims(f) || f->is_unable)
                f->context.on_named(f->context.userdata);
        f->is_unable = false;
        report_peers(f);
        next = MIN(next, pointers_step(f->pointers, f->agreement, f->scheduler));
        if (now_usec(f) >= f->prune_usec) {
                prune(f);
                f->prune_usec = now_usec(f) + (int64_t)USEC_PER_MINUTE;
        }
        next = MIN(next, agreement_next_time(f->agreement));
        if (f->bus && f->n_keys > 0)
                next = MIN(next, f->meeting_usec);
        arm(f, MIN(next, now_usec(f) + (int64_t)USEC_PER_MINUTE));
}

/* ---- life ---- */

typedef struct Restore {
        Failures *failures;
        Decision *decisions;
        size_t n;
        bool is_second; /* the claims, after the decisions */
} Restore;

static int restore_decision(Restore *x, const StoredFailure *s) {
        Decision d;
        if (decision_parse(s->document, strlen(s->document), s->key, s->n, &d) < 0)
                return 0;
        Decision *more = realloc(x->decisions, (x->n + 1) * sizeof *more);
        if (!more)
                return -ENOMEM;
        /* The clock may have been set back since. */
        d.opened_usec =
                MIN((int64_t)s->time_usec - realtime_offset(x->failures), now_usec(x->failures));
        x->decisions = more;
        x->decisions[x->n++] = d;
        return 0;
}

static int restore_claim(Restore *x, const StoredFailure *s) {
        Failures *f = x->failures;
        _cleanup_(record_done) Record r = { 0 };
        const Decision *d = NULL;
        if (record_parse(s->document, strlen(s->document), s->key, s->n, &r) < 0 || r.claims.n != 1)
                return 0;
        for (size_t i = 0; !d && i < x->n; i++)
                if (x->decisions[i].n == s->n && strcmp(x->decisions[i].key, s->key) == 0)
                        d = &x->decisions[i];
        if (s->n > 0 && !d)
                return 0; /* its failure is too old to be known */
        Claim c = r.claims.items[0];
        claim_shift(&c, -realtime_offset(f));
        Key *k = get_key(f, s->key, "", 0, NULL);
        Process *p = k ? get_process(f, k, &c, 0) : NULL;
        if (!p)
                return 0;
        p->changed_usec = now_usec(f);
        p->n = d ? d->n : 0;
        p->is_placed = d != NULL;
        k->n_reported = MAX(k->n_reported, p->n);
        return d ? agreement_restore(f->agreement, d, &c, now_usec(f))
                 : agreement_claim(f->agreement, s->key, &c, false, now_usec(f));
}

static int on_stored(const StoredFailure *s, void *userdata) {
        Restore *x = userdata;
        bool is_decision = strncmp(s->name, s->key, CLAIM_KEY_SIZE - 1) == 0 &&
                           s->name[CLAIM_KEY_SIZE - 1] == '/';
        if (is_decision == x->is_second)
                return 0;
        return x->is_second ? restore_claim(x, s) : restore_decision(x, s);
}

/* What cannot be restored is asked for again. */
static void restore(Failures *f) {
        Restore x = { .failures = f };
        Store *s = f->context.store;
        int r = drop_stored(f);
        if (r >= 0)
                r = store_failure_list(s, on_stored, &x);
        x.is_second = true;
        if (r >= 0)
                r = store_failure_list(s, on_stored, &x);
        free(x.decisions);
        if (r < 0)
                log_warning(r, "failures of the past cannot be read from the state database");
}

static int read_boot_id(char ret[CLAIM_BOOT_ID_SIZE]) {
        _cleanup_free_ char *text = NULL;
        size_t n = 0;
        int r = fs_read_file(AT_FDCWD, BOOT_ID_PATH, 64, &text, NULL);
        for (const char *s = text; r >= 0 && *s && n + 1 < CLAIM_BOOT_ID_SIZE; s++)
                if (*s != '-' && *s != '\n')
                        ret[n++] = *s;
        ret[n] = '\0';
        return r < 0 ? r : n + 1 == CLAIM_BOOT_ID_SIZE ? 0 : -EBADMSG;
}

static void on_message(const Message *m, void *userdata) {
        Failures *f = userdata;
        int r = agreement_hear(f->agreement, m, now_usec(f));
        if (r < 0)
                f->figures.n_dropped++;
        step_soon(f);
}

/* Without it the arbiter decides alone. */
static void start_bus(Failures *f) {
        const Config *c = f->config;
        if (!f->context.has_bus)
                return;
        int r = bus_new(&f->bus, &(BusOptions){ .event = f->context.event,
                                                .clock = f->context.clock,
                                                .instance_id = f->context.instance_id,
                                                .listen = c->agreement.listen,
                                                .peers = c->agreement.peers.items,
                                                .key_file = c->agreement.key_file,
                                                .on_message = on_message,
                                                .userdata = f });
        if (r < 0)
                log_warning(r, "cannot start the bus; the store alone decides");
}

int failures_new(Failures **ret, const FailuresContext *context, const Config *config) {
        _cleanup_(failures_freep) Failures *f = calloc(1, sizeof *f);
        uint64_t seed = 0;
        if (!f)
                return -ENOMEM;
        (void)getrandom(&seed, sizeof seed, GRND_NONBLOCK); /* of jitter */
        f->context = *context;
        f->config = config;
        list_init(&f->keys);
        list_init(&f->units);
        list_init(&f->processes);
        int r = read_boot_id(f->boot_id);
        if (r >= 0)
                r = agreement_new(
                        &f->agreement,
                        &(AgreementOptions){ .instance_id = context->instance_id,
                                             .settle_usec = (int64_t)config->agreement.settle_usec,
                                             .window_usec = (int64_t)config->agreement.window_usec,
                                             .seed = seed });
        if (r >= 0)
                r = ranks_new(&f->ranks, &(RanksContext){ .event = context->event,
                                                          .clock = context->clock,
                                                          .proc_root = config->snapshot.proc_root,
                                                          .on_rank = on_rank,
                                                          .userdata = f });
        if (r >= 0)
                r = pointers_new(&f->pointers, context->clock);
        if (r < 0)
                return r;
        f->created_usec = store_counter(context->store, "created_usec");
        if (f->created_usec == 0) {
                f->created_usec = context->clock->realtime_usec(context->clock);
                (void)store_counter_add(context->store, "created_usec", f->created_usec);
        }
        start_bus(f);
        restore(f);
        step_soon(f);
        *ret = TAKE_PTR(f);
        return 0;
}

static bool is_same_bus(const Config *a, const Config *b) {
        if (strcmp(a->agreement.listen, b->agreement.listen) != 0 ||
            strcmp(a->agreement.key_file, b->agreement.key_file) != 0 ||
            a->agreement.peers.n != b->agreement.peers.n)
                return false;
        for (size_t i = 0; i < a->agreement.peers.n; i++)
                if (strcmp(a->agreement.peers.items[i], b->agreement.peers.items[i]) != 0)
                        return false;
        return true;
}

void failures_rebind(Failures *f, const Config *config) {
        bool is_same = is_same_bus(f->config, config);
        f->config = config;
        if (!is_same) {
                f->bus = bus_free(f->bus);
                start_bus(f);
        }
        ranks_rebind(f->ranks, config->snapshot.proc_root);
        agreement_set_times(f->agreement, (int64_t)config->agreement.settle_usec,
                            (int64_t)config->agreement.window_usec);
}

void failures_set_scheduler(Failures *f, Scheduler *s) {
        LIST_FOREACH (l, &f->keys) {
                Key *k = CONTAINER_OF(l, Key, link);
                if (k->arbiter && !s)
                        arbiter_cancel(k->arbiter);
        }
        if (!s) {
                pointers_cancel(f->pointers);
                LIST_FOREACH (l, &f->units) {
                        Unit *u = CONTAINER_OF(l, Unit, link);
                        u->call = object_call_cancel(u->call);
                        if (u->search == SEARCH_UNDERWAY)
                                u->search = SEARCH_NOT;
                }
        }
        f->scheduler = s;
        LIST_FOREACH (l, &f->keys)
                if (s)
                        replace_arbiter(f, CONTAINER_OF(l, Key, link));
        step_soon(f);
}

void failures_hurry(Failures *f, bool on) {
        f->hurry = on;
        agreement_hurry(f->agreement, on);
        step_soon(f);
}

Failures *failures_free(Failures *f) {
        if (!f)
                return NULL;
        LIST_FOREACH_SAFE (l, &f->keys)
                free_key(f, CONTAINER_OF(l, Key, link));
        LIST_FOREACH_SAFE (l, &f->units)
                free_unit(f, CONTAINER_OF(l, Unit, link));
        LIST_FOREACH_SAFE (l, &f->processes)
                free_process(f, CONTAINER_OF(l, Process, link));
        bus_free(f->bus);
        pointers_free(f->pointers);
        ranks_free(f->ranks);
        agreement_free(f->agreement);
        sd_event_source_disable_unref(f->timer);
        free(f);
        return NULL;
}
