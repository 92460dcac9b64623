#include "agent/failures/arbiter.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/peers/roster.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

#define RECORDS_MAX 4096 /* of a failure that are folded */
/* Claims in them: a node that was written for several times has several records. Beyond it no
 * further record is read. */
#define RECORDED_MAX (8 * (size_t)CLAIMS_MAX)
#define INCIDENT_FILE "incident.json"
/* Of the store's clock, known from an answer that took longer: the next one is waited for, but not
 * at a store that is always so slow. */
#define UNCERTAINTY_MAX_USEC (1500 * (int64_t)USEC_PER_MSEC)
#define UNCERTAIN_MAX 2
#define SLOW_USEC (5 * (int64_t)USEC_PER_SEC)

/* A record as it was when it was read: read again only when it has changed. */
typedef struct KnownRecord {
        char *name;
        int64_t modified_usec;
        uint64_t bytes;
        bool is_read;
        Record record;
} KnownRecord;

typedef struct Publication {
        KnownRecord *records; /* by name */
        size_t n, next, n_claims;
        uint32_t failure; /* they are of this one */
} Publication;

struct Arbiter {
        Clock *clock;
        Agreement *agreement;
        char *instance_id, *key, *destination, *kind, *source;
        const char *job_key;
        void (*on_done)(Arbiter *a, void *userdata);
        void *userdata;
        Scheduler *scheduler; /* of the task */
        ObjectCall *call;
        Action action;
        int64_t start_usec; /* of the task */
        char *document;     /* what is being written */
        char *directory;    /* of incident.json */
        uint64_t n_records; /* written, so that each has a higher revision */
        bool has_clock, is_unreachable, is_unable;
        unsigned n_uncertain; /* answers whose time was not good enough */
        int64_t offset_usec, uncertainty_usec;
        char *error;
        Publication publication;
};

static void known_record_done(KnownRecord *k) {
        record_done(&k->record);
        free(k->name);
}

static void publication_clear(Publication *p) {
        for (size_t i = 0; i < p->n; i++)
                known_record_done(&p->records[i]);
        free(p->records);
        *p = (Publication){ 0 };
}

int arbiter_new(Arbiter **ret, const ArbiterOptions *o) {
        _cleanup_(arbiter_freep) Arbiter *a = calloc(1, sizeof *a);
        if (!a)
                return -ENOMEM;
        a->clock = o->clock;
        a->agreement = o->agreement;
        a->on_done = o->on_done;
        a->userdata = o->userdata;
        a->instance_id = strdup(o->instance_id);
        a->key = strdup(o->key);
        a->job_key = o->job_key;
        a->destination = strdup(o->destination);
        a->kind = strdup(o->kind);
        a->source = strdup(o->source);
        if (!a->instance_id || !a->key || !a->destination || !a->kind || !a->source)
                return -ENOMEM;
        *ret = TAKE_PTR(a);
        return 0;
}

Arbiter *arbiter_free(Arbiter *a) {
        if (!a)
                return NULL;
        object_call_cancel(a->call);
        publication_clear(&a->publication);
        free(a->instance_id);
        free(a->key);
        free(a->destination);
        free(a->kind);
        free(a->source);
        free(a->document);
        free(a->directory);
        free(a->error);
        free(a);
        return NULL;
}

bool arbiter_is_busy(const Arbiter *a) {
        return a->action.kind != ACTION_NONE;
}

bool arbiter_is_unable(const Arbiter *a) {
        return a->is_unable;
}

const char *arbiter_error(const Arbiter *a) {
        return a->error;
}

const char *arbiter_destination(const Arbiter *a) {
        return a->destination;
}

const char *arbiter_source_name(const Arbiter *a) {
        return a->source;
}

static int64_t now_usec(const Arbiter *a) {
        return (int64_t)a->clock->boottime_usec(a->clock);
}

bool arbiter_is_unreachable(const Arbiter *a) {
        return a->is_unreachable ||
               (a->action.kind != ACTION_NONE && now_usec(a) - a->start_usec > SLOW_USEC);
}

static StoreOutcome outcome_of(const ObjectResult *r) {
        switch (r->outcome) {
        case OBJECT_OK:
                return STORE_OUTCOME_OK;
        case OBJECT_EXISTS:
                return STORE_OUTCOME_EXISTS;
        case OBJECT_NOT_FOUND:
        case OBJECT_INVALID:
                return STORE_OUTCOME_NOT_FOUND;
        case OBJECT_UNABLE:
                return STORE_OUTCOME_UNABLE;
        case OBJECT_UNREACHABLE:
                break;
        }
        return STORE_OUTCOME_UNREACHABLE;
}

/* ---- the end of a task ---- */

static const char *const task_names[N_ACTION_KINDS] = {
        [ACTION_LIST] = "list",     [ACTION_READ] = "read",       [ACTION_CREATE] = "create",
        [ACTION_RECORD] = "record", [ACTION_PUBLISH] = "publish",
};
static const char *const outcome_names[] = {
        [STORE_OUTCOME_OK] = "ok",
        [STORE_OUTCOME_EXISTS] = "exists",
        [STORE_OUTCOME_NOT_FOUND] = "not found",
        [STORE_OUTCOME_UNREACHABLE] = "unreachable",
        [STORE_OUTCOME_UNABLE] = "unable",
};

static void finish_with(Arbiter *a, StoreOutcome outcome, int64_t opened_usec,
                        const ListedFailure *listed, size_t n_listed, const Decision *decision) {
        Action action = a->action;
        a->action.kind = ACTION_NONE;
        free(a->document);
        a->document = NULL;
        a->is_unreachable = outcome == STORE_OUTCOME_UNREACHABLE;
        log_debug("failure %s/%u: destination %s: %s: %s", a->key, action.n, a->destination,
                  task_names[action.kind], outcome_names[outcome]);
        a->is_unable = a->is_unable || (outcome == STORE_OUTCOME_UNABLE &&
                                        (action.kind == ACTION_LIST || action.kind == ACTION_READ ||
                                         action.kind == ACTION_CREATE));
        int64_t now = now_usec(a);
        switch (action.kind) {
        case ACTION_LIST:
                agreement_on_listed(a->agreement, a->key, outcome, listed, n_listed, now);
                break;
        case ACTION_READ:
                agreement_on_read(a->agreement, a->key, action.n, outcome, decision, now);
                break;
        case ACTION_CREATE:
                agreement_on_created(a->agreement, a->key, action.n, outcome, opened_usec, now);
                break;
        case ACTION_RECORD:
                agreement_on_recorded(a->agreement, a->key, action.n, outcome, now);
                break;
        case ACTION_PUBLISH:
                agreement_on_published(a->agreement, a->key, action.n, outcome, now);
                break;
        case ACTION_NONE:
        case ACTION_SEND:
        case N_ACTION_KINDS:
                break;
        }
        a->on_done(a, a->userdata);
}

static void finish(Arbiter *a, StoreOutcome outcome) {
        finish_with(a, outcome, 0, NULL, 0, NULL);
}

/* What every answer says. */
static void learn(Arbiter *a, const ObjectResult *r) {
        a->call = NULL;
        if (r->has_clock && !a->has_clock &&
            (r->uncertainty_usec <= UNCERTAINTY_MAX_USEC || a->n_uncertain++ >= UNCERTAIN_MAX)) {
                a->has_clock = true;
                a->offset_usec = r->clock_offset_usec;
                a->uncertainty_usec = r->uncertainty_usec;
                log_debug("failure %s: destination %s: its clock is known to %lld ms", a->key,
                          a->destination, (long long)(a->uncertainty_usec / 1000));
        }
        bool failed = r->outcome == OBJECT_UNREACHABLE || r->outcome == OBJECT_UNABLE ||
                      r->outcome == OBJECT_INVALID;
        if (failed && r->error && (!a->error || strcmp(a->error, r->error) != 0))
                log_warning(0, "failure %s: destination %s: %s", a->key, a->destination, r->error);
        free(a->error);
        a->error = failed && r->error ? strdup(r->error) : NULL;
}

static void request(Arbiter *a, ObjectOperation operation, const char *name, const void *data,
                    size_t n, void (*on_done)(const ObjectResult *r, void *userdata)) {
        int r = a->scheduler ? object_call_new(&a->call, a->scheduler,
                                               &(ObjectRequest){ .operation = operation,
                                                                 .destination = a->destination,
                                                                 .name = name,
                                                                 .data = data,
                                                                 .n = n,
                                                                 .on_done = on_done,
                                                                 .userdata = a })
                             : -ENOTCONN;
        if (r >= 0)
                return;
        if (r != -ENOTCONN)
                log_warning(r, "failure %s: cannot ask destination %s", a->key, a->destination);
        finish(a, r == -ENOENT ? STORE_OUTCOME_UNABLE : STORE_OUTCOME_UNREACHABLE);
}

/* ---- list, read, create ---- */

static ListedFailure *add_listed(ListedFailure *all, size_t *n, uint32_t number) {
        size_t i = *n;
        while (i > 0 && all[i - 1].n > number)
                i--;
        if (i > 0 && all[i - 1].n == number)
                return &all[i - 1];
        memmove(&all[i + 1], &all[i], (*n - i) * sizeof *all);
        all[i] = (ListedFailure){ .n = number, .newest_usec = INT64_MIN };
        ++*n;
        return &all[i];
}

/* @return what an answer means that says nothing certain about the store's clock */
static StoreOutcome without_clock(const Arbiter *a, const ObjectResult *r) {
        if (r->has_clock)
                return STORE_OUTCOME_UNREACHABLE; /* the next one may be quicker */
        log_warning(0, "failure %s: destination %s does not say what time it is", a->key,
                    a->destination);
        return STORE_OUTCOME_UNABLE;
}

static void on_listed(const ObjectResult *r, void *userdata) {
        Arbiter *a = userdata;
        learn(a, r);
        _cleanup_free_ ListedFailure *all = calloc(r->n_entries + 1, sizeof *all);
        size_t n = 0;
        if (!all || (r->outcome == OBJECT_OK && !a->has_clock)) {
                finish(a, all ? without_clock(a, r) : STORE_OUTCOME_UNREACHABLE);
                return;
        }
        for (size_t i = 0; r->outcome == OBJECT_OK && i < r->n_entries; i++) {
                IncidentsName name;
                if (!incidents_name_parse(r->entries[i].name, &name) ||
                    strcmp(name.key, a->key) != 0)
                        continue;
                ListedFailure *f = add_listed(all, &n, name.n);
                if (name.is_decision) {
                        f->has_decision = true;
                        f->opened_usec = r->entries[i].modified_usec - a->offset_usec;
                } else if (name.newest_usec - a->offset_usec > f->newest_usec)
                        f->newest_usec = name.newest_usec - a->offset_usec;
        }
        /* Of more names than may be listed it is not known which numbers are taken. */
        finish_with(a, r->outcome == OBJECT_INVALID ? STORE_OUTCOME_UNABLE : outcome_of(r), 0, all,
                    n, NULL);
}

static void on_read(const ObjectResult *r, void *userdata) {
        Arbiter *a = userdata;
        Decision d;
        learn(a, r);
        StoreOutcome outcome = outcome_of(r);
        if (outcome == STORE_OUTCOME_OK) {
                int error = decision_parse(r->data, r->n, a->key, a->action.n, &d);
                if (error < 0) {
                        log_warning(error, "failure %s/%u: destination %s has an invalid decision",
                                    a->key, a->action.n, a->destination);
                        outcome = STORE_OUTCOME_NOT_FOUND;
                }
                d.opened_usec = r->modified_usec - a->offset_usec;
        }
        finish_with(a, outcome, 0, NULL, 0, outcome == STORE_OUTCOME_OK ? &d : NULL);
}

static void on_created(const ObjectResult *r, void *userdata) {
        Arbiter *a = userdata;
        learn(a, r);
        finish_with(a, outcome_of(r),
                    r->modified_usec ? r->modified_usec - a->offset_usec : now_usec(a), NULL, 0,
                    NULL);
}

static void start_create(Arbiter *a) {
        char name[RECORD_NAME_SIZE];
        size_t n;
        a->document = decision_format(&a->action.decision, a->job_key, &n);
        decision_object_name(a->key, a->action.n, name);
        if (a->document)
                request(a, OBJECT_CREATE, name, a->document, n, on_created);
        else
                finish(a, STORE_OUTCOME_UNREACHABLE);
}

/* ---- this node's record ---- */

/* @return 0 and *ret (record_done); -ENOMEM, -ENODATA: there are no claims */
static int build_record(const Arbiter *a, Record *ret, int64_t *ret_newest_usec) {
        const Claim *const *claims;
        size_t n = agreement_own_claims(a->agreement, a->key, a->action.n, &claims);
        *ret = (Record){ .n = a->action.n,
                         .revision = a->n_records,
                         .uncertainty_usec = a->uncertainty_usec };
        int64_t newest_failed = INT64_MIN;
        *ret_newest_usec = INT64_MIN;
        (void)strncpy(ret->key, a->key, sizeof ret->key - 1);
        (void)strncpy(ret->instance_id, a->instance_id, sizeof ret->instance_id - 1);
        for (size_t i = 0; i < n; i++) {
                Claim c = *claims[i];
                claim_shift(&c, a->offset_usec);
                int r = claim_set_add(&ret->claims, &c);
                if (r < 0)
                        return r;
                ret->revision += c.revision;
                *ret_newest_usec = MAX(*ret_newest_usec, c.event_usec);
                if (claim_is_failure(&c))
                        newest_failed = MAX(newest_failed, c.event_usec);
        }
        if (newest_failed != INT64_MIN)
                *ret_newest_usec = newest_failed;
        return n > 0 ? 0 : -ENODATA;
}

static void on_written(const ObjectResult *r, void *userdata) {
        Arbiter *a = userdata;
        learn(a, r);
        finish(a, outcome_of(r));
}

static void start_record(Arbiter *a) {
        _cleanup_(record_done) Record record = { 0 };
        char name[RECORD_NAME_SIZE];
        int64_t newest;
        size_t n;
        a->n_records++;
        int r = build_record(a, &record, &newest);
        if (r == 0) {
                record_object_name(a->key, a->action.n, newest, a->instance_id, name);
                a->document = record_format(&record, &n);
        }
        if (r == -ENODATA)
                finish(a, STORE_OUTCOME_OK);
        else if (!a->document)
                finish(a, STORE_OUTCOME_UNREACHABLE);
        else
                request(a, OBJECT_PUT, name, a->document, n, on_written);
}

/* ---- incident.json ---- */

static void read_next_record(Arbiter *a);

static int fold_records(const Arbiter *a, const Publication *p, char **ret, size_t *ret_n) {
        _cleanup_free_ Record *records = calloc(p->n + 1, sizeof *records);
        _cleanup_(roster_done) Roster roster = { 0 };
        Decision d = a->action.decision;
        size_t n = 0;
        if (!records)
                return -ENOMEM;
        d.opened_usec += a->offset_usec;
        for (size_t i = 0; i < p->n; i++)
                if (p->records[i].is_read)
                        records[n++] = p->records[i].record; /* borrowed */
        int r = roster_fold(&d, records, n, &roster);
        if (r < 0)
                return r;
        *ret = roster_format(&roster, a->job_key, ret_n);
        return *ret ? 0 : -ENOMEM;
}

static void write_incident(Arbiter *a) {
        _cleanup_free_ char *name = path_join(a->directory, INCIDENT_FILE);
        size_t n;
        if (!name || fold_records(a, &a->publication, &a->document, &n) < 0)
                finish(a, STORE_OUTCOME_UNREACHABLE);
        else if (n <= OBJECT_BYTES_MAX)
                request(a, OBJECT_PUT, name, a->document, n, on_written);
        else { /* no later try would do better */
                log_warning(0, "failure %s/%u: " INCIDENT_FILE " is not written: it has %zu bytes",
                            a->key, a->action.n, n);
                finish(a, STORE_OUTCOME_OK);
        }
}

static void on_record_read(const ObjectResult *r, void *userdata) {
        Arbiter *a = userdata;
        Publication *p = &a->publication;
        learn(a, r);
        KnownRecord *k = &p->records[p->next++];
        if (r->outcome == OBJECT_UNREACHABLE || r->outcome == OBJECT_UNABLE) {
                finish(a, outcome_of(r));
                return;
        }
        p->n_claims -= k->record.claims.n;
        record_done(&k->record);
        k->is_read = r->outcome == OBJECT_OK &&
                     record_parse(r->data, r->n, a->key, a->action.n, &k->record) == 0;
        p->n_claims += k->record.claims.n;
        if (!k->is_read)
                log_warning(0, "failure %s/%u: destination %s: '%s' is no valid record", a->key,
                            a->action.n, a->destination, k->name);
        read_next_record(a);
}

/* Those that have changed, one after the other. */
static void read_next_record(Arbiter *a) {
        Publication *p = &a->publication;
        while (p->next < p->n && p->records[p->next].is_read)
                p->next++;
        if (p->next < p->n && p->n_claims < RECORDED_MAX)
                request(a, OBJECT_GET, p->records[p->next].name, NULL, 0, on_record_read);
        else
                write_incident(a);
}

/* @return the index of the first one that is not before the name */
static size_t find_record(const Publication *p, const char *name) {
        size_t from = 0, to = p->n;
        while (from < to) {
                size_t middle = from + (to - from) / 2;
                if (strcmp(p->records[middle].name, name) < 0)
                        from = middle + 1;
                else
                        to = middle;
        }
        return from;
}

static int note_record(Publication *p, const ObjectEntry *e) {
        size_t i = find_record(p, e->name);
        if (i == p->n || strcmp(p->records[i].name, e->name) != 0) {
                if (p->n >= RECORDS_MAX)
                        return 0;
                KnownRecord *more = realloc(p->records, (p->n + 1) * sizeof *more);
                char *name = strdup(e->name);
                if (more)
                        p->records = more;
                if (!more || !name) {
                        free(name);
                        return -ENOMEM;
                }
                memmove(&more[i + 1], &more[i], (p->n++ - i) * sizeof *more);
                more[i] = (KnownRecord){ .name = name };
        }
        KnownRecord *k = &p->records[i];
        /* A store's times have whole seconds: what is as young as that may change unseen. */
        if (k->modified_usec != e->modified_usec || k->bytes != e->bytes)
                k->is_read = false;
        k->modified_usec = e->modified_usec;
        k->bytes = e->bytes;
        return 0;
}

static void on_records_listed(const ObjectResult *r, void *userdata) {
        Arbiter *a = userdata;
        Publication *p = &a->publication;
        int error = 0;
        learn(a, r);
        if (r->outcome != OBJECT_OK) {
                finish(a, outcome_of(r));
                return;
        }
        for (size_t i = 0; error == 0 && i < r->n_entries; i++) {
                IncidentsName name;
                if (incidents_name_parse(r->entries[i].name, &name) && !name.is_decision &&
                    name.n == a->action.n)
                        error = note_record(p, &r->entries[i]);
        }
        p->next = 0;
        if (error == 0)
                read_next_record(a);
        else
                finish(a, STORE_OUTCOME_UNREACHABLE);
}

static void list_records(Arbiter *a) {
        char prefix[RECORD_NAME_SIZE], name[RECORD_NAME_SIZE + 16];
        if (a->publication.failure != a->action.n)
                publication_clear(&a->publication);
        a->publication.failure = a->action.n;
        incidents_prefix(a->key, prefix);
        (void)snprintf(name, sizeof name, "%s%u/", prefix, a->action.n);
        request(a, OBJECT_LIST, name, NULL, 0, on_records_listed);
}

static void on_incident_read(const ObjectResult *r, void *userdata) {
        Arbiter *a = userdata;
        _cleanup_(record_done) Record own = { 0 };
        int64_t newest;
        learn(a, r);
        if (r->outcome == OBJECT_UNREACHABLE || r->outcome == OBJECT_UNABLE)
                finish(a, outcome_of(r));
        else if (r->outcome == OBJECT_OK && build_record(a, &own, &newest) == 0 &&
                 incident_has_record(r->data, r->n, a->instance_id, own.revision))
                finish(a, STORE_OUTCOME_OK);
        else
                list_records(a);
}

static void start_publish(Arbiter *a) {
        const Decision *d = &a->action.decision;
        bool differs = false;
        free(a->directory);
        a->directory = a->scheduler ? objects_failure_directory(a->scheduler, a->destination,
                                                                d->date_time, d->cluster_id,
                                                                a->kind, a->source, &differs)
                                    : NULL;
        if (!a->directory) /* where the prefix differs by node there is none */
                finish(a, differs ? STORE_OUTCOME_OK : STORE_OUTCOME_UNREACHABLE);
        else if (a->action.unless_listed) {
                _cleanup_free_ char *name = path_join(a->directory, INCIDENT_FILE);
                if (name)
                        request(a, OBJECT_GET, name, NULL, 0, on_incident_read);
                else
                        finish(a, STORE_OUTCOME_UNREACHABLE);
        } else
                list_records(a);
}

/* ---- tasks ---- */

/* What is written has the store's times, which a node that learned all by the bus does not know. */
static void on_clock_listed(const ObjectResult *r, void *userdata) {
        Arbiter *a = userdata;
        Action action = a->action;
        learn(a, r);
        if (a->has_clock)
                arbiter_execute(a, a->scheduler, &action);
        else
                finish(a, r->outcome == OBJECT_OK ? without_clock(a, r) : outcome_of(r));
}

void arbiter_execute(Arbiter *a, Scheduler *scheduler, const Action *action) {
        char name[RECORD_NAME_SIZE];
        a->action = *action;
        a->start_usec = now_usec(a);
        a->scheduler = scheduler;
        if (!a->has_clock && action->kind != ACTION_LIST) {
                incidents_prefix(a->key, name);
                request(a, OBJECT_LIST, name, NULL, 0, on_clock_listed);
                return;
        }
        switch (action->kind) {
        case ACTION_LIST:
                incidents_prefix(a->key, name);
                request(a, OBJECT_LIST, name, NULL, 0, on_listed);
                break;
        case ACTION_READ:
                decision_object_name(a->key, action->n, name);
                request(a, OBJECT_GET, name, NULL, 0, on_read);
                break;
        case ACTION_CREATE:
                start_create(a);
                break;
        case ACTION_RECORD:
                start_record(a);
                break;
        case ACTION_PUBLISH:
                start_publish(a);
                break;
        case ACTION_NONE:
        case ACTION_SEND:
        case N_ACTION_KINDS:
                break;
        }
}

void arbiter_cancel(Arbiter *a) {
        if (a->call)
                a->call = object_call_cancel(a->call);
        a->scheduler = NULL;
        if (a->action.kind != ACTION_NONE)
                finish(a, STORE_OUTCOME_UNREACHABLE);
}
