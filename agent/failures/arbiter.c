/* Carries out, for one key, the tasks that the agreement requests at the destination that decides:
 *
 *     list      which failures the key has there, and the store's clock    ACTION_LIST
 *     read      a decision                                                ACTION_READ
 *     create    a decision, unless there is one: the store decides        ACTION_CREATE
 *     record    this node's claims and bundles, for who reads them        ACTION_RECORD
 *     publish   incident.json, folded from the records of all nodes       ACTION_PUBLISH
 *
 * A task is one or more calls of objects.h, one task at a time; its result goes to the agreement,
 * which knows what is due next. Times that are written are the store's: a task that comes before
 * the store's clock is known begins with a listing.
 *
 * On a shared volume any user may create files. Those whose owner is no agent's user are foreign:
 * they are not read, but their names are taken. */
#include "agent/failures/arbiter.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/peers/incident.h"
#include "agent/peers/incidents_name.h"
#include "agent/peers/record.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

#define RECORDS_MAX 4096 /* of one failure that are folded */
/* Claims in them, beyond which no further record is folded. A node whose newest claim changes gets
 * a further record each time. */
#define RECORDED_MAX (8 * (size_t)CLAIMS_MAX)
#define BUNDLES_MAX RECORDED_MAX /* beyond which those of further records are left out */
#define READS_MAX 8              /* records that are read at the same time */
#define INCIDENT_FILE "incident.json"
/* An answer that took so long tells the store's clock too badly, and a further answer is awaited.
 * At a store that is always so slow the third one counts. */
#define UNCERTAINTY_MAX_USEC (1500 * (int64_t)USEC_PER_MSEC)
#define UNCERTAIN_MAX 2
/* The search for a free number passes so many consecutive numbers that foreign files occupy. */
#define FOREIGN_NUMBERS_MAX 1001

/* A record of a node as it was when it was read. It is read again when it has changed. */
typedef struct KnownRecord {
        Arbiter *arbiter;
        char *name;
        int64_t modified_usec;
        uint64_t bytes;
        ObjectCall *call;
        bool is_read;
        Record record;
} KnownRecord;

/* What incident.json is folded from. */
typedef struct Publication {
        KnownRecord *records; /* sorted by name */
        size_t n;
        size_t n_claims, n_bundles; /* of what was read */
        size_t next, n_underway;    /* the next record to be read; calls */
        bool is_cut;                /* there are more records than RECORDS_MAX */
} Publication;

struct Arbiter {
        ArbiterOptions options;
        ArbiterState state;
        Scheduler *scheduler; /* of the task; borrowed */
        Action action;        /* the task */
        ObjectCall *call;
        void (*handle)(Arbiter *a, const ObjectResult *r); /* handles its answer */
        char *document;                                    /* what is being written */
        size_t n_document;
        char *source;
        char *path;        /* of incident.json */
        uint64_t revision; /* of the last record, counted from the time: it rises after a
                              restart too, whatever claims were forgotten */
        bool has_clock;
        size_t n_foreign;     /* foreign files in the last listing */
        unsigned n_uncertain; /* answers that took longer than UNCERTAINTY_MAX_USEC */
        int64_t offset_usec, uncertainty_usec;
        Publication publication;
};

static void publication_clear(Publication *p) {
        for (size_t i = 0; i < p->n; i++) {
                object_call_cancel(p->records[i].call);
                record_done(&p->records[i].record);
                free(p->records[i].name);
        }
        free(p->records);
        *p = (Publication){ 0 };
}

static uint64_t revision_of_now(const Arbiter *a) {
        return a->options.clock->realtime_usec(a->options.clock) / USEC_PER_SEC;
}

int arbiter_new(Arbiter **ret, const ArbiterOptions *o) {
        _cleanup_(arbiter_freep) Arbiter *a = calloc(1, sizeof *a);
        if (!a)
                return -ENOMEM;
        a->options = *o;
        /* Of what was written before it is not known: incident.json may lack it. */
        a->revision = revision_of_now(a);
        a->source = strdup(o->source);
        a->state.destination = strdup(o->destination);
        if (!a->source || !a->state.destination)
                return -ENOMEM;
        *ret = TAKE_PTR(a);
        return 0;
}

Arbiter *arbiter_free(Arbiter *a) {
        if (!a)
                return NULL;
        object_call_cancel(a->call);
        publication_clear(&a->publication);
        free(a->source);
        free(a->state.destination);
        free(a->state.error);
        free(a->document);
        free(a->path);
        free(a);
        return NULL;
}

const ArbiterState *arbiter_state(const Arbiter *a) {
        return &a->state;
}

static int64_t now_usec(const Arbiter *a) {
        return (int64_t)a->options.clock->boottime_usec(a->options.clock);
}

static const StoreOutcome outcomes[] = {
        [OBJECT_OK] = STORE_OUTCOME_OK,
        [OBJECT_EXISTS] = STORE_OUTCOME_EXISTS,
        [OBJECT_NOT_FOUND] = STORE_OUTCOME_NOT_FOUND,
        [OBJECT_INVALID] = STORE_OUTCOME_NOT_FOUND,
        [OBJECT_UNABLE] = STORE_OUTCOME_UNABLE,
        [OBJECT_UNREACHABLE] = STORE_OUTCOME_UNREACHABLE,
};

/* ---- the end of a task ---- */

static void stop_reading(Publication *p) {
        for (size_t i = 0; i < p->n; i++)
                p->records[i].call = object_call_cancel(p->records[i].call);
        p->n_underway = 0;
}

static void finish_with(Arbiter *a, const StoreResult *result) {
        StoreOutcome outcome = result->outcome;
        ActionKind kind = a->action.kind;
        free(a->document);
        a->document = NULL;
        a->n_document = 0;
        a->action.kind = ACTION_NONE;
        a->state.is_busy = false;
        a->state.is_unreachable = outcome == STORE_OUTCOME_UNREACHABLE;
        if (outcome == STORE_OUTCOME_OK)
                free(TAKE_PTR(a->state.error));
        if (outcome == STORE_OUTCOME_UNABLE && kind != ACTION_RECORD && kind != ACTION_PUBLISH)
                a->state.is_unable = true;
        agreement_on_done(a->options.agreement, a->options.key, kind, a->action.n, result,
                          now_usec(a));
        a->options.on_done(a, a->options.userdata);
}

static void finish(Arbiter *a, StoreOutcome outcome) {
        finish_with(a, &(StoreResult){ .outcome = outcome });
}

/* @return whether the task goes on; else it has ended */
static bool accept_answer(Arbiter *a, const ObjectResult *r) {
        const char *error = r->error;
        if (r->has_clock && !a->has_clock &&
            (r->uncertainty_usec <= UNCERTAINTY_MAX_USEC || a->n_uncertain++ >= UNCERTAIN_MAX)) {
                a->has_clock = true;
                a->offset_usec = r->clock_offset_usec;
                a->uncertainty_usec = r->uncertainty_usec;
        }
        if (error && (!a->state.error || strcmp(a->state.error, error) != 0)) {
                log_warning(0, "failure %s: destination %s: %s", a->options.key,
                            a->state.destination, error);
                free(a->state.error);
                a->state.error = strdup(error);
        }
        if (r->outcome != OBJECT_UNREACHABLE && r->outcome != OBJECT_UNABLE)
                return true;
        stop_reading(&a->publication);
        finish(a, outcomes[r->outcome]);
        return false;
}

/* @return 0, or the task has ended */
static int start_call(Arbiter *a, ObjectCall **ret, ObjectRequest *request) {
        log_debug("failure %s/%u: destination %s: %s '%s'", a->options.key, a->action.n,
                  a->state.destination, request->data ? "write" : "read", request->name);
        request->destination = a->state.destination;
        int r = a->scheduler ? object_call_new(ret, a->scheduler, request) : -ENOTCONN;
        if (r >= 0)
                return r;
        if (r != -ENOTCONN)
                log_warning(r, "failure %s: cannot query destination %s for '%s'", a->options.key,
                            a->state.destination, request->name);
        stop_reading(&a->publication);
        /* No such destination, or a document that is too large: another try would not succeed. */
        bool is_final = r == -ENOENT || r == -EINVAL;
        finish(a, is_final ? STORE_OUTCOME_UNABLE : STORE_OUTCOME_UNREACHABLE);
        return r;
}

static void on_answer(const ObjectResult *r, void *userdata) {
        Arbiter *a = userdata;
        a->call = NULL;
        if (accept_answer(a, r))
                a->handle(a, r);
}

/* @param handle  handles the answer */
static void request(Arbiter *a, ObjectOperation operation, const char *name,
                    void (*handle)(Arbiter *a, const ObjectResult *r)) {
        bool is_write = operation == OBJECT_CREATE || operation == OBJECT_PUT;
        a->handle = handle;
        if (name && (a->document || !is_write))
                (void)start_call(a, &a->call,
                                 &(ObjectRequest){ .operation = operation,
                                                   .name = name,
                                                   .data = a->document,
                                                   .n = a->n_document,
                                                   .on_done = on_answer,
                                                   .userdata = a });
        else /* no memory */
                finish(a, STORE_OUTCOME_UNREACHABLE);
}

static void handle_written(Arbiter *a, const ObjectResult *r) {
        finish(a, outcomes[r->outcome]);
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

static void run_task(Arbiter *a);

/* @return whether a foreign file has the name of a decision */
static bool is_occupied(const Arbiter *a, const ObjectResult *r, uint32_t number) {
        char name[RECORD_NAME_SIZE];
        decision_object_name(a->options.key, number, name);
        for (size_t i = 0; i < r->n_entries; i++)
                if (!r->entries[i].is_trusted && strcmp(r->entries[i].name, name) == 0)
                        return true;
        return false;
}

/* Adds the highest number that foreign files occupy, so that the agreement creates the next one.
 * Logs how many foreign files there are when there are more than before. */
static void skip_foreign(Arbiter *a, const ObjectResult *r, ListedFailure *all, size_t *n) {
        size_t n_foreign = 0;
        uint32_t highest = 0;
        for (size_t i = 0; i < r->n_entries; i++)
                n_foreign += !r->entries[i].is_trusted;
        if (n_foreign > a->n_foreign)
                log_warning(0,
                            "failure %s: destination %s: ignored files in '" INCIDENTS_DIRECTORY
                            "' whose owners are not known as agents (%zu): remove them, or add "
                            "those users to agreement.trusted_uids",
                            a->options.key, a->state.destination, n_foreign);
        a->n_foreign = n_foreign;
        if (n_foreign == 0)
                return;
        for (size_t i = 0; i < *n; i++)
                highest = MAX(highest, all[i].n);
        uint32_t next = highest;
        while (next - highest < FOREIGN_NUMBERS_MAX && is_occupied(a, r, next + 1))
                next++;
        if (next > highest)
                (void)add_listed(all, n, next);
}

/* Handles a listing: the task itself, or what came before it because the store's clock was not
 * known. */
static void handle_list(Arbiter *a, const ObjectResult *r) {
        if (!a->has_clock) {
                if (!r->has_clock)
                        log_warning(0, "failure %s: destination %s does not report its time",
                                    a->options.key, a->state.destination);
                /* When it does, the answer took too long; the next one may be quicker. */
                finish(a, r->has_clock ? STORE_OUTCOME_UNREACHABLE : STORE_OUTCOME_UNABLE);
                return;
        }
        if (a->action.kind != ACTION_LIST) {
                run_task(a);
                return;
        }
        _cleanup_free_ ListedFailure *all = calloc(r->n_entries + 2, sizeof *all);
        size_t n = 0;
        for (size_t i = 0; all && i < r->n_entries; i++) {
                IncidentsName name;
                if (!incidents_name_parse(r->entries[i].name, &name) ||
                    strcmp(name.key, a->options.key) != 0 || !r->entries[i].is_trusted)
                        continue;
                ListedFailure *f = add_listed(all, &n, name.n);
                if (name.is_decision) {
                        f->has_decision = true;
                        f->opened_usec = r->entries[i].modified_usec - a->offset_usec;
                } else if (name.newest_usec - a->offset_usec > f->newest_usec)
                        f->newest_usec = name.newest_usec - a->offset_usec;
        }
        if (all)
                skip_foreign(a, r, all, &n);
        /* When there are more names than can be listed, it is not known which numbers are in use.
         */
        StoreOutcome outcome = !all                           ? STORE_OUTCOME_UNREACHABLE
                               : r->outcome == OBJECT_INVALID ? STORE_OUTCOME_UNABLE
                                                              : STORE_OUTCOME_OK;
        finish_with(a, &(StoreResult){ .outcome = outcome, .listed = all, .n_listed = n });
}

static void handle_decision(Arbiter *a, const ObjectResult *r) {
        Decision d;
        StoreOutcome outcome = outcomes[r->outcome];
        if (outcome == STORE_OUTCOME_OK) {
                int error = decision_parse(r->data, r->n, a->options.key, a->action.n, &d);
                if (error < 0) {
                        log_warning(error, "failure %s/%u: destination %s has an invalid decision",
                                    a->options.key, a->action.n, a->state.destination);
                        outcome = STORE_OUTCOME_NOT_FOUND;
                }
                d.opened_usec = r->modified_usec - a->offset_usec;
        }
        finish_with(a, &(StoreResult){ .outcome = outcome, .decision = &d });
}

static void handle_created(Arbiter *a, const ObjectResult *r) {
        finish_with(a, &(StoreResult){ .outcome = outcomes[r->outcome],
                                       .opened_usec = r->modified_usec
                                                              ? r->modified_usec - a->offset_usec
                                                              : now_usec(a) });
}

static void start_create(Arbiter *a) {
        char name[RECORD_NAME_SIZE];
        a->document = decision_format(&a->action.decision, a->options.job_key, &a->n_document);
        decision_object_name(a->options.key, a->action.n, name);
        request(a, OBJECT_CREATE, name, handle_created);
}

/* ---- this node's record ---- */

/* @param ret_newest_usec  when the newest failure happened; without one, the newest event
 * @return 0 and *ret (record_done); -ENOMEM; -ENODATA: there are no claims */
static int build_record(const Arbiter *a, Record *ret, int64_t *ret_newest_usec) {
        const ClaimSet *claims =
                agreement_claims(a->options.agreement, a->options.key, a->action.n);
        int64_t newest = INT64_MIN, newest_failed = INT64_MIN;
        *ret = (Record){ .n = a->action.n,
                         .revision = a->revision,
                         .uncertainty_usec = a->uncertainty_usec };
        (void)strncpy(ret->key, a->options.key, sizeof ret->key - 1);
        (void)strncpy(ret->instance_id, a->options.instance_id, sizeof ret->instance_id - 1);
        for (size_t i = 0; claims && i < claims->n; i++) {
                Claim c = claims->items[i];
                if (strcmp(c.instance_id, a->options.instance_id) != 0)
                        continue;
                claim_shift(&c, a->offset_usec);
                int r = claim_set_add(&ret->claims, &c);
                if (r < 0)
                        return r;
                newest = MAX(newest, c.event_usec);
                if (claim_is_failure(&c))
                        newest_failed = MAX(newest_failed, c.event_usec);
        }
        *ret_newest_usec = newest_failed != INT64_MIN ? newest_failed : newest;
        return ret->claims.n > 0 ? 0 : -ENODATA;
}

static void start_record(Arbiter *a) {
        _cleanup_(record_done) Record record = { 0 };
        char name[RECORD_NAME_SIZE];
        int64_t newest = 0;
        a->revision = MAX(a->revision + 1, revision_of_now(a));
        int r = build_record(a, &record, &newest);
        if (r == -ENODATA) {
                finish(a, STORE_OUTCOME_OK);
                return;
        }
        if (r == 0 && a->options.add_bundles)
                r = a->options.add_bundles(&a->action.decision, &record.bundles,
                                           a->options.userdata);
        record_object_name(a->options.key, a->action.n, newest, a->options.instance_id, name);
        a->document = r == 0 ? record_format(&record, &a->n_document) : NULL;
        request(a, OBJECT_PUT, name, handle_written);
}

/* ---- incident.json ---- */

static char *fold_records(const Arbiter *a, size_t *ret_n) {
        const Publication *p = &a->publication;
        _cleanup_free_ Record *records = calloc(p->n + 1, sizeof *records);
        _cleanup_(roster_done) Roster roster = { .is_cut = p->is_cut || p->next < p->n };
        Decision d = a->action.decision;
        size_t n = 0;
        d.opened_usec += a->offset_usec;
        for (size_t i = 0; records && i < p->n; i++)
                if (p->records[i].is_read)
                        records[n++] = p->records[i].record; /* borrowed */
        return records && roster_fold(&d, records, n, &roster) == 0
                       ? incident_format(&roster, a->options.job_key, ret_n)
                       : NULL;
}

static void read_records(Arbiter *a);

/* @return whether a record is of the node whose id its name has. In a bucket the policy decides by
 * the name who may write it (docs/S3.md, "Permissions"). */
static bool is_of_its_name(const KnownRecord *k) {
        IncidentsName name;
        return incidents_name_parse(k->name, &name) &&
               strcmp(name.instance_id, k->record.instance_id) == 0;
}

static void on_record_read(const ObjectResult *r, void *userdata) {
        KnownRecord *k = userdata;
        Arbiter *a = k->arbiter;
        Publication *p = &a->publication;
        k->call = NULL;
        p->n_underway--;
        if (!accept_answer(a, r))
                return;
        if (p->n_claims < RECORDED_MAX) {
                k->is_read = r->outcome == OBJECT_OK && record_parse(r->data, r->n, a->options.key,
                                                                     a->action.n, &k->record) == 0;
                if (k->is_read && !is_of_its_name(k)) {
                        record_done(&k->record);
                        k->record = (Record){ 0 };
                        k->is_read = false;
                }
                if (k->record.bundles.n > BUNDLES_MAX - p->n_bundles)
                        node_bundles_leave_out(&k->record.bundles);
                p->n_claims += k->record.claims.n;
                p->n_bundles += k->record.bundles.n;
                if (!k->is_read)
                        log_warning(0, "failure %s/%u: destination %s: '%s' is not a valid record",
                                    a->options.key, a->action.n, a->state.destination, k->name);
        }
        read_records(a);
}

/* Reads the records that have changed, then folds all and writes incident.json. */
static void read_records(Arbiter *a) {
        Publication *p = &a->publication;
        while (p->next < p->n && p->n_underway < READS_MAX && p->n_claims < RECORDED_MAX) {
                KnownRecord *k = &p->records[p->next++];
                if (k->is_read)
                        continue;
                if (start_call(a, &k->call,
                               &(ObjectRequest){ .operation = OBJECT_GET,
                                                 .name = k->name,
                                                 .on_done = on_record_read,
                                                 .userdata = k }) < 0)
                        return;
                p->n_underway++;
        }
        if (p->n_underway > 0)
                return;
        a->document = fold_records(a, &a->n_document);
        request(a, OBJECT_PUT, a->path, handle_written);
}

static bool is_unchanged(const KnownRecord *k, const ObjectEntry *e) {
        /* A store's times have whole seconds: a second change within one is not seen. */
        return k->is_read && strcmp(k->name, e->name) == 0 &&
               k->modified_usec == e->modified_usec && k->bytes == e->bytes;
}

/* Replaces the known records by those that are listed now, and takes over what was read of those
 * that have not changed. Both are sorted by name. @return 0, -ENOMEM */
static int note_records(Arbiter *a, const ObjectResult *r) {
        Publication *before = &a->publication, now = { 0 };
        now.records = calloc(r->n_entries + 1, sizeof *now.records);
        for (size_t i = 0, j = 0; now.records && i < r->n_entries && !now.is_cut; i++) {
                const ObjectEntry *e = &r->entries[i];
                IncidentsName name;
                if (!incidents_name_parse(e->name, &name) || name.is_decision ||
                    name.n != a->action.n || !e->is_trusted)
                        continue;
                now.is_cut = now.n == RECORDS_MAX;
                if (now.is_cut)
                        break;
                KnownRecord *k = &now.records[now.n];
                *k = (KnownRecord){ .arbiter = a,
                                    .name = strdup(e->name),
                                    .modified_usec = e->modified_usec,
                                    .bytes = e->bytes };
                if (!k->name)
                        break;
                now.n++;
                while (j < before->n && strcmp(before->records[j].name, e->name) < 0)
                        j++;
                if (j == before->n || !is_unchanged(&before->records[j], e))
                        continue;
                k->is_read = true;
                k->record = before->records[j].record;
                before->records[j].record = (Record){ 0 };
                now.n_claims += k->record.claims.n;
                now.n_bundles += k->record.bundles.n;
        }
        publication_clear(before);
        *before = now;
        return now.records ? 0 : -ENOMEM;
}

static void handle_records(Arbiter *a, const ObjectResult *r) {
        if (r->outcome != OBJECT_OK)
                finish(a, outcomes[r->outcome]);
        else if (note_records(a, r) < 0)
                finish(a, STORE_OUTCOME_UNREACHABLE);
        else
                read_records(a);
}

static void list_records(Arbiter *a) {
        char prefix[RECORD_NAME_SIZE], name[RECORD_NAME_SIZE + 16];
        incidents_prefix(a->options.key, prefix);
        (void)snprintf(name, sizeof name, "%s%u/", prefix, a->action.n);
        request(a, OBJECT_LIST, name, handle_records);
}

static void handle_incident(Arbiter *a, const ObjectResult *r) {
        if (r->outcome == OBJECT_OK &&
            incident_has_record(r->data, r->n, a->options.instance_id, a->revision))
                finish(a, STORE_OUTCOME_OK);
        else
                list_records(a);
}

static void start_publish(Arbiter *a) {
        const Decision *d = &a->action.decision;
        bool differs = false;
        _cleanup_free_ char *directory =
                a->scheduler ? objects_failure_directory(a->scheduler, a->state.destination,
                                                         d->date_time, d->cluster_id,
                                                         a->options.kind, a->source, &differs)
                             : NULL;
        free(a->path);
        a->path = directory ? path_join(directory, INCIDENT_FILE) : NULL;
        if (differs) /* the prefix differs by node, so there is no incident.json */
                finish(a, STORE_OUTCOME_OK);
        else if (!a->path)
                finish(a, STORE_OUTCOME_UNREACHABLE);
        else if (a->action.unless_listed)
                request(a, OBJECT_GET, a->path, handle_incident);
        else
                list_records(a);
}

/* ---- tasks ---- */

static void start_read(Arbiter *a) {
        char name[RECORD_NAME_SIZE];
        decision_object_name(a->options.key, a->action.n, name);
        request(a, OBJECT_GET, name, handle_decision);
}

static void run_task(Arbiter *a) {
        static void (*const starts[N_ACTION_KINDS])(Arbiter * a) = {
                [ACTION_READ] = start_read,
                [ACTION_CREATE] = start_create,
                [ACTION_RECORD] = start_record,
                [ACTION_PUBLISH] = start_publish,
        };
        starts[a->action.kind](a);
}

void arbiter_execute(Arbiter *a, Scheduler *scheduler, const Action *action) {
        char prefix[RECORD_NAME_SIZE];
        a->action = *action;
        a->state.is_busy = true;
        a->scheduler = scheduler;
        incidents_prefix(a->options.key, prefix);
        if (action->kind == ACTION_LIST || !a->has_clock)
                request(a, OBJECT_LIST, prefix, handle_list);
        else
                run_task(a);
}

void arbiter_cancel(Arbiter *a) {
        a->call = object_call_cancel(a->call);
        stop_reading(&a->publication);
        a->scheduler = NULL;
        if (a->action.kind != ACTION_NONE)
                finish(a, STORE_OUTCOME_UNREACHABLE);
}
