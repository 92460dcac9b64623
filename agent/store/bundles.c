/* Bundles and their deliveries: records to rows and back, and the fingerprints of their members.
 * The order of the columns is fixed in statements.c. */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store/store_private.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"

#define LIST_PAGE 32        /* records read before the first of them is handed out */
#define ENDED_PAGE 4096     /* paths of one store_list_ended() */
#define MAX_DELIVERIES 1024 /* of a bundle; a row with more is damaged */
static void read_array(ColumnReader *r, char *ret, size_t size) {
        _cleanup_free_ char *s = read_string(r, false);
        if (!s)
                return;
        if (strlen(s) >= size)
                r->error = -EUCLEAN;
        else
                (void)strcpy(ret, s); /* fits, as just seen */
}

/* Words of an enum, through its parser. */
#define READ_WORD(r, parse, ret)                                                                   \
        do {                                                                                       \
                _cleanup_free_ char *_word = read_string((r), false);                              \
                if (_word && parse(_word, (ret)) < 0)                                              \
                        (r)->error = -EUCLEAN;                                                     \
        } while (false)

static void read_proof(ColumnReader *r, Proof *ret) {
        _cleanup_free_ char *word = read_string(r, true);
        if (r->error == 0 && proof_parse(word, ret) < 0)
                r->error = -EUCLEAN;
}

/* Deliveries */

static int put_delivery(Store *s, const char *id, size_t position, const DeliveryRecord *d) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_DELIVERY_PUT] };
        bind_text(&b, id);
        bind_number(&b, position);
        bind_text(&b, d->destination);
        bind_text(&b, delivery_state_name(d->state));
        bind_text(&b, proof_name(d->proof));
        bind_bytes(&b, d->object);
        bind_number(&b, d->bytes);
        bind_number(&b, d->attempts);
        bind_bytes(&b, d->last_error);
        bind_number(&b, d->next_try_usec);
        bind_number(&b, d->done_usec);
        return run_change(s, &b);
}

static int put_deliveries(Store *s, const BundleRecord *record) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_DELIVERY_CUT] };

        if (record->n_deliveries > MAX_DELIVERIES)
                return -E2BIG;
        for (size_t i = 0; i < record->n_deliveries; i++) {
                int r = put_delivery(s, record->id, i, &record->deliveries[i]);
                if (r < 0)
                        return r;
        }
        bind_text(&b, record->id);
        bind_number(&b, record->n_deliveries);
        return run_change(s, &b);
}

static int read_delivery(sqlite3_stmt *st, DeliveryRecord *d) {
        ColumnReader r = { .statement = st };

        d->destination = read_string(&r, false);
        READ_WORD(&r, delivery_state_parse, &d->state);
        read_proof(&r, &d->proof);
        d->object = read_string(&r, true);
        d->bytes = read_number(&r);
        d->attempts = (unsigned)read_number(&r);
        d->last_error = read_string(&r, true);
        d->next_try_usec = read_number(&r);
        d->done_usec = read_number(&r);
        return r.error;
}

/* What was read stays in the record when it fails: bundle_record_done() frees it. */
static int read_deliveries(Store *s, int64_t row, BundleRecord *record) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_DELIVERY_LIST] };
        int r;

        bind_number(&b, (uint64_t)row);
        while ((r = next_row(s, &b)) == 0) {
                int64_t total = sqlite3_column_int64(b.statement, 9);
                if (!record->deliveries) {
                        if (total <= 0 || total > MAX_DELIVERIES)
                                return -EUCLEAN;
                        record->deliveries = calloc((size_t)total, sizeof *record->deliveries);
                        if (!record->deliveries)
                                return -ENOMEM;
                }
                if ((int64_t)record->n_deliveries >= total)
                        return -EUCLEAN;
                r = read_delivery(b.statement, &record->deliveries[record->n_deliveries++]);
                if (r < 0)
                        return r;
        }
        return MIN(r, 0);
}

/* Bundles */

static int write_bundle(Store *s, StoreStatement which, const BundleRecord *record) {
        _cleanup_binder_ Binder b = { .statement = s->statements[which] };
        bind_text(&b, record->id);
        if (which == STORE_BUNDLE_ADD) {
                bind_text(&b, record->source);
                bind_text(&b, source_kind_name(record->kind));
                bind_bytes(&b, record->path);
                bind_text(&b, record->supplement_of);
                bind_number(&b, record->first_seen_usec);
        } else
                b.column = 6; /* these never change, and the statement has no parameters for them */
        bind_text(&b, bundle_state_name(record->state));
        bind_bytes(&b, record->reason);
        bind_number(&b, record->complete);
        bind_bytes(&b, record->incomplete);
        bind_text(&b, record->date_time);
        bind_text(&b, record->cluster_id);
        bind_number(&b, record->n_supplements);
        bind_number(&b, record->uid);
        bind_number(&b, record->unit_dev);
        bind_number(&b, record->unit_ino);
        bind_number(&b, record->n_files);
        bind_number(&b, record->bytes);
        bind_number(&b, record->oldest_mtime_usec);
        bind_number(&b, record->digest);
        bind_number(&b, record->changed_usec);
        bind_number(&b, record->attempts);
        bind_number(&b, record->pinned);
        bind_number(&b, record->links_held);
        bind_bytes(&b, record->s3_prefix);
        bind_number(&b, record->unit_born_usec);
        bind_text(&b, origin_name(record->origin));
        bind_bytes(&b, record->failure);
        bind_text(&b, record->name.agreed);
        bind_text(&b, record->name.cluster_id);
        bind_text(&b, record->name.date_time);
        bind_number(&b, record->name.derived);
        bind_text(&b, record->name.key);
        bind_number(&b, record->name.n);
        bind_bytes(&b, record->about);
        bind_text(&b, record->subject);
        return run_change(s, &b);
}

/* @param ret_row  goes to read_deliveries once `st` is done with */
static int read_bundle(sqlite3_stmt *st, BundleRecord *b, int64_t *ret_row) {
        ColumnReader r = { .statement = st };

        *ret_row = (int64_t)read_number(&r);
        read_array(&r, b->id, sizeof b->id);
        b->source = read_string(&r, false);
        READ_WORD(&r, source_kind_parse, &b->kind);
        b->path = read_string(&r, false);
        read_array(&r, b->supplement_of, sizeof b->supplement_of);
        b->first_seen_usec = read_number(&r);
        READ_WORD(&r, bundle_state_parse, &b->state);
        b->reason = read_string(&r, true);
        b->complete = read_number(&r) != 0;
        b->incomplete = read_string(&r, true);
        read_array(&r, b->date_time, sizeof b->date_time);
        read_array(&r, b->cluster_id, sizeof b->cluster_id);
        b->n_supplements = (unsigned)read_number(&r);
        b->uid = (uid_t)read_number(&r);
        b->unit_dev = read_number(&r);
        b->unit_ino = read_number(&r);
        b->n_files = read_number(&r);
        b->bytes = read_number(&r);
        b->oldest_mtime_usec = read_number(&r);
        b->digest = read_number(&r);
        b->changed_usec = read_number(&r);
        b->attempts = (unsigned)read_number(&r);
        b->pinned = read_number(&r) != 0;
        b->links_held = read_number(&r) != 0;
        b->s3_prefix = read_string(&r, true);
        b->unit_born_usec = read_number(&r);
        READ_WORD(&r, origin_parse, &b->origin);
        b->failure = read_string(&r, true);
        read_array(&r, b->name.agreed, sizeof b->name.agreed);
        read_array(&r, b->name.cluster_id, sizeof b->name.cluster_id);
        read_array(&r, b->name.date_time, sizeof b->name.date_time);
        b->name.derived = read_number(&r) != 0;
        read_array(&r, b->name.key, sizeof b->name.key);
        b->name.n = (uint32_t)read_number(&r);
        b->about = read_string(&r, true);
        read_array(&r, b->subject, sizeof b->subject);
        return r.error;
}

int store_add(Store *s, const BundleRecord *b) {
        int r = store_savepoint(s);
        if (r < 0)
                return r;
        r = store_reserve_check(s);
        if (r == 0)
                r = write_bundle(s, STORE_BUNDLE_ADD, b);
        if (r == 0)
                r = put_deliveries(s, b);
        return store_savepoint_end(s, r);
}

int store_update(Store *s, const BundleRecord *b) {
        int r = store_savepoint(s);
        if (r < 0)
                return r;
        r = write_bundle(s, STORE_BUNDLE_UPDATE, b);
        if (r == 0)
                r = sqlite3_changes(s->db) > 0 ? put_deliveries(s, b) : STORE_E_NOT_FOUND;
        return store_savepoint_end(s, r);
}

int store_set_failure_number(Store *s, const char *id, const char *key, uint32_t n) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_BUNDLE_NUMBER] };
        bind_text(&b, id);
        bind_text(&b, key);
        bind_number(&b, n);
        int r = run_change(s, &b);
        return r == 0 && sqlite3_changes(s->db) == 0 ? STORE_E_NOT_FOUND : r;
}

/* Runs a bound statement that yields one bundle or none. */
static int read_one(Store *s, Binder *query, BundleRecord *ret) {
        _cleanup_(bundle_record_done) BundleRecord b = { 0 };
        int64_t row = 0;
        int r = next_row(s, query);
        if (r == 0)
                r = read_bundle(query->statement, &b, &row);
        if (r == 0)
                r = read_deliveries(s, row, &b);
        if (r != 0)
                return r;
        *ret = b;
        b = (BundleRecord){ 0 }; /* the caller's now */
        return 0;
}

int store_get(Store *s, const char *id, BundleRecord *ret) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_BUNDLE_GET] };
        bind_text(&b, id);
        return read_one(s, &b, ret);
}

int store_find_unit(Store *s, const char *source, const char *path, BundleRecord *ret) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_UNIT_FIND] };
        bind_bytes(&b, path);
        bind_text(&b, source);
        return read_one(s, &b, ret);
}

int store_unit_is_pinned(Store *s, const BundleRecord *record) {
        /* A supplement whose unit is not read has none. */
        if (record->pinned || record->unit_ino == 0)
                return record->pinned;
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_UNIT_IS_PINNED] };
        bind_number(&b, record->unit_ino);
        bind_number(&b, record->unit_dev);
        bind_number(&b, record->unit_born_usec);
        int r = next_row(s, &b);
        return r == 0 ? sqlite3_column_int(b.statement, 0) : MIN(r, 0);
}

/* Lists */

int store_list_ended(Store *s, const char *source, char **after,
                     int (*on_unit)(const char *path, uint64_t digest, void *userdata),
                     void *userdata) {
        _cleanup_free_ char *from = TAKE_PTR(*after);
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_UNIT_LIST] };
        int r, n = 0;

        bind_text(&b, source);
        bind_bytes(&b, from ? from : "");
        bind_number(&b, ENDED_PAGE);
        while ((r = next_row(s, &b)) == 0) {
                ColumnReader reader = { .statement = b.statement };
                _cleanup_free_ char *path = read_string(&reader, false);
                uint64_t digest = read_number(&reader);
                /* A row that no agent wrote is ignored: its unit is scanned again. */
                int error = reader.error == -EUCLEAN ? 0
                            : reader.error < 0       ? reader.error
                                                     : on_unit(path, digest, userdata);
                if (error < 0)
                        return error;
                if (++n == ENDED_PAGE)
                        *after = TAKE_PTR(path);
        }
        return MIN(r, 0);
}

uint64_t store_nth_seen_usec(Store *s, uint64_t n) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_NTH_SEEN] };
        bind_number(&b, n);
        return next_row(s, &b) == 0 ? (uint64_t)sqlite3_column_int64(b.statement, 0) : 0;
}

int store_drop_ended(Store *s, const char *id, bool is_gone) {
        static const StoreStatement steps[] = { STORE_FORMER_COUNT, STORE_FORMER_DROP };
        int r = store_savepoint(s);
        if (r < 0)
                return r;
        for (size_t i = 0; r == 0 && i < ELEMENTSOF(steps); i++) {
                _cleanup_binder_ Binder b = { .statement = s->statements[steps[i]] };
                bind_text(&b, id);
                bind_number(&b, is_gone);
                r = run_change(s, &b);
                if (r == 0 && sqlite3_changes(s->db) == 0)
                        r = STORE_E_NOT_FOUND;
        }
        return store_savepoint_end(s, r);
}

uint64_t store_count_lacking(Store *s, const char *source, const char *destination,
                             StoreRows rows) {
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_COUNT_LACKING] };
        bind_text(&b, source);
        bind_text(&b, destination);
        bind_number(&b, (uint64_t)rows.from);
        bind_number(&b, (uint64_t)rows.to);
        return next_row(s, &b) == 0 ? (uint64_t)sqlite3_column_int64(b.statement, 0) : 0;
}

int64_t store_last_row(Store *s) {
        _cleanup_reset_ sqlite3_stmt *st = s->statements[STORE_LAST_ROW];
        return sqlite3_step(st) == SQLITE_ROW ? sqlite3_column_int64(st, 0) : 0;
}

typedef struct RecordPage {
        BundleRecord records[LIST_PAGE];
        bool is_foreign[LIST_PAGE]; /* no agent wrote it: it is skipped */
        size_t n, limit;            /* limit: at most so many are read, <= LIST_PAGE */
} RecordPage;

static void page_done(RecordPage *p) {
        for (size_t i = 0; i < p->n; i++)
                bundle_record_done(&p->records[i]);
        p->n = 0;
}

static int prepare_list(Store *s, const StoreFilter *f, sqlite3_stmt **ret) {
        const char *which = /* `+`: in the order of bundles_by_age, no sorting of all */
                f->ended_before_usec
                        ? "supplement_of = '' AND +state IN " STORE_OVER
                          " AND first_seen_usec <= max(?6, ?7) AND (first_seen_usec <= ?7"
                          " OR (changed_usec < ?6 AND NOT EXISTS (SELECT 1 FROM bundles x"
                          " WHERE x.supplement_of = bundles.id AND x.supplement_of <> ''"
                          " AND x.changed_usec >= ?6)))"
                : f->subject     ? "subject = ?5 AND subject <> ''"
                : f->base        ? "supplement_of = ?5 AND supplement_of <> ''"
                : f->failure_key ? "failure_key = ?5 AND failure_key <> '' AND failure_n = ?6"
                : f->no_copy_at  ? "state = ?1 AND " LACKS_COPY("?5")
                : f->lacks       ? "state = ?1 AND " LACKS("?5")
                : f->held_only   ? "state = ?1 AND links_held = 1"
                : f->state >= 0  ? "state = ?1"
                : f->active_only ? "state IN ('settling', 'ready', 'shipping')"
                                 : "1";
        char where[1024];
        bool has_more_states = (f->subject || f->base || f->failure_key) && f->state >= 0;
        (void)snprintf(where, sizeof where, "%s%s%s", which, f->source ? " AND source = ?2" : "",
                       has_more_states ? " AND state = ?1" : "");
        return store_errno(s, store_statements_prepare_list(s, where, ret));
}

/* @param after  only id and first_seen_usec count */
static int read_page(Store *s, sqlite3_stmt *statement, const StoreFilter *f,
                     const BundleRecord *after, RecordPage *p) {
        _cleanup_binder_ Binder b = { .statement = statement };
        int r = 0;
        bind_text(&b, f->state >= 0 ? bundle_state_name((BundleState)f->state) : NULL);
        bind_text(&b, f->source);
        bind_number(&b, after->first_seen_usec);
        bind_text(&b, after->id);
        bind_text(&b, f->subject       ? f->subject
                      : f->base        ? f->base
                      : f->failure_key ? f->failure_key
                      : f->no_copy_at  ? f->no_copy_at
                                       : f->lacks);
        bind_number(&b, f->failure_key ? f->failure_n : f->ended_before_usec);
        bind_number(&b, f->surplus_usec);
        bind_number(&b, p->limit);
        while (p->n < p->limit && (r = next_row(s, &b)) == 0) {
                BundleRecord *record = &p->records[p->n];
                int64_t row;
                *record = (BundleRecord){ 0 };
                int error = read_bundle(b.statement, record, &row);
                if (error == 0)
                        error = read_deliveries(s, row, record);
                /* A row of an active bundle must not be skipped: the database is put aside then. */
                bool is_foreign = error == -EUCLEAN && !f->active_only && record->id[0];
                p->is_foreign[p->n++] = is_foreign;
                if (error < 0 && !is_foreign)
                        return error;
        }
        return MIN(r, 0);
}

static void finalize(sqlite3_stmt **statement) {
        (void)sqlite3_finalize(*statement); /* repeats an error that was handled */
}

/* A page is read as a whole before its records are handed out, so that the callback may use the
 * store. */
int store_list(Store *s, const StoreFilter *f, int (*on_bundle)(BundleRecord *b, void *userdata),
               void *userdata) {
        _cleanup_(bundle_record_done) BundleRecord after = { 0 };
        _cleanup_(finalize) sqlite3_stmt *statement = NULL;
        size_t left = f->limit > 0 ? f->limit : SIZE_MAX;

        if (f->state >= N_BUNDLE_STATES ||
            (f->held_only && f->state != BUNDLE_DELIVERED && f->state != BUNDLE_EVICTED))
                return -EINVAL;
        int r = f->after ? store_get(s, f->after, &after) : 0;
        if (r == 0)
                r = prepare_list(s, f, &statement);
        if (r != 0)
                return r;
        while (left > 0 && r == 0) {
                _cleanup_(page_done) RecordPage page = { .limit = MIN(left, (size_t)LIST_PAGE) };

                r = read_page(s, statement, f, &after, &page);
                for (size_t i = 0; i < page.n && r == 0; i++) {
                        after.first_seen_usec = page.records[i].first_seen_usec;
                        memcpy(after.id, page.records[i].id, sizeof after.id);
                        if (!page.is_foreign[i])
                                r = on_bundle(&page.records[i], userdata);
                }
                if (page.n < page.limit)
                        break;
                left -= page.n;
        }
        return r < 0 ? r : 0;
}

/* The fingerprints of the members that were shipped: one blob a bundle, of 64-bit little-endian
 * numbers. */

typedef struct PrintSet {
        uint64_t *prints;
        size_t n;
} PrintSet;

static size_t sort_unique(uint64_t *prints, size_t n) {
        size_t m = 0;

        if (n > 0)
                qsort(prints, n, sizeof *prints, array_compare_keys);
        for (size_t i = 0; i < n; i++)
                if (m == 0 || prints[m - 1] != prints[i])
                        prints[m++] = prints[i];
        return m;
}

int store_set_prints(Store *s, const char *id, const uint64_t *prints, size_t n) {
        _cleanup_free_ uint64_t *copy = malloc(n > 0 ? n * sizeof *copy : 1);
        _cleanup_binder_ Binder b = { .statement = s->statements[STORE_PRINTS_PUT] };

        if (!copy)
                return -ENOMEM;
        if (n > 0)
                memcpy(copy, prints, n * sizeof *copy);
        n = sort_unique(copy, n);
        for (size_t i = 0; i < n; i++)
                copy[i] = htole64(copy[i]);
        bind_text(&b, id);
        bind_blob(&b, copy, n * sizeof *copy);
        return store_change(s, &b);
}

static int add_row(PrintSet *set, sqlite3_stmt *st) {
        const void *blob = sqlite3_column_blob(st, 0); /* before _bytes, which then is the blob's */
        size_t more = (size_t)sqlite3_column_bytes(st, 0) / sizeof *set->prints;
        if (more == 0)
                return 0;
        uint64_t *bigger = blob ? reallocarray(set->prints, set->n + more, sizeof *bigger) : NULL;
        if (!bigger)
                return -ENOMEM;
        set->prints = bigger;
        memcpy(bigger + set->n, blob, more * sizeof *bigger);
        for (size_t i = set->n; i < set->n + more; i++)
                bigger[i] = le64toh(bigger[i]);
        set->n += more;
        return 0;
}

/* @param but_for  NULL: the statement has no such parameter
 * @param ret  not written on a failure */
static int get_prints(Store *s, StoreStatement which, const char *id, const char *but_for,
                      uint64_t **ret, size_t *ret_n) {
        _cleanup_binder_ Binder b = { .statement = s->statements[which] };
        PrintSet set = { 0 };
        int r;

        bind_text(&b, id);
        if (but_for)
                bind_text(&b, but_for);
        while ((r = next_row(s, &b)) == 0 && (r = add_row(&set, b.statement)) == 0)
                ;
        if (r < 0) {
                free(set.prints);
                return r;
        }
        *ret_n = sort_unique(set.prints, set.n);
        *ret = set.prints;
        return 0;
}

int store_get_prints(Store *s, const char *id, uint64_t **ret, size_t *ret_n) {
        return get_prints(s, STORE_PRINTS_FAMILY, id, "", ret, ret_n);
}

int store_get_own_prints(Store *s, const char *id, uint64_t **ret, size_t *ret_n) {
        return get_prints(s, STORE_PRINTS_OWN, id, NULL, ret, ret_n);
}

int store_get_earlier_prints(Store *s, const BundleRecord *b, uint64_t **ret, size_t *ret_n) {
        return get_prints(s, STORE_PRINTS_FAMILY, b->supplement_of, b->id, ret, ret_n);
}
