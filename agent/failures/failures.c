#include "agent/failures/failures.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <systemd/sd-id128.h>

#include "agent/delivery/objects.h"
#include "agent/failures/arbiter.h"
#include "agent/failures/job_scope.h"
#include "agent/failures/rank_watch.h"
#include "agent/peers/agreement.h"
#include "agent/peers/bus.h"
#include "agent/peers/record.h"
#include "agent/store/bundle.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/json_out.h"
#include "lib/base/list.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/event/timer.h"
#include "lib/neuron/record.h"

#define REVISION_EPOCH_SEC UINT64_C(1767225600) /* 2026 */
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

/* ---- what this node has of failures ---- */

/* Processes that failed or may fail, the units that their dumps lie in, and the keys that they
 * belong to. Bounded, so that no user can fill it with notes. */

#define PROCESSES_MAX 8192
#define PROCESSES_OF_OWNER_MAX 2048
#define KEYS_OF_OWNER_MAX 32

typedef struct Owned {
        ListLink link; /* oldest first */
        uid_t uid;     /* whose it counts as */
} Owned;

/* The job, or the cluster id, that failures are numbered by. */
typedef struct Key {
        Owned owned;
        char key[CLAIM_KEY_SIZE];
        JobIdentity job;  /* of one of its ranks; its key is "": by cluster id, or not known yet */
        char *source;     /* the first one that named it; NULL: none yet */
        Arbiter *arbiter; /* NULL: none can decide */
        size_t n_processes;
        uint32_t n_reported; /* failures whose snapshot was asked for */
} Key;

/* A dump, found or only named by a hook. There is one while it has a bundle or a process. */
typedef struct FailureUnit {
        ListLink link;
        char *source, *path;
        char bundle[BUNDLE_ID_SIZE]; /* "" = not found yet */
        struct Process *first;       /* whose failure names it; NULL: none yet */
        int64_t due_usec;            /* claimed without a note then; 0 = claimed */
        int64_t ready_usec;          /* asked for its name; 0 = not yet */
        /* For a pointer to what was delivered before the state database was lost. */
        ObjectCall *search;
        bool is_searched;
        FailureName found;
        Failures *failures;
} Unit;

/* A process of this node, and so a claim. */
typedef struct Process {
        Owned owned;
        Key *key;
        Claim claim;
        Unit *unit;       /* NULL: none */
        RankWatch *watch; /* NULL: not seen alive, or it has ended */
        uid_t note_uid;   /* whose hook reported it; 0: none, the agent itself */
        int64_t file_pid; /* the pid in its files' names, of its own namespace; 0: claim.pid */
        uint32_t n;       /* of its failure; 0 = not known */
        bool is_placed;
        int64_t changed_usec;
        Failures *failures;
} Process;

struct Failures {
        FailuresContext context;
        const Config *config;
        Scheduler *scheduler;
        Agreement *agreement;
        Bus *bus; /* NULL: none */
        ListLink keys, processes, units, pointers;
        size_t n_pointers;
        uint64_t n_dropped; /* beyond what is bounded */
        sd_event_source *timer;
        char boot_id[CLAIM_BOOT_ID_SIZE];
        bool hurry;
        bool is_blind;         /* the end of ranks cannot be seen */
        int64_t prune_usec;    /* next */
        int64_t meeting_usec;  /* next look at where jobs meet */
        uint64_t created_usec; /* the state database, CLOCK_REALTIME */
        int64_t busy_usec;     /* since when is waited for what is to be written; 0 = it is not */
        uint64_t n_named[N_AGREED];
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

#define FOREACH_KEY(k, f) LIST_FOREACH_ITEM (Key, k, owned.link, &(f)->keys)
#define FOREACH_PROCESS(p, f) LIST_FOREACH_ITEM (Process, p, owned.link, &(f)->processes)
#define FOREACH_UNIT(u, f) LIST_FOREACH_ITEM (Unit, u, link, &(f)->units)

typedef struct Bound {
        size_t n_max, n_of_owner_max;
        bool (*is_settled)(const Failures *f, const Owned *o);
        void (*free)(Failures *f, Owned *o);
} Bound;

/* Nothing of it is about to change, and its claim is known to the agreement. */
static bool process_is_settled(const Failures *f, const Owned *o) {
        const Process *p = CONTAINER_OF(o, Process, owned);
        (void)f;
        return !(p->unit && p->unit->bundle[0]) && p->claim.state != CLAIM_ALIVE &&
               (p->is_placed || p->claim.state == CLAIM_ENDED);
}

static bool key_is_settled(const Failures *f, const Owned *o) {
        FOREACH_PROCESS (p, f)
                if (&p->key->owned == o && !process_is_settled(f, &p->owned))
                        return false;
        return true;
}

/* When all that there may be is there, or all that one user may have, the oldest gives way that is
 * settled: anybody's, or his. Root has no bound of its own. */
static bool make_space(Failures *f, ListLink *all, const Bound *b, uid_t uid) {
        size_t n_all = 0, n_own = 0;
        LIST_FOREACH_ITEM (Owned, o, link, all) {
                n_all++;
                n_own += o->uid == uid;
        }
        bool has_share = uid != 0 && n_own >= b->n_of_owner_max;
        if (!has_share && n_all < b->n_max)
                return true;
        LIST_FOREACH_ITEM (Owned, o, link, all)
                if ((!has_share || o->uid == uid) && b->is_settled(f, o)) {
                        b->free(f, o);
                        return true;
                }
        f->n_dropped++;
        return false;
}

/* ---- the node's units ---- */

static Unit *node_find_unit(const Failures *f, const char *source, const char *path) {
        FOREACH_UNIT (u, f)
                if (strcmp(u->path, path) == 0 && strcmp(u->source, source) == 0)
                        return u;
        return NULL;
}

/* Its bundle is handled apart from the unit from now on; the unit may get another one. */
static void unit_end_bundle(Failures *f, Unit *u) {
        Bundle *b = u->bundle[0] ? bundle_table_find(f->context.bundles, u->bundle) : NULL;
        if (b)
                b->failure_unit = NULL;
        u->bundle[0] = '\0';
        u->due_usec = u->ready_usec = 0;
        u->search = object_call_cancel(u->search);
        u->is_searched = false;
        u->found = (FailureName){ 0 };
}

static void node_free_unit(Failures *f, Unit *u) {
        FOREACH_PROCESS (p, f)
                if (p->unit == u)
                        p->unit = NULL;
        unit_end_bundle(f, u);
        list_remove(&u->link);
        free(u->source);
        free(u->path);
        free(u);
}

/* Finds or adds it: one that is new then gets a process or a bundle. @return NULL: no memory */
static Unit *node_get_unit(Failures *f, const char *source, const char *path) {
        Unit *u = node_find_unit(f, source, path);
        if (u || !(u = calloc(1, sizeof *u)))
                return u;
        u->failures = f;
        u->source = strdup(source);
        u->path = strdup(path);
        list_append(&f->units, &u->link);
        if (u->source && u->path)
                return u;
        node_free_unit(f, u);
        return NULL;
}

static void leave_unit(Failures *f, Process *p) {
        Unit *u = p->unit;
        p->unit = NULL;
        if (!u || u->first != p)
                return;
        u->first = NULL;
        FOREACH_PROCESS (other, f)
                if (!u->first && other->unit == u)
                        u->first = other;
        if (!u->first && !u->bundle[0])
                node_free_unit(f, u);
}

/* A process lies in one unit: the last one that was named. */
static void node_join_unit(Failures *f, Unit *u, Process *p) {
        if (p->unit == u)
                return;
        leave_unit(f, p);
        p->unit = u;
        if (!u->first)
                u->first = p;
}

/* Another user's hook does not name these files: its process leaves the unit. */
static void node_expel_strangers(Failures *f, Unit *u, const FileOwners *owners) {
        FOREACH_PROCESS (p, f) {
                if (p->unit != u || uid_may_annotate(owners, p->note_uid))
                        continue;
                p->claim.bundle[0] = '\0';
                p->claim.bundle_state = CLAIM_BUNDLE_NONE;
                leave_unit(f, p);
        }
}

/* ---- the node's processes ---- */

static Process *find_process(const Failures *f, const Claim *c) {
        FOREACH_PROCESS (p, f)
                if (claim_compare_process(&p->claim, c) == 0)
                        return p;
        return NULL;
}

static void node_free_process(Failures *f, Process *p) {
        leave_unit(f, p);
        rank_watch_free(p->watch);
        p->key->n_processes--;
        list_remove(&p->owned.link);
        free(p);
}

static void free_process(Failures *f, Owned *o) {
        node_free_process(f, CONTAINER_OF(o, Process, owned));
}

/* Finds or adds it. @param c  only its process counts
 * @return NULL: it is of another key, bounded, no memory */
static Process *node_get_process(Failures *f, Key *k, const Claim *c, uid_t uid) {
        static const Bound bound = { PROCESSES_MAX, PROCESSES_OF_OWNER_MAX, process_is_settled,
                                     free_process };
        Process *p = find_process(f, c);
        if (p)
                return p->key == k ? p : NULL;
        p = make_space(f, &f->processes, &bound, uid) ? calloc(1, sizeof *p) : NULL;
        if (!p)
                return NULL;
        k->n_processes++;
        p->failures = f;
        p->key = k;
        p->claim = *c;
        p->owned.uid = uid;
        list_append(&f->processes, &p->owned.link);
        return p;
}

/* @return how many ranks of the last launch of a job are or were here */
static size_t node_count_ranks(const Failures *f, const Key *k) {
        bool is_seen[PROCESSES_MAX] = { false };
        int64_t launch_usec = INT64_MIN; /* what ended before was another one, with other ranks */
        size_t n_ranks = 0;
        FOREACH_PROCESS (p, f)
                if (p->key == k)
                        launch_usec = MAX(launch_usec, p->claim.started_usec);
        FOREACH_PROCESS (p, f) {
                const Claim *c = &p->claim;
                if (p->key != k || c->rank < 0 || c->rank >= PROCESSES_MAX ||
                    (c->state != CLAIM_ALIVE && c->event_usec < launch_usec))
                        continue;
                n_ranks += !is_seen[c->rank];
                is_seen[c->rank] = true;
        }
        return n_ranks;
}

/* @return the process of a note that does not name it: the last one here that had its rank */
static const Process *node_find_rank(const Failures *f, const Key *k, int64_t rank) {
        const Process *last = NULL;
        FOREACH_PROCESS (p, f)
                if (p->key == k && rank >= 0 && p->claim.rank == rank &&
                    p->claim.state != CLAIM_FAILED)
                        last = p;
        return last;
}

/* Live ranks of a key are here. @param uid  of whom; NULL: of anybody */
static bool node_has_live_rank(const Failures *f, const Key *k, const uid_t *uid) {
        FOREACH_PROCESS (p, f)
                if (p->key == k && p->watch && (!uid || p->owned.uid == *uid))
                        return true;
        return false;
}

/* ---- the node's keys ---- */

static Key *node_find_key(const Failures *f, const char *key) {
        FOREACH_KEY (k, f)
                if (strcmp(k->key, key) == 0)
                        return k;
        return NULL;
}

static void free_key(Failures *f, Owned *o) {
        Key *k = CONTAINER_OF(o, Key, owned);
        LIST_FOREACH_ITEM_SAFE (Process, p, owned.link, &f->processes)
                if (p->key == k)
                        node_free_process(f, p);
        agreement_forget(f->agreement, k->key);
        arbiter_free(k->arbiter);
        list_remove(&o->link);
        free(k->source);
        free(k);
}

/* Finds or adds it. @param uid  whose it is, unless that is known @return NULL: bounded, no memory
 */
static Key *node_get_key(Failures *f, const char *key, uid_t uid) {
        static const Bound bound = { AGREEMENT_KEYS_MAX, KEYS_OF_OWNER_MAX, key_is_settled,
                                     free_key };
        Key *k = node_find_key(f, key);
        if (!k && make_space(f, &f->keys, &bound, uid) && (k = calloc(1, sizeof *k))) {
                (void)strcpy(k->key, key); /* as long as this, by claim_key_build() */
                list_append(&f->keys, &k->owned.link);
        }
        if (k && k->owned.uid == 0) /* it is new, or was restored */
                k->owned.uid = uid;
        return k;
}

/* @return the key of the job whose ranks this user had here since then, if it is one */
static Key *node_find_job_of_user(const Failures *f, uid_t uid, int64_t since_usec) {
        Key *only = NULL;
        FOREACH_PROCESS (p, f) {
                bool was_here = p->claim.rank >= 0 && (p->claim.state == CLAIM_ALIVE ||
                                                       p->claim.event_usec >= since_usec);
                if (!was_here || p->key == only || p->key->owned.uid != uid || !p->key->job.key[0])
                        continue;
                if (only)
                        return NULL;
                only = p->key;
        }
        return only;
}

/* ---- pointers ---- */

/* `<place>/<instance-id>/<bundle-id>.see.json` where a bundle would be searched for but does not
 * lie: at the place of its own cluster id and date-time, or, when it was delivered before its
 * failure had a name, at its failure's. */

#define POINTER_SUFFIX ".see.json"
#define POINTERS_MAX 1024 /* underway; the oldest goes */
#define POINTER_RETRY_USEC (INT64_C(30) * 1000000)

typedef struct Pointer {
        ListLink link;
        Failures *failures;
        BundleRecord rec; /* a copy */
        char key[CLAIM_KEY_SIZE];
        Claim claim;      /* whose failure is waited for, while `name` is not set */
        FailureName name; /* of the place; all "" = the bundle's own */
        bool is_known;
        size_t next; /* delivery */
        ObjectCall *call;
        char *text;
        int64_t due_usec;
} Pointer;

static void free_pointer(Pointer *x) {
        object_call_cancel(x->call);
        list_remove(&x->link);
        x->failures->n_pointers--;
        bundle_record_done(&x->rec);
        free(x->text);
        free(x);
}

/* A bundle was delivered. @param claim  of a process in it, to find its failure when it went
 * without a name; NULL: none */
static void pointers_on_delivered(Failures *f, const BundleRecord *rec, const char *key,
                                  const Claim *claim) {
        bool is_named = rec->name.cluster_id[0] != '\0';
        if (is_named ? !rec->date_time[0] : !claim)
                return; /* nobody would search for it elsewhere */
        Pointer *x = calloc(1, sizeof *x);
        if (!x || bundle_record_copy(&x->rec, rec) < 0) {
                free(x);
                log_warning(-ENOMEM, "%s: no pointer to it is written", rec->id);
                return;
        }
        x->failures = f;
        x->is_known = is_named;
        (void)snprintf(x->key, sizeof x->key, "%s", key);
        if (claim)
                x->claim = *claim;
        list_append(&f->pointers, &x->link);
        if (++f->n_pointers > POINTERS_MAX)
                free_pointer(CONTAINER_OF(f->pointers.next, Pointer, link));
}

static char *pointer_format(const Pointer *x, const DeliveryRecord *d) {
        StrBuf b = STRBUF_INIT;
        json_out_object(&b, NULL);
        json_out_string(&b, "schema", "neuron-collectd/pointer/1");
        json_out_string(&b, "bundle", x->rec.id);
        json_out_path(&b, "object", d->object);
        json_out_string(&b, "cluster_id", bundle_record_cluster_id(&x->rec));
        json_out_string(&b, "date_time", bundle_record_date_time(&x->rec));
        json_out_string(&b, "agreed", x->rec.name.agreed);
        json_out_end_object(&b);
        strbuf_add(&b, "\n");
        return strbuf_detach(&b);
}

static void on_pointer_written(const ObjectResult *r, void *userdata) {
        Pointer *x = userdata;
        x->call = NULL;
        if (r->outcome == OBJECT_UNREACHABLE) {
                x->due_usec = now_usec(x->failures) + POINTER_RETRY_USEC;
                return;
        }
        if (r->outcome != OBJECT_OK)
                log_dump(x->rec.id, LOG_WARNING, 0, "no pointer to it is written at %s: %s",
                         x->rec.deliveries[x->next].destination, r->error);
        x->next++;
}

/* @return where a bundle would be searched for by the names that it has; NULL: nowhere, no memory
 */
static char *pointer_name(Scheduler *s, const char *destination, const BundleRecord *rec) {
        _cleanup_free_ char *directory = objects_bundle_directory(s, destination, rec);
        return directory ? strbuf_format("%s/%s" POINTER_SUFFIX, directory, rec->id) : NULL;
}

/* @return the name of the pointer; NULL: the bundle lies there already, or no memory */
static char *pointer_other_name(const Pointer *x, Scheduler *s, const char *destination) {
        BundleRecord there = x->rec; /* borrowed */
        there.name = x->name;
        there.s3_prefix = NULL;
        _cleanup_free_ char *from = pointer_name(s, destination, &x->rec);
        _cleanup_free_ char *to = pointer_name(s, destination, &there);
        return from && to && strcmp(from, to) != 0 ? TAKE_PTR(to) : NULL;
}

static void write_next_pointer(Pointer *x, Scheduler *s, int64_t now) {
        const DeliveryRecord *d = &x->rec.deliveries[x->next];
        _cleanup_free_ char *name =
                d->state == DELIVERY_DONE ? pointer_other_name(x, s, d->destination) : NULL;
        if (!name) {
                x->next++;
                return;
        }
        free(x->text);
        x->text = pointer_format(x, d);
        int r = x->text ? object_call_new(&x->call, s,
                                          &(ObjectRequest){ .operation = OBJECT_PUT,
                                                            .destination = d->destination,
                                                            .name = name,
                                                            .data = x->text,
                                                            .n = strlen(x->text),
                                                            .on_done = on_pointer_written,
                                                            .userdata = x })
                        : -ENOMEM;
        if (r < 0)
                x->due_usec = now + POINTER_RETRY_USEC;
}

/* @return false: it is not known where it belongs, and will not be */
static bool find_pointer_place(Pointer *x, const Agreement *agreement) {
        const Decision *d = agreement_find(agreement, x->key, &x->claim);
        if (!d)
                return agreement_is_pending(agreement, x->key, &x->claim);
        (void)strcpy(x->name.cluster_id, d->cluster_id);
        (void)strcpy(x->name.date_time, d->date_time);
        x->is_known = true;
        return true;
}

/* Writes what is due. @return when to call it again, by CLOCK_BOOTTIME; AGREEMENT_NEVER */
static int64_t pointers_step(Failures *f) {
        int64_t now = now_usec(f), next = AGREEMENT_NEVER;
        LIST_FOREACH_ITEM_SAFE (Pointer, x, link, &f->pointers) {
                if (!x->is_known && !find_pointer_place(x, f->agreement)) {
                        free_pointer(x);
                        continue;
                }
                while (f->scheduler && x->is_known && !x->call && x->due_usec <= now &&
                       x->next < x->rec.n_deliveries)
                        write_next_pointer(x, f->scheduler, now);
                if (x->next >= x->rec.n_deliveries)
                        free_pointer(x);
                else if (x->is_known)
                        next = MIN(next, x->call ? now + (int64_t)USEC_PER_SEC : x->due_usec);
        }
        return next;
}

static bool read_pointer_text(const json_t *object, const char *key, char *buf, size_t size) {
        const char *s = json_string_value(json_object_get(object, key));
        return s && (size_t)snprintf(buf, size, "%s", s) < size;
}

/* @return the name that the bundle was delivered under; `agreed` is "": it is no pointer */
static FailureName pointer_parse(const ObjectResult *r) {
        json_t *v = r->outcome == OBJECT_OK ? json_loadb(r->data, r->n, 0, NULL) : NULL;
        FailureName name = { 0 };
        Decision d = { 0 };
        bool is_pointer = read_pointer_text(v, "agreed", name.agreed, sizeof name.agreed) &&
                          agreed_parse(name.agreed, &d.agreed) == 0 &&
                          read_pointer_text(v, "cluster_id", d.cluster_id, sizeof d.cluster_id) &&
                          read_pointer_text(v, "date_time", d.date_time, sizeof d.date_time);
        json_decref(v);
        if (decision_name_is_valid(&d)) { /* else it went under its own */
                (void)strcpy(name.cluster_id, d.cluster_id);
                (void)strcpy(name.date_time, d.date_time);
        }
        return is_pointer ? name : (FailureName){ 0 };
}

/* ---- its timer ---- */

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

/* ---- arbiters ---- */

static void on_arbiter_done(Arbiter *a, void *userdata) {
        Failures *f = userdata;
        if (arbiter_state(a)->is_unable) /* what waited for it may go without a name */
                f->context.on_named(f->context.userdata);
        step_soon(f);
}

/* The source that named the key, or the first one that has dumps. */
static const ConfigSource *source_of(const Failures *f, const Key *k) {
        const ConfigSource *c = k->source ? config_find_source(f->config, k->source) : NULL;
        for (size_t i = 0; !c && i < f->config->n_sources; i++)
                if (f->config->sources[i].kind == CONFIG_NEURON_CORE_DUMP)
                        c = &f->config->sources[i];
        return c;
}

/* @return the source's first destination, when many nodes see it; NULL */
static const char *arbiter_of(const Failures *f, const ConfigSource *c) {
        const char *first = c && c->destinations.n > 0 ? c->destinations.items[0] : NULL;
        return first && objects_are_shared(f->scheduler, first) ? first : NULL;
}

/* Anew: one that was unable may be able now, or another one is asked. */
static void set_arbiter(Failures *f, Key *k) {
        const ConfigSource *c = source_of(f, k);
        const char *destination = arbiter_of(f, c);
        if (k->arbiter)
                arbiter_cancel(k->arbiter); /* the agreement waits for it */
        k->arbiter = arbiter_free(k->arbiter);
        int r = agreement_set_arbiter(f->agreement, k->key, false);
        if (r >= 0 && destination)
                r = arbiter_new(&k->arbiter,
                                &(ArbiterOptions){ .clock = f->context.clock,
                                                   .agreement = f->agreement,
                                                   .instance_id = f->context.instance_id,
                                                   .key = k->key,
                                                   .job_key = k->job.key,
                                                   .destination = destination,
                                                   .kind = source_kind_name((SourceKind)c->kind),
                                                   .source = c->name,
                                                   .on_done = on_arbiter_done,
                                                   .userdata = f });
        if (r >= 0 && k->arbiter)
                r = agreement_set_arbiter(f->agreement, k->key, true);
        if (r < 0)
                log_warning(r, "failure %s: it is named by this node alone", k->key);
}

/* ---- where jobs meet ---- */

/* @param ret_host  of its rendezvous */
static JobScope scope_of(const Failures *f, const Key *k, char ret_host[JOB_HOST_SIZE]) {
        BusView bus = { 0 };
        if (f->bus)
                bus_view(f->bus, &bus);
        JobFacts facts = { .n_here = node_count_ranks(f, k),
                           .has_rendezvous = job_rendezvous_host(&k->job, ret_host),
                           .bus_has_key = bus.has_key };
        facts.rendezvous_is_own =
                facts.has_rendezvous && f->bus && bus_is_own_host(f->bus, ret_host);
        return job_scope(&k->job, &facts);
}

/* The agents of the jobs that run here meet at the nodes of their rendezvous. */
static void set_rendezvous(Failures *f) {
        DialledHost hosts[BUS_PEERS_MAX], host;
        char *list[BUS_PEERS_MAX + 1];
        bool dials = strcmp(f->config->agreement.rendezvous, "auto") == 0;
        size_t n = 0;
        FOREACH_KEY (k, f) {
                host.uid = k->owned.uid;
                Role role = scope_of(f, k, host.host).role;
                (void)agreement_set_role(f->agreement, k->key, role); /* its claims fail, too */
                if (dials && role == ROLE_LEAF)
                        n = job_scope_add_host(hosts, n, BUS_PEERS_MAX, &host);
        }
        for (size_t i = 0; i < n; i++)
                list[i] = hosts[i].host;
        list[n] = NULL;
        bus_set_rendezvous(f->bus, list);
}

/* ---- claims ---- */

/* In the state database, with the decision that it belongs to. */
static void store_claim(const Failures *f, const Process *p) {
        _cleanup_(record_done) Record r = { .n = p->n };
        const Decision *d = p->n > 0 ? agreement_find(f->agreement, p->key->key, &p->claim) : NULL;
        char name[CLAIM_BOOT_ID_SIZE + 48];
        Claim c = p->claim;
        size_t n;
        claim_shift(&c, realtime_offset(f));
        (void)snprintf(name, sizeof name, "%s-%u-%llu", c.boot_id, c.pid,
                       (unsigned long long)c.start_ticks);
        (void)strcpy(r.key, p->key->key);
        (void)snprintf(r.instance_id, sizeof r.instance_id, "%s", f->context.instance_id);
        _cleanup_free_ char *claim =
                claim_set_add(&r.claims, &c) >= 0 ? record_format(&r, &n) : NULL;
        _cleanup_free_ char *decision = d ? decision_format(d, p->key->job.key, &n) : strdup("");
        _cleanup_free_ char *text =
                claim && decision ? strbuf_format("%s%s", claim, decision) : NULL;
        int64_t time_usec = d ? d->opened_usec : now_usec(f);
        StoredFailure row = { .name = name,
                              .key = r.key,
                              .n = p->n,
                              .time_usec = (uint64_t)(time_usec + realtime_offset(f)),
                              .document = text };
        int error = text ? store_failure_put(f->context.store, &row) : -ENOMEM;
        if (error < 0)
                log_warning(error,
                            "failure %s: a claim cannot be stored; after a restart it is missing",
                            r.key);
}

/* It is new, or has changed. */
static void claim_process(Failures *f, Process *p) {
        char host[JOB_HOST_SIZE];
        const char *key = p->key->key;
        /* They rise after a loss of state, too. */
        uint64_t sec = f->context.clock->realtime_usec(f->context.clock) / USEC_PER_SEC;
        uint32_t least = sec > REVISION_EPOCH_SEC ? (uint32_t)(sec - REVISION_EPOCH_SEC) : 0;
        p->claim.revision = MAX(p->claim.revision + 1, least);
        p->changed_usec = now_usec(f);
        claim_bound_ranks(&p->claim);
        f->meeting_usec = 0;
        bool is_seen = p->claim.pid < CLAIM_PID_UNKNOWN;
        log_debug("failure %s: rank %lld, pid %lld: %s, bundle %s", key, (long long)p->claim.rank,
                  is_seen ? (long long)p->claim.pid : -1, claim_state_name(p->claim.state),
                  claim_bundle_name(p->claim.bundle_state));
        int r = agreement_claim(f->agreement, key, &p->claim, scope_of(f, p->key, host).is_local,
                                now_usec(f));
        if (r < 0) {
                f->n_dropped++;
                log_warning(r, "failure %s: a claim is dropped", key);
        } else if (p->claim.state != CLAIM_ALIVE)
                store_claim(f, p);
        step_soon(f);
}

/* @return a number, in place of a pid, for a claim of this node whose process is unknown */
static uint32_t number_of_unknown(const char *what) {
        uint8_t digest[SHA256_SIZE];
        uint32_t number;
        sha256_of(what, strlen(what), digest);
        memcpy(&number, digest, sizeof number);
        return CLAIM_PID_UNKNOWN | number;
}

static void init_claim(const Failures *f, Claim *c) {
        *c = (Claim){ .rank = -1, .world_size = -1, .started_usec = INT64_MIN };
        (void)strcpy(c->boot_id, f->boot_id);
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

static void set_process_bundle(Failures *f, Process *p, const char *bundle, ClaimBundle state) {
        if (p->claim.bundle_state == state && strcmp(p->claim.bundle, bundle) == 0)
                return;
        p->claim.bundle_state = state;
        (void)strcpy(p->claim.bundle, bundle);
        claim_process(f, p);
}

/* Sets the bundle's state on all claims of its unit. A claim that was delivered stays so, whatever
 * else comes into the directory. */
static void set_bundle(Failures *f, const Unit *u, ClaimBundle state) {
        FOREACH_PROCESS (p, f)
                if (p->unit == u && p->claim.bundle_state != CLAIM_BUNDLE_DELIVERED)
                        set_process_bundle(f, p, u->bundle, state);
}

/* ---- the processes whose files are in a bundle ---- */

static bool bundle_names_process(const Bundle *b, const Process *p) {
        int64_t pid = p->claim.pid < CLAIM_PID_UNKNOWN ? (int64_t)p->claim.pid : 0;
        return named_pids_contain(&b->pids, p->file_pid ? p->file_pid : pid);
}

/* @return whether a bundle may have files of a process. Names without pids may belong to any
 * process of the unit. */
static bool bundle_may_have_process(const Bundle *b, const Process *p) {
        if (bundle_is_of_attachments(&b->rec))
                return false;
        bool is_unknown = p->claim.pid >= CLAIM_PID_UNKNOWN && p->file_pid == 0;
        return is_unknown || b->pids.n == 0 || b->pids.is_cut || bundle_names_process(b, p);
}

/* Finds claims of a user's processes whose pids are in the names of that user's files, and of which
 * no note has arrived: it was refused, or the runtime ran no hook. This is a hint only: users
 * choose the names of their files, but can name only their own processes. */
static void join_named_processes(Failures *f, Unit *u, const Bundle *b) {
        int64_t now = now_usec(f), written_usec = boottime_of(f, b->rec.oldest_mtime_usec);
        FOREACH_PROCESS (p, f) {
                Claim *c = &p->claim;
                bool has_left =
                        c->state != CLAIM_ALIVE && /* ended: its pid may be in use again */
                        c->event_usec + (int64_t)f->config->agreement.window_usec < written_usec;
                if (p->unit || c->bundle_state != CLAIM_BUNDLE_NONE || has_left ||
                    p->owned.uid != b->rec.uid || !bundle_names_process(b, p))
                        continue;
                node_join_unit(f, u, p);
                if (c->state != CLAIM_FAILED) {
                        set_names(f, c, b->rec.cluster_id, b->rec.date_time);
                        c->event_usec = c->state == CLAIM_ENDED ? c->event_usec : now;
                        c->state = CLAIM_FAILED;
                }
                set_process_bundle(f, p, u->bundle, CLAIM_BUNDLE_PENDING);
        }
}

/* @param source  that speaks of it; NULL: none does */
static void learn_job(Failures *f, Key *k, const JobIdentity *job, const char *source) {
        bool is_named = !k->source && source;
        if (job->key[0])
                k->job = *job;
        if (is_named)
                k->source = strdup(source);            /* else the first one that has dumps */
        if (f->scheduler && (is_named || !k->arbiter)) /* else when there is one */
                set_arbiter(f, k);
}

/* ---- what is reported ---- */

/* Only this user's ranks of the job are here, or nobody's. */
static bool may_speak_of(const Failures *f, const Key *k, uid_t uid) {
        return uid == 0 || !node_has_live_rank(f, k, NULL) || node_has_live_rank(f, k, &uid);
}

static void set_process(const Failures *f, const NoteView *v, const Key *k, Claim *c) {
        const Process *p = v->pid > 0 ? NULL : node_find_rank(f, k, v->note->job.rank);
        c->pid = v->pid > 0 ? (uint32_t)v->pid : p ? p->claim.pid : number_of_unknown(v->note->id);
        c->start_ticks = v->pid > 0 ? v->start_ticks : p ? p->claim.start_ticks : 0;
}

/* @param is_other_job  whether another launcher has named the process, whose ranks are used */
static void set_failed(const Failures *f, const NoteView *v, const Claim *names, bool is_other_job,
                       Claim *c) {
        const HookNote *n = v->note;
        if (!is_other_job || c->rank < 0) {
                c->rank = n->job.rank;
                c->world_size = n->job.world_size;
        }
        (void)strcpy(c->cluster_id, names->cluster_id);
        (void)strcpy(c->date_time, names->date_time);
        c->has_error = n->has_error_number;
        c->error_code = n->error_number;
        set_printable(c->error_location, sizeof c->error_location, n->error_location);
        c->started_usec =
                c->start_ticks ? (int64_t)rank_watch_start_usec(c->start_ticks) : INT64_MIN;
        if (c->state != CLAIM_FAILED)
                c->event_usec = boottime_of(f, v->by_mailbox ? n->written_usec : v->received_usec);
        c->state = CLAIM_FAILED;
}

/* @return the pid in the process's own namespace; 0: not given */
static int64_t note_pid(const HookNote *n) {
        uint64_t pid;
        return n->pid && parse_u64_range(n->pid, 1, INT32_MAX, &pid) == 0 ? (int64_t)pid : 0;
}

void failures_on_note(Failures *f, const NoteView *v) {
        const JobIdentity *job = &v->note->job;
        const uid_t uid = v->owner.uid;
        char key[CLAIM_KEY_SIZE];
        Claim c;
        init_claim(f, &c);
        set_names(f, &c, v->note->cluster_id, v->note->date_time);
        c.pid = v->pid > 0 ? (uint32_t)v->pid : 0;
        c.start_ticks = v->start_ticks;
        Process *known = v->pid > 0 ? find_process(f, &c) : NULL;
        if (known)
                (void)strcpy(key, known->key->key);
        else if (!claim_key_build(job->key, c.cluster_id, key))
                return;
        Key *k = node_get_key(f, key, uid);
        if (!k)
                return;
        /* A process keeps the key that it was first seen with: its program may have set what looks
         * like another launcher's environment, which its hook inherits. */
        char own_key[CLAIM_KEY_SIZE] = "";
        bool is_other_job = !claim_key_build(job->key, "", own_key) || strcmp(own_key, key) != 0;
        if (!may_speak_of(f, k, uid)) {
                log_warning(0,
                            "failure %s: a note of uid %u is ignored: the job's ranks here are "
                            "of another user",
                            key, (unsigned)uid);
                return;
        }
        learn_job(f, k, known && is_other_job ? &k->job : job, v->source);
        set_process(f, v, k, &c);
        Process *p = node_get_process(f, k, &c, uid);
        if (!p)
                return;
        p->note_uid = note_sender(&v->owner, v->container, v->by_mailbox).uid;
        p->file_pid = note_pid(v->note);
        set_failed(f, v, &c, known && is_other_job, &p->claim);
        Unit *u = v->source && v->unit_path ? node_get_unit(f, v->source, v->unit_path) : NULL;
        if (u) {
                node_join_unit(f, u, p);
                u->due_usec = 0;
        }
        if (u && p->claim.bundle_state != CLAIM_BUNDLE_DELIVERED) {
                (void)strcpy(p->claim.bundle, u->bundle);
                if (p->claim.bundle_state == CLAIM_BUNDLE_NONE)
                        p->claim.bundle_state = CLAIM_BUNDLE_PENDING;
        }
        claim_process(f, p);
}

static void on_rank_end(void *userdata) {
        Process *p = userdata;
        p->watch = rank_watch_free(p->watch);
        if (p->claim.state != CLAIM_ALIVE)
                return;
        p->claim.state = CLAIM_ENDED;
        p->claim.event_usec = now_usec(p->failures);
        claim_process(p->failures, p);
}

void failures_on_job(Failures *f, const char *record) {
        char key[CLAIM_KEY_SIZE];
        JobsProcess rank;
        Claim c;
        init_claim(f, &c);
        if (!jobs_parse_record(record, &rank) || !claim_key_build(rank.job.key, "", key))
                return;
        c.pid = (uint32_t)rank.pid;
        c.start_ticks = rank.start_ticks;
        Key *k = node_get_key(f, key, rank.uid);
        Process *p = k ? node_get_process(f, k, &c, rank.uid) : NULL;
        if (!p || p->watch)
                return;
        int r = rank_watch_new(&p->watch,
                               &(RankWatchOptions){ .event = f->context.event,
                                                    .proc_root = f->config->snapshot.proc_root,
                                                    .pid = rank.pid,
                                                    .start_ticks = rank.start_ticks,
                                                    .on_end = on_rank_end,
                                                    .userdata = p });
        if (r < 0) {
                if (r != -ESRCH && !f->is_blind)
                        log_warning(r, "the end of ranks cannot be seen (pidfd_open): reports name "
                                       "those that leave no dump as unreachable");
                f->is_blind = f->is_blind || r != -ESRCH;
                if (p->claim.revision == 0) /* nothing else is known of it */
                        node_free_process(f, p);
                return;
        }
        /* Of a note it may be somebody else's, of a restored claim it is 0. */
        k->owned.uid = p->owned.uid = rank.uid;
        learn_job(f, k, &rank.job, NULL);
        if (p->claim.state == CLAIM_FAILED)
                return;
        p->claim.rank = rank.job.rank;
        p->claim.world_size = rank.job.world_size;
        p->claim.started_usec = (int64_t)rank_watch_start_usec(rank.start_ticks);
        p->claim.state = CLAIM_ALIVE;
        p->claim.event_usec = now_usec(f);
        claim_process(f, p);
}

/* ---- bundles ---- */

/* Assigns a bundle without a note: to the processes whose pids are in its files' names, else to the
 * only job of its user, or of its cluster id. */
static void claim_unit(Failures *f, Unit *u, const Bundle *b) {
        const BundleRecord *rec = &b->rec;
        int64_t seen_usec = boottime_of(f, rec->first_seen_usec);
        char key[CLAIM_KEY_SIZE];
        Claim c;
        u->due_usec = 0;
        join_named_processes(f, u, b);
        if (u->first || rec->supplement_of[0]) /* a supplement is named like its base */
                return;
        init_claim(f, &c);
        set_names(f, &c, rec->cluster_id, rec->date_time);
        Key *k = node_find_job_of_user(f, rec->uid,
                                       seen_usec - (int64_t)f->config->agreement.window_usec);
        if (!k && claim_key_build("", c.cluster_id, key))
                k = node_get_key(f, key, rec->uid);
        if (!k)
                return;
        learn_job(f, k, &k->job, rec->source);
        c.pid = number_of_unknown(rec->id);
        Process *p = node_get_process(f, k, &c, rec->uid);
        if (!p)
                return;
        node_join_unit(f, u, p);
        p->claim.state = CLAIM_FAILED;
        p->claim.event_usec = seen_usec;
        p->claim.bundle_state = CLAIM_BUNDLE_PENDING;
        (void)strcpy(p->claim.bundle, rec->id);
        claim_process(f, p);
}

static bool has_failure(const BundleRecord *rec) {
        return source_kind_has_incident(rec->kind);
}

/* @return the unit of a bundle, with the claims that were restored for it; NULL: another bundle has
 * it, or no memory */
static Unit *unit_of(Failures *f, Bundle *b) {
        if (b->failure_unit)
                return b->failure_unit;
        Unit *u = node_get_unit(f, b->rec.source, b->rec.path);
        if (!u || (u->bundle[0] && strcmp(u->bundle, b->rec.id) != 0))
                return NULL;
        (void)strcpy(u->bundle, b->rec.id);
        b->failure_unit = u;
        FOREACH_PROCESS (p, f)
                if (strcmp(p->claim.bundle, b->rec.id) == 0)
                        node_join_unit(f, u, p);
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

/* Ranks share a directory, and a bundle may have the files of only some of them. The claims of the
 * others stay in the unit for its next bundle, a supplement. @return whether there are any */
static bool unit_on_final(Failures *f, Unit *u, const Bundle *b) {
        const BundleRecord *rec = &b->rec;
        ClaimBundle state = rec->state == BUNDLE_DELIVERED     ? CLAIM_BUNDLE_DELIVERED
                            : rec->state == BUNDLE_QUARANTINED ? CLAIM_BUNDLE_PENDING
                                                               : CLAIM_BUNDLE_EMPTY;
        bool is_of_all = !rec->supplement_of[0] && state != CLAIM_BUNDLE_DELIVERED;
        u->first = NULL;
        FOREACH_PROCESS (p, f) {
                if (p->unit != u)
                        continue;
                bool has_it = p->claim.bundle_state == CLAIM_BUNDLE_DELIVERED;
                if (!has_it && !is_of_all && !bundle_may_have_process(b, p)) {
                        set_process_bundle(f, p, "", CLAIM_BUNDLE_PENDING);
                        u->first = u->first ? u->first : p;
                        continue;
                }
                if (!has_it)
                        set_process_bundle(f, p, rec->id, state);
                p->unit = NULL;
        }
        return u->first;
}

void failures_on_final(Failures *f, const Bundle *b) {
        const BundleRecord *rec = &b->rec;
        Unit *u = has_failure(rec) ? node_find_unit(f, rec->source, rec->path) : NULL;
        if (!u || (u->bundle[0] && strcmp(u->bundle, rec->id) != 0))
                return;
        const Process *p = u->first;
        if (rec->state == BUNDLE_DELIVERED && !rec->supplement_of[0])
                pointers_on_delivered(f, rec, p ? p->key->key : "", p ? &p->claim : NULL);
        if (unit_on_final(f, u, b))
                unit_end_bundle(f, u);
        else
                node_free_unit(f, u);
}

/* ---- names ---- */

/* @param d  NULL: alone, under its own name */
static void set_name(Failures *f, BundleRecord *rec, const Decision *d) {
        FailureName *name = &rec->name;
        Agreed agreed = d ? d->agreed : AGREED_ALONE;
        *name = (FailureName){ 0 };
        (void)strcpy(name->agreed, agreed_name(agreed)); /* 5 bytes at most */
        f->n_named[agreed]++;
        if (!d)
                return;
        (void)strcpy(name->cluster_id, d->cluster_id);
        (void)strcpy(name->date_time, d->date_time);
        (void)strcpy(name->key, d->key);
        name->derived = d->derived;
        name->n = d->n;
        log_dump(rec->id, LOG_INFO, 0, "belongs to failure %s/%u: %s-%s, agreed: %s", name->key,
                 name->n, name->date_time, name->cluster_id, name->agreed);
}

/* Its files, and the processes in their names, are known now. */
static void unit_on_ready(Failures *f, Unit *u, const Bundle *b) {
        node_expel_strangers(f, u, &b->owners);
        if (u->ready_usec == 0)
                join_named_processes(f, u, b);
        if (!u->first)
                claim_unit(f, u, b);
        if (u->ready_usec == 0)
                u->ready_usec = now_usec(f);
}

/* A supplement is named as what it supplements, and waits for its name. @return false: it waits */
static bool name_supplement(Failures *f, Bundle *b, uint64_t *ret_wait_usec) {
        BundleRecord *rec = &b->rec;
        Unit *u = bundle_has_begun(b) ? NULL : unit_of(f, b);
        if (u)
                unit_on_ready(f, u, b);
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
                (void)strcpy(rec->name.agreed, agreed_name(AGREED_ALONE));
        return true;
}

/* Nobody but the arbiter would take it, and the arbiter is away, or back and being asked: not when
 * it would take the bundle but does not answer this. */
static bool only_arbiter_is_left(const Failures *f, const Key *k, const BundleRecord *rec) {
        const ArbiterState *a = k->arbiter ? arbiter_state(k->arbiter) : NULL;
        bool is_asked = agreement_is_asking(f->agreement, k->key, now_usec(f));
        if (!a || (!a->is_unreachable && !a->is_busy && !is_asked) ||
            objects_are_refused(f->scheduler, a->destination))
                return false;
        for (size_t i = 0; i < rec->n_deliveries; i++)
                if (strcmp(rec->deliveries[i].destination, a->destination) != 0)
                        return false;
        return true;
}

/* @return until when a unit waits for what its name depends on, at most */
static int64_t wait_limit(const Failures *f, const Unit *u) {
        return u->ready_usec +
               (f->hurry ? NAME_WAIT_HURRY_USEC
                         : (int64_t)f->config->agreement.settle_usec + NAME_WAIT_USEC);
}

/* @return until when it waits for its name, by CLOCK_BOOTTIME; 0: no longer */
static int64_t waits_until(const Failures *f, const Unit *u, const BundleRecord *rec) {
        const Process *p = u->first;
        int64_t now = now_usec(f), limit = wait_limit(f, u);
        if (!agreement_is_pending(f->agreement, p->key->key, &p->claim))
                return 0;
        if (now < limit)
                return limit;
        return !f->hurry && only_arbiter_is_left(f, p->key, rec) ? now + (int64_t)USEC_PER_SEC : 0;
}

static void on_pointer(const ObjectResult *r, void *userdata) {
        Unit *u = userdata;
        Failures *f = u->failures;
        u->search = NULL;
        if (r->outcome == OBJECT_UNREACHABLE && now_usec(f) < wait_limit(f, u))
                return;              /* the scheduler asks again */
        u->found = pointer_parse(r); /* most often there is none */
        u->is_searched = true;
        f->context.on_named(f->context.userdata);
}

/* What is older than the state database may have been delivered by the one before, under another
 * name than it would get now: then a pointer lies at its own place. @return whether it is not known
 * yet */
static bool may_be_elsewhere(Failures *f, Unit *u, const BundleRecord *rec) {
        const ConfigSource *c = config_find_source(f->config, rec->source);
        if (u->search)
                return true;
        if (u->is_searched || rec->oldest_mtime_usec >= f->created_usec || !c ||
            c->destinations.n == 0 || !f->scheduler)
                return false;
        const char *destination = c->destinations.items[0];
        _cleanup_free_ char *name = pointer_name(f->scheduler, destination, rec);
        return name && object_call_new(&u->search, f->scheduler,
                                       &(ObjectRequest){ .operation = OBJECT_GET,
                                                         .destination = destination,
                                                         .name = name,
                                                         .on_done = on_pointer,
                                                         .userdata = u }) >= 0;
}

bool failures_is_named(Failures *f, Bundle *b, uint64_t *ret_wait_usec) {
        BundleRecord *rec = &b->rec;
        if (!source_kind_has_incident(rec->kind) || rec->name.agreed[0])
                return true;
        if (rec->supplement_of[0])
                return name_supplement(f, b, ret_wait_usec);
        Unit *u = bundle_has_begun(b) ? NULL : unit_of(f, b);
        if (!u) { /* an earlier version has begun to deliver it */
                set_name(f, rec, NULL);
                return true;
        }
        unit_on_ready(f, u, b);
        const Process *p = u->first; /* NULL: nobody could agree on it */
        const Decision *d = p ? agreement_find(f->agreement, p->key->key, &p->claim) : NULL;
        int64_t until = p && !d ? waits_until(f, u, rec) : 0;
        *ret_wait_usec =
                until ? MAX((uint64_t)(until - now_usec(f)), UINT64_C(1000)) : USEC_PER_SEC;
        if (until != 0 || may_be_elsewhere(f, u, rec))
                return false;
        if (u->found.agreed[0]) {
                rec->name = u->found;
                log_dump(rec->id, LOG_NOTICE, 0, "was delivered before as %s-%s",
                         bundle_record_date_time(rec), bundle_record_cluster_id(rec));
        } else
                set_name(f, rec, d);
        return true;
}

bool failures_is_idle(Failures *f) {
        int64_t now = now_usec(f);
        bool is_busy = agreement_next_time(f->agreement) < now + SOON_USEC;
        FOREACH_KEY (k, f)
                is_busy = is_busy || (k->arbiter && arbiter_state(k->arbiter)->is_busy);
        if (!is_busy || f->busy_usec == 0)
                f->busy_usec = is_busy ? now : 0;
        return !is_busy || now - f->busy_usec > IDLE_WAIT_USEC;
}

/* ---- what is shown ---- */

char *failures_explain(const Failures *f, const BundleRecord *rec) {
        const FailureName *n = &rec->name;
        char wait[64];
        if (n->key[0])
                return strbuf_format("It belongs to failure %s/%u, %s-%s (agreed: %s).", n->key,
                                     n->n, n->date_time, n->cluster_id, n->agreed);
        const Unit *u = rec->state == BUNDLE_READY && !n->agreed[0]
                                ? node_find_unit(f, rec->source, rec->path)
                                : NULL;
        bool is_waiting = u && u->ready_usec && u->first;
        int64_t until = is_waiting ? waits_until(f, u, rec) : 0, now = now_usec(f);
        if (until <= now)
                return NULL;
        const Key *k = u->first->key;
        const char *error = k->arbiter ? arbiter_state(k->arbiter)->error : NULL;
        return strbuf_format("It waits, %s more at most, until the nodes of failure %s have agreed "
                             "on a name%s%s.",
                             clock_format_duration(wait, (uint64_t)(until - now)), k->key,
                             error ? "; the last error: " : "", error ? error : "");
}

uint64_t failures_n_named(const Failures *f, Agreed agreed) {
        return f->n_named[agreed];
}

static void add_failure_status(const Failures *f, const AgreementFailure *x, StrBuf *b) {
        const Key *k = node_find_key(f, x->decision->key);
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
        json_out_string(b, "job", k && k->job.key[0] ? k->job.key : NULL);
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
        static const ArbiterState none;
        const ArbiterState *arbiter = &none; /* one that has an error, if any has */
        AgreementFailure x;
        uint64_t n_live = 0, n_keys = 0;
        FOREACH_KEY (k, f) {
                n_keys++;
                if (k->arbiter && !arbiter->error)
                        arbiter = arbiter_state(k->arbiter);
        }
        FOREACH_PROCESS (p, f)
                n_live += p->watch != NULL;
        json_out_object(b, NULL);
        json_out_bool(b, "enabled", true);
        json_out_u64(b, "ranks", n_live);
        json_out_u64(b, "keys", n_keys);
        json_out_string(b, "arbiter", arbiter->destination);
        json_out_string(b, "last_error", arbiter->error);
        json_out_u64(b, "dropped", f->n_dropped);
        add_bus_status(f, b);
        json_out_array(b, "failures");
        for (size_t i = 0; agreement_failure(f->agreement, i, &x); i++)
                add_failure_status(f, &x, b);
        json_out_end_array(b);
        json_out_end_object(b);
}

/* ---- what is due ---- */

/* Which failure each claim belongs to is written down as soon as it has a number.
 * @return whether there are claims that had no failure before */
static bool place_claims(Failures *f) {
        bool any = false;
        FOREACH_PROCESS (p, f) {
                if (p->is_placed && p->n > 0)
                        continue;
                const Decision *d = agreement_find(f->agreement, p->key->key, &p->claim);
                if (!d || (p->is_placed && d->n == 0))
                        continue;
                any = any || !p->is_placed;
                p->is_placed = true;
                p->n = d->n;
                if (p->n > 0 && p->claim.state != CLAIM_ALIVE)
                        store_claim(f, p);
        }
        return any;
}

/* Live ranks of a job that failed elsewhere: what their node looks like then is evidence. */
static void report_peers(Failures *f) {
        AgreementFailure x;
        for (size_t i = 0; agreement_failure(f->agreement, i, &x); i++) {
                Key *k = node_find_key(f, x.decision->key);
                if (!k || x.decision->n <= k->n_reported)
                        continue;
                bool failed_here = false;
                FOREACH_PROCESS (p, f)
                        failed_here |=
                                p->key == k && p->n == x.decision->n && claim_is_failure(&p->claim);
                k->n_reported = x.decision->n;
                if (failed_here || !k->job.key[0] || !node_has_live_rank(f, k, NULL))
                        continue;
                _cleanup_free_ char *what =
                        strbuf_format("failure %s/%u of job %s", k->key, k->n_reported, k->job.key);
                if (what)
                        f->context.on_peer_failure(what, f->context.userdata);
        }
}

/* Frees what nobody will miss. @return what the state database has to say about it */
static int prune(Failures *f) {
        uint64_t realtime = f->context.clock->realtime_usec(f->context.clock);
        uint64_t keep = (uint64_t)AGREEMENT_KEEP_USEC;
        int64_t now = now_usec(f);
        LIST_FOREACH_ITEM_SAFE (Process, p, owned.link, &f->processes) {
                int64_t keep_usec = p->is_placed ? AGREEMENT_KEEP_USEC : (int64_t)USEC_PER_HOUR;
                if (!(p->unit && p->unit->bundle[0]) && p->claim.state != CLAIM_ALIVE &&
                    now - p->changed_usec > keep_usec)
                        node_free_process(f, p);
        }
        LIST_FOREACH_ITEM_SAFE (Key, k, owned.link, &f->keys)
                if (k->n_processes == 0)
                        free_key(f, &k->owned);
        f->prune_usec = now + (int64_t)USEC_PER_MINUTE;
        return realtime > keep ? store_failure_drop(f->context.store, realtime - keep) : 0;
}

/* @return when to call it again */
static int64_t claim_units(Failures *f) {
        int64_t next = AGREEMENT_NEVER, now = now_usec(f);
        LIST_FOREACH_ITEM_SAFE (Unit, u, link, &f->units) {
                if (u->due_usec == 0)
                        continue;
                const Bundle *b = bundle_table_find(f->context.bundles, u->bundle);
                if (u->due_usec > now)
                        next = MIN(next, u->due_usec);
                else if (b)
                        claim_unit(f, u, b);
                else
                        node_free_unit(f, u); /* it is gone */
        }
        return next;
}

static void execute_actions(Failures *f) {
        Action action;
        while (agreement_next_action(f->agreement, now_usec(f), &action) != ACTION_NONE) {
                Key *k = node_find_key(f, action.key);
                if (action.kind == ACTION_SEND && f->bus)
                        (void)bus_send(f->bus, action.message); /* it is sent again */
                else if (k && k->arbiter && action.kind != ACTION_SEND)
                        arbiter_execute(k->arbiter, f->scheduler, &action);
        }
}

static void step(Failures *f) {
        int64_t next = claim_units(f);
        if (f->bus && now_usec(f) >= f->meeting_usec) {
                set_rendezvous(f);
                f->meeting_usec = now_usec(f) + MEETING_USEC;
        }
        execute_actions(f);
        if (place_claims(f))
                f->context.on_named(f->context.userdata);
        report_peers(f);
        next = MIN(next, pointers_step(f));
        if (now_usec(f) >= f->prune_usec)
                (void)prune(f); /* again in a minute */
        next = MIN(next, agreement_next_time(f->agreement));
        if (f->bus && !list_is_empty(&f->keys))
                next = MIN(next, f->meeting_usec);
        arm(f, MIN(next, now_usec(f) + (int64_t)USEC_PER_MINUTE));
}

/* ---- life ---- */

/* A claim, and the decision that it belongs to: store_claim(). */
static int restore_claim(const StoredFailure *s, void *userdata) {
        Failures *f = userdata;
        _cleanup_(record_done) Record r = { 0 };
        Decision d = { 0 };
        size_t n_claim = strcspn(s->document, "\n");
        const char *decision = s->document + n_claim;
        if (record_parse(s->document, n_claim, s->key, s->n, &r) < 0 || r.claims.n != 1 ||
            (s->n > 0 && decision_parse(decision, strlen(decision), s->key, s->n, &d) < 0))
                return 0;
        Claim c = r.claims.items[0];
        int64_t now = now_usec(f);
        claim_shift(&c, -realtime_offset(f));
        /* The clock may have been set back since. */
        d.opened_usec = MIN((int64_t)s->time_usec - realtime_offset(f), now);
        Key *k = node_get_key(f, s->key, 0);
        Process *p = k ? node_get_process(f, k, &c, 0) : NULL;
        if (!p)
                return 0;
        p->changed_usec = now;
        p->n = s->n;
        p->is_placed = s->n > 0;
        k->n_reported = MAX(k->n_reported, p->n);
        return p->is_placed ? agreement_restore(f->agreement, &d, &c, now)
                            : agreement_claim(f->agreement, s->key, &c, false, now);
}

/* The last run ended after a bundle was delivered and before its claims were updated. */
static void restore_delivered(Failures *f) {
        FOREACH_PROCESS (p, f) {
                _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
                const char *bundle = p->claim.bundle;
                if (p->claim.bundle_state == CLAIM_BUNDLE_PENDING && bundle[0] &&
                    !bundle_table_find(f->context.bundles, bundle) &&
                    store_get(f->context.store, bundle, &rec) == 0 && rec.state == BUNDLE_DELIVERED)
                        set_process_bundle(f, p, rec.id, CLAIM_BUNDLE_DELIVERED);
        }
}

/* What cannot be restored is asked for again. */
static void restore(Failures *f) {
        int r = prune(f);
        if (r >= 0)
                r = store_failure_list(f->context.store, restore_claim, f);
        if (r < 0)
                log_warning(r, "failures of the past cannot be read from the state database");
        restore_delivered(f);
}

static void on_message(const Message *m, void *userdata) {
        Failures *f = userdata;
        int r = agreement_hear(f->agreement, m, now_usec(f));
        if (r < 0)
                f->n_dropped++;
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
        sd_id128_t boot;
        if (!f)
                return -ENOMEM;
        (void)getrandom(&seed, sizeof seed, GRND_NONBLOCK); /* of jitter */
        f->context = *context;
        f->config = config;
        list_init(&f->keys);
        list_init(&f->processes);
        list_init(&f->units);
        list_init(&f->pointers);
        int r = sd_id128_get_boot(&boot);
        if (r < 0)
                return r;
        (void)sd_id128_to_string(boot, f->boot_id);
        r = agreement_new(
                &f->agreement,
                &(AgreementOptions){ .instance_id = context->instance_id,
                                     .settle_usec = (int64_t)config->agreement.settle_usec,
                                     .window_usec = (int64_t)config->agreement.window_usec,
                                     .seed = seed });
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

void failures_rebind(Failures *f, const Config *config) {
        f->config = config;
        f->bus = bus_free(f->bus);
        start_bus(f);
        agreement_set_times(f->agreement, (int64_t)config->agreement.settle_usec,
                            (int64_t)config->agreement.window_usec);
}

void failures_set_scheduler(Failures *f, Scheduler *s) {
        f->scheduler = s;
        FOREACH_KEY (k, f)
                if (s)
                        set_arbiter(f, k);
                else if (k->arbiter)
                        arbiter_cancel(k->arbiter);
        if (!s) {
                LIST_FOREACH_ITEM (Pointer, x, link, &f->pointers)
                        x->call = object_call_cancel(x->call);
                FOREACH_UNIT (u, f)
                        u->search = object_call_cancel(u->search);
        }
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
        LIST_FOREACH_ITEM_SAFE (Key, k, owned.link, &f->keys)
                free_key(f, &k->owned);
        LIST_FOREACH_ITEM_SAFE (Unit, u, link, &f->units)
                node_free_unit(f, u);
        bus_free(f->bus);
        LIST_FOREACH_ITEM_SAFE (Pointer, x, link, &f->pointers)
                free_pointer(x);
        agreement_free(f->agreement);
        sd_event_source_disable_unref(f->timer);
        free(f);
        return NULL;
}
