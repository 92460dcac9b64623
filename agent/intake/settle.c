/* From a bundle to READY: probes until rules.h says that it is complete. */
#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "agent/intake/intake_private.h"
#include "agent/store/notes_store.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/event/timer.h"

static int on_bundle_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source;
        (void)usec;
        intake_probe_bundle(userdata);
        return 0;
}

void intake_probe_bundle_in(Bundle *b, uint64_t usec) {
        int r = timer_arm(&b->timer, &(TimerOrder){ .event = b->source->context->event,
                                                    .usec = usec,
                                                    .slack_usec = usec / 20,
                                                    .handler = on_bundle_timer,
                                                    .userdata = b });
        if (r < 0)
                log_dump(b->rec.id, LOG_ERR, r, "cannot arm a timer, it waits for the next scan");
}

static const char *remedy_for(ScanSkip skip) {
        switch (skip) {
        case SCAN_SKIP_SYMLINK:
        case SCAN_SKIP_HARDLINK:
                return "copy the file itself into the dump if it belongs there";
        case SCAN_SKIP_UNREADABLE:
                return "give the agent CAP_DAC_READ_SEARCH or read permission";
        case SCAN_SKIP_TOO_MANY:
                return "raise the source's max_files";
        case SCAN_SKIP_TOO_BIG:
                return "raise the source's max_bytes";
        case SCAN_SKIP_TOO_DEEP:
                return "make the tree flatter";
        default:
                return "only regular files are collected";
        }
}

/* Members that were left out are logged and counted, and where evidence may be missing the bundle
 * is labelled. */
static void record_losses(IntakeSource *s, Bundle *b, const ScanUnit *u) {
        json_t *reasons = json_array();
        for (int skip = 0; skip < N_SCAN_SKIPS; skip++) {
                if (!u->skipped[skip] || skip == SCAN_SKIP_FOREIGN || skip == SCAN_SKIP_EXCLUDED)
                        continue;
                _cleanup_free_ char *text = NULL;
                if (asprintf(&text, "%s: %llu left out, such as '%s'",
                             scan_skip_name((ScanSkip)skip), (unsigned long long)u->skipped[skip],
                             u->skipped_example[skip] ? u->skipped_example[skip] : "?") < 0)
                        continue;
                if (scan_skip_is_loss((ScanSkip)skip))
                        json_array_append_new(reasons, json_string(text));
                log_dump(b->rec.id, LOG_WARNING, 0, "%s; %s", text, remedy_for((ScanSkip)skip));
                s->context->on_discard(scan_skip_name((ScanSkip)skip), u->skipped[skip],
                                       s->context->userdata);
        }
        free(b->rec.incomplete);
        b->rec.incomplete = json_array_size(reasons) ? json_dumps(reasons, JSON_COMPACT) : NULL;
        b->rec.complete = json_array_size(reasons) == 0;
        json_decref(reasons);
}

static void add_reason(Bundle *b, const char *reason) {
        json_t *reasons = b->rec.incomplete ? json_loads(b->rec.incomplete, 0, NULL) : NULL;
        if (!reasons)
                reasons = json_array();
        json_array_append_new(reasons, json_string(reason));
        free(b->rec.incomplete);
        b->rec.incomplete = json_dumps(reasons, JSON_COMPACT);
        b->rec.complete = false;
        json_decref(reasons);
}

#define MISSING_MAX 8 /* that are named */

typedef struct Missing {
        Bundle *bundle;
        size_t n;
} Missing;

/* @return the reason, or NULL without memory */
static char *reason_of(const Promise *p) {
        _cleanup_free_ char *name = path_escape(p->name);
        char *text = NULL;
        if (p->kind == PROMISE_UNNAMED)
                return strdup("missing: the copy out of its container ended before all was there");
        if (asprintf(&text, "missing: '%s' was %s", name ? name : "?",
                     p->kind == PROMISE_PATH ? "seen in its container, and is not complete here"
                                             : "promised by its hook") < 0)
                return NULL;
        return text;
}

static void add_missing(const Promise *p, void *userdata) {
        Missing *m = userdata;
        if (++m->n > MISSING_MAX)
                return;
        _cleanup_free_ char *text = reason_of(p);
        add_reason(m->bundle, text ? text : "missing: a file that was promised by its hook");
        log_dump(m->bundle->rec.id, LOG_WARNING, 0, "%s%s",
                 text ? text : "a promised file is missing",
                 p->kind == PROMISE_NAME ? "; the hook died, or its file system does not answer"
                                         : "");
}

/* Labels what was promised and has not been seen. */
static void record_missing(IntakeSource *s, Bundle *b) {
        Missing m = { .bundle = b };
        hook_hints_foreach_missing(s, b, add_missing, &m);
        if (m.n > MISSING_MAX)
                add_reason(b, "missing: and more that was promised by hooks");
}

typedef struct Granted {
        const Owners *owners;
        const char *same; /* NULL: any */
        char *found;
} Granted;

static int on_prefix(const StoredNote *stored, void *userdata) {
        Granted *g = userdata;
        if (!stored->s3_prefix || !owners_let_speak(g->owners, stored->uid) ||
            (g->same && strcmp(g->same, stored->s3_prefix) != 0))
                return 0;
        g->found = strdup(stored->s3_prefix);
        return g->found ? 1 : -ENOMEM;
}

void intake_set_s3_prefix(Store *store, Bundle *b) {
        BundleRecord *rec = &b->rec;
        Granted g = { .owners = &b->owners, .same = rec->s3_prefix };
        const StoredUnit unit = { rec->source, rec->path };
        bool may_get_one = !rec->supplement_of[0] && !bundle_has_begun(b);
        if (!rec->s3_prefix && !may_get_one)
                return;
        (void)store_note_list(store, &unit, on_prefix, &g); /* none: own */
        if (!g.found && g.same && may_get_one) {
                g.same = NULL;
                (void)store_note_list(store, &unit, on_prefix, &g); /* as above */
        }
        free(rec->s3_prefix);
        rec->s3_prefix = g.found;
}

static void make_ready(IntakeSource *s, Bundle *b, const ScanUnit *u, const char *incomplete) {
        if (u->n_files > 0 || !incomplete)
                record_losses(s, b, u);
        if (incomplete) {
                add_reason(b, incomplete);
                b->tolerant = true; /* it may still change, but waiting is over */
        }
        record_missing(s, b);
        hook_hints_report_ignored(s, b);
        intake_set_s3_prefix(s->context->store, b);
        sd_event_source_set_enabled(b->timer, SD_EVENT_OFF);
        if (bundle_set_state(s->context->bundles, b, BUNDLE_READY, incomplete) == 0)
                s->context->on_ready(b, s->context->userdata);
}

/* How the members are held. */
static void apply_hold(IntakeSource *s, Bundle *b, ProbeJob *p) {
        if (p->links_held != b->rec.links_held && p->unit.n_files > 0)
                b->rec.links_held = p->links_held;
        if (p->unit.n_files > 0 && !p->links_held) {
                held_files_done(&b->held);
                b->held = p->held;
                p->held = (HeldFiles){ 0 };
        }
        if (p->hold_error && (!s->hold_note || strcmp(s->hold_note, p->hold_error) != 0)) {
                intake_set_note(&s->hold_note, p->hold_error);
                log_warning(0, "source %s: %s", s->config->name, p->hold_error);
        }
}

static void record_process(Bundle *b, const ProbeJob *p) {
        if (p->process_seen && !b->process_seen) {
                b->process_seen = true;
                b->process_start = p->process_start;
        }
}

/* Copies what was counted into the record. */
static void apply_facts(IntakeSource *s, Bundle *b, ProbeJob *p) {
        bool changed = p->unit.digest != b->rec.digest;
        bool was_held = b->rec.links_held;
        b->rec.digest = p->unit.digest;
        b->rec.n_files = p->unit.n_files;
        b->rec.bytes = p->unit.bytes;
        apply_hold(s, b, p);
        record_process(b, p);
        if (changed || was_held != b->rec.links_held)
                bundle_save(s->context->bundles, b);
}

static void update_quiet(IntakeSource *s, Bundle *b, bool changed) {
        uint64_t now = intake_boot_usec(s);
        b->quiet_usec = intake_quiet_usec(changed, now - b->looked_boot_usec, b->quiet_usec);
        b->looked_boot_usec = now;
}

static void keep_waiting(Bundle *b, const IntakeAnswer *answer, uint64_t duration_usec) {
        if (!b->rec.reason || strcmp(b->rec.reason, answer->why) != 0) {
                free(b->rec.reason); /* for `explain`; the row follows with the next change */
                b->rec.reason = strdup(answer->why);
        }
        uint64_t usec = answer->next_usec;
        if (b->dirty) /* something came during the probe: hold it soon */
                usec = MIN(usec, MAX(REPROBE_USEC, REPROBE_SHARE * duration_usec));
        b->dirty = false;
        b->look_took_usec = duration_usec;
        intake_probe_bundle_in(b, usec);
}

static void apply_answer(IntakeSource *s, Bundle *b, const ProbeJob *p,
                         const IntakeAnswer *answer) {
        switch (answer->verdict) {
        case INTAKE_WAIT:
                keep_waiting(b, answer, p->duration_usec);
                break;
        case INTAKE_COMPLETE:
                make_ready(s, b, &p->unit, NULL);
                break;
        case INTAKE_INCOMPLETE:
                make_ready(s, b, &p->unit, answer->why);
                break;
        case INTAKE_VANISHED:
                (void)bundle_set_state(s->context->bundles, b, BUNDLE_VANISHED,
                                       answer->why); /* a refused transition is logged there */
                break;
        }
}

/* There are files, but none that may be collected: this is not reported as removed. */
static void give_up_unreadable(IntakeSource *s, Bundle *b, const ScanUnit *u) {
        record_losses(s, b, u);
        _cleanup_free_ char *reason = NULL;
        if (asprintf(&reason, "no file of it may be collected: %s", b->rec.incomplete) < 0)
                reason = NULL;
        (void)bundle_set_state(s->context->bundles, b, BUNDLE_VANISHED,
                               reason); /* a refused transition is logged there */
}

static bool has_losses(const ScanUnit *u) {
        for (int skip = 0; skip < N_SCAN_SKIPS; skip++)
                if (u->skipped[skip] && scan_skip_is_loss((ScanSkip)skip))
                        return true;
        return false;
}

/* All but whether it is gone. */
static IntakeFacts facts_of(const IntakeSource *s, const Bundle *b, const ProbeJob *p) {
        uint64_t whole_usec = b->whole_boot_usec;
        return (IntakeFacts){
                .held = b->rec.links_held || (b->held.n > 0 && b->held.all),
                .writers = p->check_writers ? p->writers : INTAKE_WRITERS_UNKNOWN,
                .quiet_usec = b->quiet_usec,
                .process_gone = b->process_seen &&
                                !(p->process_seen && p->process_start == b->process_start),
                .contradicted = p->contradicted,
                .whole_usec = whole_usec > 0 ? intake_boot_usec(s) - whole_usec : 0,
        };
}

static void on_probed(IntakeSource *s, ProbeJob *p) {
        Bundle *b = bundle_table_find(s->context->bundles, p->bundle_id);
        if (!b || b->source != s)
                return; /* cancelled meanwhile */
        b->probing = false;
        b->is_replaced = b->is_replaced || p->met_another;
        if (b->rec.state != BUNDLE_SETTLING)
                return;
        if (p->result < 0 && p->result != -ENOENT) {
                log_dump(b->rec.id, LOG_WARNING, p->result, "cannot read '%s', trying again",
                         b->rec.path);
                intake_probe_bundle_in(b, s->config->scan_interval_usec);
                return;
        }
        bool seen = p->result == 0 && p->unit.n_files > 0;
        bool gone = !seen || p->from_links;
        if (gone && p->moved) { /* under its new name it is another bundle */
                (void)bundle_set_state(s->context->bundles, b, BUNDLE_VANISHED,
                                       "it was renamed at the source and is shipped under its new "
                                       "name"); /* a refused transition is logged there */
                return;
        }
        if (gone && has_losses(&p->unit) && !b->rec.links_held) {
                give_up_unreadable(s, b, &p->unit);
                return;
        }
        update_quiet(s, b, seen && p->unit.digest != b->rec.digest);
        if (!gone)
                apply_facts(s, b, p);
        else if (seen) /* our links may have grown */
                b->rec.digest = p->unit.digest;
        IntakeLimits terms = { .settle_usec = s->config->settle_usec,
                               .max_wait_usec = s->config->max_wait_usec,
                               .waited_usec = intake_boot_usec(s) - b->seen_boot_usec,
                               .flush = b->flush };
        IntakeFacts facts = facts_of(s, b, p);
        facts.gone = gone;
        if (seen)
                b->owners = p->owners;
        hook_hints_remove_seen(s, b->rec.path, p);
        hook_hints_add_facts(s, b, &facts);
        /* Leases and headers are checked only when it could be complete: for most probes a walk is
         * enough. */
        if (seen && !p->check_writers && intake_is_due(&facts, &terms)) {
                b->check = true;
                intake_probe_bundle(b);
                return;
        }
        IntakeAnswer answer = intake_decide(&facts, &terms);
        if (!answer.only_pending)
                b->whole_boot_usec = 0;
        else if (b->whole_boot_usec == 0)
                b->whole_boot_usec = intake_boot_usec(s);
        apply_answer(s, b, p, &answer);
}

static void accept_attachments(IntakeSource *s, Bundle *b) {
        if (bundle_set_state(s->context->bundles, b, BUNDLE_READY, NULL) == 0)
                s->context->on_ready(b, s->context->userdata);
}

void intake_probe_bundle(Bundle *b) {
        IntakeSource *s = b->source;
        if (!s || b->rec.state != BUNDLE_SETTLING)
                return;
        if (b->probing) {
                b->dirty = true;
                return;
        }
        if (bundle_is_of_attachments(&b->rec)) { /* they are complete, and ours */
                accept_attachments(s, b);
                return;
        }
        ProbeJob *p;
        if (probe_job_new(&p, s->terms, intake_relative(s, b->rec.path)) < 0) {
                intake_probe_bundle_in(b, USEC_PER_SEC);
                return;
        }
        strcpy(p->bundle_id, b->rec.id);
        if (b->rec.supplement_of[0])
                (void)store_get_earlier_prints(s->context->store, &b->rec, &p->shipped,
                                               &p->n_shipped); /* none: all is new */
        if (hook_hints_add_expected(s, b->rec.path, p) < 0) {
                probe_job_free(p);
                intake_probe_bundle_in(b, USEC_PER_SEC);
                return;
        }
        p->hold = true;
        bool can_names_repeat = s->terms->scan.kind == SOURCE_DIRECTORY ||
                                s->terms->scan.kind == SOURCE_NEURON_PROFILE;
        if (b->rec.links_held && can_names_repeat) {
                p->unit_ino = b->rec.unit_ino;
                p->unit_born_usec = b->rec.unit_born_usec;
        }
        p->links_only = intake_is_from_links(&b->rec);
        p->check_writers =
                b->check || b->flush ||
                b->quiet_usec + intake_boot_usec(s) - b->looked_boot_usec >= s->config->settle_usec;
        b->check = false;
        b->probing = intake_probe_submit(s, p, on_probed);
        if (!b->probing)
                intake_probe_bundle_in(b, USEC_PER_SEC);
}

void intake_flush_bundle(Bundle *b) {
        b->flush = true;
        intake_probe_bundle(b);
}

void intake_settle_again(Bundle *b, const char *why) {
        IntakeSource *s = b->source;
        if (!s || bundle_set_state(s->context->bundles, b, BUNDLE_SETTLING, why) < 0)
                return;
        b->flush = false;
        b->quiet_usec = 0;
        b->looked_boot_usec = intake_boot_usec(s);
        intake_probe_bundle_in(b, MIN(s->config->settle_usec, USEC_PER_SEC));
}

void intake_source_adopt(IntakeSource *s, Bundle *b) {
        b->source = s;
        b->probing = false;
        s->n_active++;
        b->is_active = true;
        /* Our links have changed the ctimes, so `settle` starts again. */
        b->quiet_usec = 0;
        b->seen_boot_usec = b->looked_boot_usec = intake_boot_usec(s);
        /* The time before this start counts, but max_wait does not end before `settle` has passed
         * since: the agent may have been down for long, or the clock may have been set. */
        uint64_t now = intake_realtime_usec(s), max_wait = s->config->max_wait_usec;
        uint64_t most = max_wait > s->config->settle_usec ? max_wait - s->config->settle_usec : 0;
        uint64_t before = now > b->rec.first_seen_usec ? now - b->rec.first_seen_usec : 0;
        before = MIN(before, most);
        b->seen_boot_usec -= MIN(b->seen_boot_usec, before);
        if (bundle_is_of_attachments(&b->rec)) { /* deferred: the agent is not complete yet */
                if (b->rec.state == BUNDLE_SETTLING)
                        intake_probe_bundle_in(b, 0);
                return;
        }
        hook_hints_load(s, b);
        intake_probe_bundle(b);
}
