/* What is reported on this node becomes claims.
 *
 *     a hook's note ------------ a process has failed, for this reason, with a dump in this unit
 *     a record of `jobs` ------- a process is at a Neuron device: its rank is alive
 *     the end of a rank -------- it has ended, which is a claim without a dump
 *     a bundle is found -------- its unit waits 2 s for a note, then is claimed without one
 *     a bundle is READY -------- the pids in the names of its files are known
 *     a bundle has ended ------- it was delivered, or will not be
 *
 * Users write notes and choose file names. A note may speak of a job only if no other user has live
 * ranks of it here; file names count for the same user's processes only. */
#include "agent/failures/failures_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectors/host/job_record.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/neuron/record.h"

/* A unit is claimed without a note when no hook has reported it for so long. */
#define NOTE_WAIT_USEC (INT64_C(2) * 1000000)

/* Notes what is known of a key's job. @param source  the one that the report is about; NULL: none
 */
static void learn_job(Failures *f, FailureKey *k, const JobIdentity *job, const char *source) {
        bool is_named = !k->source && source;
        if (job->key[0])
                k->job = *job;
        if (is_named)
                k->source = strdup(source);            /* NULL: the first one that has dumps */
        if (f->scheduler && (is_named || !k->arbiter)) /* else failures_set_scheduler() does */
                failures_set_arbiter(f, k);
}

/* ---- hooks and ranks ---- */

static void set_printable(char *ret, size_t size, const char *text) {
        size_t n = 0;
        for (; text && text[n] && n + 1 < size; n++)
                ret[n] = text[n] >= ' ' && text[n] <= '~' ? text[n] : '?';
        ret[n] = '\0';
}

/* @return whether a user may report failures of a job: no ranks of it are here, or the user's are
 */
static bool may_speak_of(const Failures *f, const FailureKey *k, uid_t uid) {
        return uid == 0 || !failure_table_has_live_rank(&f->table, k, NULL) ||
               failure_table_has_live_rank(&f->table, k, &uid);
}

/* Sets which process a note is about: the one it names, else the last one that had its rank. */
static void set_process(const Failures *f, const NoteView *v, const FailureKey *k, Claim *c) {
        const FailureProcess *p =
                v->pid > 0 ? NULL : failure_table_find_rank(&f->table, k, v->note->job.rank);
        c->pid = v->pid > 0 ? (uint32_t)v->pid
                 : p        ? p->claim.pid
                            : failures_number_of_unknown(v->note->id);
        c->start_ticks = v->pid > 0 ? v->start_ticks : p ? p->claim.start_ticks : 0;
}

/* @param is_other_job  the process was first seen in another job, so its rank there stays */
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
                c->event_usec =
                        failures_boottime_of(f, v->by_mailbox ? n->written_usec : v->received_usec);
        c->state = CLAIM_FAILED;
}

/* @return the pid in the process's own namespace; 0: the note has none */
static int64_t note_pid(const HookNote *n) {
        uint64_t pid;
        return n->pid && parse_u64_range(n->pid, 1, INT32_MAX, &pid) == 0 ? (int64_t)pid : 0;
}

void failures_on_note(Failures *f, const NoteView *v) {
        const JobIdentity *job = &v->note->job;
        const uid_t uid = v->owner.uid;
        char key[CLAIM_KEY_SIZE];
        Claim c;
        failures_init_claim(f, &c);
        failures_set_names(f, &c, v->note->cluster_id, v->note->date_time);
        c.pid = v->pid > 0 ? (uint32_t)v->pid : 0;
        c.start_ticks = v->start_ticks;
        FailureProcess *known = v->pid > 0 ? failure_table_find_process(&f->table, &c) : NULL;
        if (known)
                (void)strcpy(key, known->key->key);
        else if (!claim_key_build(job->key, c.cluster_id, key))
                return;
        FailureKey *k = failure_table_get_key(&f->table, key, uid);
        if (!k)
                return;
        /* A process keeps the key that it was first seen with. Its program may have set variables
         * of another launcher since, which its hook inherits. */
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
        FailureProcess *p = failure_table_get_process(&f->table, k, &c, uid);
        if (!p)
                return;
        p->note_uid = note_sender(&v->owner, v->container, v->by_mailbox).uid;
        p->file_pid = note_pid(v->note);
        set_failed(f, v, &c, known && is_other_job, &p->claim);
        FailureUnit *u = v->source && v->unit_path
                                 ? failure_table_get_unit(&f->table, v->source, v->unit_path)
                                 : NULL;
        if (u) {
                failure_table_join_unit(&f->table, u, p);
                u->due_usec = 0;
        }
        if (u && p->claim.bundle_state != CLAIM_BUNDLE_DELIVERED) {
                (void)strcpy(p->claim.bundle, u->bundle);
                if (p->claim.bundle_state == CLAIM_BUNDLE_NONE)
                        p->claim.bundle_state = CLAIM_BUNDLE_PENDING;
        }
        failures_claim_process(f, p);
}

static void on_rank_end(void *userdata) {
        FailureProcess *p = userdata;
        p->watch = rank_watch_free(p->watch);
        if (p->claim.state != CLAIM_ALIVE)
                return;
        p->claim.state = CLAIM_ENDED;
        p->claim.event_usec = failures_now_usec(p->failures);
        failures_claim_process(p->failures, p);
}

void failures_on_job(Failures *f, const char *record) {
        char key[CLAIM_KEY_SIZE];
        JobRecord rank;
        Claim c;
        failures_init_claim(f, &c);
        if (!job_record_parse(record, &rank) || !claim_key_build(rank.job.key, "", key))
                return;
        c.pid = (uint32_t)rank.pid;
        c.start_ticks = rank.start_ticks;
        FailureKey *k = failure_table_get_key(&f->table, key, rank.uid);
        FailureProcess *p = k ? failure_table_get_process(&f->table, k, &c, rank.uid) : NULL;
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
                if (p->claim.revision == 0) /* no note has reported it */
                        failure_table_free_process(&f->table, p);
                return;
        }
        /* A note may have set another user; a claim that was restored has none. */
        k->entry.uid = p->entry.uid = rank.uid;
        learn_job(f, k, &rank.job, NULL);
        if (p->claim.state == CLAIM_FAILED)
                return;
        p->claim.rank = rank.job.rank;
        p->claim.world_size = rank.job.world_size;
        p->claim.started_usec = (int64_t)rank_watch_start_usec(rank.start_ticks);
        p->claim.state = CLAIM_ALIVE;
        p->claim.event_usec = failures_now_usec(f);
        failures_claim_process(f, p);
}

/* ---- bundles ---- */

/* @return whether the name of a file in a bundle has the pid of a process */
static bool bundle_names_process(const Bundle *b, const FailureProcess *p) {
        int64_t pid = p->claim.pid < CLAIM_PID_UNKNOWN ? (int64_t)p->claim.pid : 0;
        return named_pids_contain(&b->pids, p->file_pid ? p->file_pid : pid);
}

/* @return whether a bundle may have files of a process. Names without pids may belong to any
 * process of the unit. */
static bool bundle_may_have_process(const Bundle *b, const FailureProcess *p) {
        bool is_unknown = p->claim.pid >= CLAIM_PID_UNKNOWN && p->file_pid == 0;
        return is_unknown || b->pids.n == 0 || b->pids.is_cut || bundle_names_process(b, p);
}

/* Puts into a unit the processes of its user whose pids are in the names of its files and for which
 * no note has come, because it was refused or the runtime ran no hook. Users choose the names of
 * their files, so this is a hint, and can be about their own processes only. */
static void join_named_processes(Failures *f, FailureUnit *u, const Bundle *b) {
        int64_t now = failures_now_usec(f),
                written_usec = failures_boottime_of(f, b->rec.oldest_mtime_usec);
        FAILURE_TABLE_FOREACH_PROCESS(p, &f->table) {
                Claim *c = &p->claim;
                bool has_left =
                        c->state != CLAIM_ALIVE && /* its pid may be in use again */
                        c->event_usec + (int64_t)f->config->agreement.window_usec < written_usec;
                if (p->unit || c->bundle_state != CLAIM_BUNDLE_NONE || has_left ||
                    p->entry.uid != b->rec.uid || !bundle_names_process(b, p))
                        continue;
                failure_table_join_unit(&f->table, u, p);
                if (c->state != CLAIM_FAILED) {
                        failures_set_names(f, c, b->rec.cluster_id, b->rec.date_time);
                        c->event_usec = c->state == CLAIM_ENDED ? c->event_usec : now;
                        c->state = CLAIM_FAILED;
                }
                failures_set_process_bundle(f, p, u->bundle, CLAIM_BUNDLE_PENDING);
        }
}

/* Claims a unit without a note: for the processes whose pids are in the names of its files, else
 * for the only job of its user, else for its cluster id. */
static void claim_unit(Failures *f, FailureUnit *u, const Bundle *b) {
        const BundleRecord *rec = &b->rec;
        int64_t seen_usec = failures_boottime_of(f, rec->first_seen_usec);
        char key[CLAIM_KEY_SIZE];
        Claim c;
        u->due_usec = 0;
        join_named_processes(f, u, b);
        if (u->first || rec->supplement_of[0]) /* a supplement gets the name of its base */
                return;
        failures_init_claim(f, &c);
        failures_set_names(f, &c, rec->cluster_id, rec->date_time);
        FailureKey *k = failure_table_find_job(
                &f->table, rec->uid, seen_usec - (int64_t)f->config->agreement.window_usec);
        if (!k && claim_key_build("", c.cluster_id, key))
                k = failure_table_get_key(&f->table, key, rec->uid);
        if (!k)
                return;
        learn_job(f, k, &k->job, rec->source);
        c.pid = failures_number_of_unknown(rec->id);
        FailureProcess *p = failure_table_get_process(&f->table, k, &c, rec->uid);
        if (!p)
                return;
        failure_table_join_unit(&f->table, u, p);
        p->claim.state = CLAIM_FAILED;
        p->claim.event_usec = seen_usec;
        p->claim.bundle_state = CLAIM_BUNDLE_PENDING;
        (void)strcpy(p->claim.bundle, rec->id);
        failures_claim_process(f, p);
}

static bool has_failure(const BundleRecord *rec) {
        return source_kind_has_incident(rec->kind);
}

FailureUnit *failures_unit_of(Failures *f, Bundle *b) {
        if (b->failure_unit)
                return b->failure_unit;
        FailureUnit *u = failure_table_get_unit(&f->table, b->rec.source, b->rec.path);
        if (!u || (u->bundle[0] && strcmp(u->bundle, b->rec.id) != 0))
                return NULL;
        (void)strcpy(u->bundle, b->rec.id);
        b->failure_unit = u;
        FAILURE_TABLE_FOREACH_PROCESS(p, &f->table)
        if (strcmp(p->claim.bundle, b->rec.id) == 0)
                failure_table_join_unit(&f->table, u, p);
        if (u->first)
                failures_set_unit_bundle(f, u, CLAIM_BUNDLE_PENDING);
        else
                u->due_usec = failures_now_usec(f) + NOTE_WAIT_USEC;
        return u;
}

void failures_on_found(Failures *f, Bundle *b) {
        if (has_failure(&b->rec) && failures_unit_of(f, b))
                f->wake(f);
}

int64_t failures_claim_units(Failures *f) {
        int64_t next = AGREEMENT_NEVER, now = failures_now_usec(f);
        LIST_FOREACH_ITEM_SAFE (FailureUnit, u, link, &f->table.units) {
                if (u->due_usec == 0)
                        continue;
                const Bundle *b = bundle_table_find(f->context.bundles, u->bundle);
                if (u->due_usec > now)
                        next = MIN(next, u->due_usec);
                else if (b)
                        claim_unit(f, u, b);
                else
                        failure_table_free_unit(&f->table, u); /* its bundle is gone */
        }
        return next;
}

void failures_on_unit_ready(Failures *f, FailureUnit *u, const Bundle *b) {
        failure_table_remove_strangers(&f->table, u, &b->facts.owners);
        if (u->ready_usec == 0)
                join_named_processes(f, u, b);
        if (!u->first)
                claim_unit(f, u, b);
        if (u->ready_usec == 0)
                u->ready_usec = failures_now_usec(f);
}

/* Sets the end of a bundle on the claims of its unit. Ranks share a directory, and a bundle may
 * have files of only some of them; the others stay in the unit for its next bundle, a supplement.
 * @return whether there are any */
static bool unit_on_final(Failures *f, FailureUnit *u, const Bundle *b) {
        const BundleRecord *rec = &b->rec;
        ClaimBundle state = rec->state == BUNDLE_DELIVERED     ? CLAIM_BUNDLE_DELIVERED
                            : rec->state == BUNDLE_QUARANTINED ? CLAIM_BUNDLE_PENDING
                                                               : CLAIM_BUNDLE_EMPTY;
        bool is_of_all = !rec->supplement_of[0] && state != CLAIM_BUNDLE_DELIVERED;
        u->first = NULL;
        FAILURE_TABLE_FOREACH_PROCESS(p, &f->table) {
                if (p->unit != u)
                        continue;
                bool has_it = p->claim.bundle_state == CLAIM_BUNDLE_DELIVERED;
                if (!has_it && !is_of_all && !bundle_may_have_process(b, p)) {
                        failures_set_process_bundle(f, p, "", CLAIM_BUNDLE_PENDING);
                        u->first = u->first ? u->first : p;
                        continue;
                }
                if (!has_it)
                        failures_set_process_bundle(f, p, rec->id, state);
                p->unit = NULL;
        }
        return u->first;
}

void failures_on_final(Failures *f, Bundle *b) {
        const BundleRecord *rec = &b->rec;
        /* Also of one whose name was in its row at the start, or that was retried: only claims know
         * of it. */
        FailureUnit *u = has_failure(rec) ? failures_unit_of(f, b) : NULL;
        failures_record_bundle(f, rec);
        if (!u)
                return;
        if (rec->state == BUNDLE_DELIVERED && !rec->supplement_of[0])
                failure_pointers_add(&f->pointers, rec);
        if (unit_on_final(f, u, b))
                failure_table_end_bundle(&f->table, u);
        else
                failure_table_free_unit(&f->table, u);
}
