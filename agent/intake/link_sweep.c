/* The sweep of links that a crash left: lists all links of a source, and for each decides by the
 * bundle's row whether they stay, are released or are rechecked. Where the row was lost with the
 * state directory and the unit is gone, the row is created again, and the links are shipped. */
#include "agent/intake/link_sweep.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/intake/ended_links.h"
#include "agent/intake/new_bundle.h"
#include "agent/intake/supplement.h"
#include "agent/retention/link_rule.h"
#include "agent/retention/links.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/ids.h"

/* ---- the list of all links, made in the thread that makes them ---- */

typedef struct FoundLinks { /* of one bundle */
        ListLink link;
        char *id;   /* what the directory is called: not necessarily the id of a bundle */
        char *path; /* absolute */
        char *unit; /* absolute path of the unit they hold; NULL: unknown, or of another source */
        uid_t unit_uid;
        bool is_unit_gone;
} FoundLinks;

typedef struct LinkListing {
        SourceTask task;
        IntakeSource *source; /* for done() */
        SourceSpec *spec;     /* a reference */
        ListLink found;
        int result;
} LinkListing;

static LinkListing *listing_free(LinkListing *l) {
        if (!l)
                return NULL;
        LIST_FOREACH_ITEM_SAFE (FoundLinks, f, link, &l->found) {
                free(f->id);
                free(f->path);
                free(f->unit);
                free(f);
        }
        source_spec_unref(l->spec);
        free(l);
        return NULL;
}

DEFINE_CLEANUP(LinkListing, listing_free);

static int on_links(const char *id, const char *path, void *userdata) {
        LinkListing *l = userdata;
        FoundLinks *f = calloc(1, sizeof *f);
        if (!f)
                return -ENOMEM;
        list_append(&l->found, &f->link);
        f->id = strdup(id);
        f->path = strdup(path);
        if (!f->id || !f->path)
                return -ENOMEM;
        _cleanup_free_ char *unit = NULL;
        struct stat st;
        if (links_read_unit(l->spec->link_dirs, id, &unit, &f->unit_uid) < 0 ||
            !path_is_below(unit, l->spec->fixed))
                return 0;
        f->is_unit_gone = lstat(unit, &st) < 0 && (errno == ENOENT || errno == ENOTDIR);
        f->unit = TAKE_PTR(unit);
        return 0;
}

static void listing_run(WorkJob *job) {
        LinkListing *l = CONTAINER_OF(job, LinkListing, task.job);
        l->result = links_list(l->spec->link_dirs, on_links, l);
}

static void listing_drop(SourceTask *t) {
        listing_free(CONTAINER_OF(t, LinkListing, task));
}

/* ---- what becomes of links ---- */

/* Notes at a bundle that is not delivered yet that links hold late files of it: its row may come
 * from a scan that knew nothing of them. */
static void note_late_links(const IntakeSource *s, const BundleRecord *base) {
        Bundle *b = base ? bundle_table_find(s->context->bundles, base->id) : NULL;
        if (b)
                b->unit.has_late = true;
}

static LinkFate fate_of(const IntakeSource *s, const char *id) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 }, base = { 0 };
        if (bundle_table_find(s->context->bundles, id))
                return LINKS_KEEP;
        int r = store_get(s->context->store, id, &rec);
        if (r < 0) /* the row cannot be read */
                return LINKS_KEEP;
        const bool has_row = r == 0, has_base = !has_row && supplement_base(s, id, &base) == 0;
        const LinkFacts facts = { .rec = has_row ? &rec : NULL,
                                  .base = has_base ? &base : NULL,
                                  .is_of_source =
                                          ended_links_are_of_source(s, has_base ? &base : &rec) };
        LinkFate fate = link_rule(&facts);
        if (fate == LINKS_KEEP)
                note_late_links(s, facts.base);
        return fate;
}

/* Sources on one file system share the directory of links, so that this is logged once. */
static void log_unknown(const char *path, size_t n) {
        static char *logged;
        if (logged && strcmp(logged, path) == 0)
                return;
        _cleanup_free_ char *escaped = path_escape(path);
        log_notice("unknown links, kept: '%s' and %zu more beside it; remove the directory by "
                   "hand if its bundle is not needed",
                   escaped ? escaped : "?", n - 1);
        free(logged);
        logged = strdup(path);
}

/* ---- a lost state directory: bundles that are only held by links ---- */

/* Sets date_time and cluster_id from the unit's path; else to the time in the id, and to zeros. */
static void set_incident(const IntakeSource *s, const FoundLinks *f, BundleRecord *rec) {
        TemplateValues values = { 0 };
        const char *time = f->id + strlen(source_kind_name(rec->kind)) + 1;
        if (path_template_match(s->spec->scan.template, source_spec_relative(s->spec, f->unit),
                                &values)) {
                strcpy(rec->date_time, values.date_time);
                strcpy(rec->cluster_id, values.cluster_id);
                return;
        }
        (void)snprintf(rec->date_time, sizeof rec->date_time, "%.8s-%.6s", time, time + 9);
        (void)snprintf(rec->cluster_id, sizeof rec->cluster_id, "%016d", 0);
}

static bool is_of_kind(const IntakeSource *s, const char *id) {
        const char *kind = source_kind_name(s->spec->scan.kind);
        return bundle_id_is_valid(id) && strncmp(id, kind, strlen(kind)) == 0 &&
               id[strlen(kind)] == '-' && strrchr(id, '-')[1] != 's';
}

/* Creates the row of a bundle again whose unit was removed at the source.
 * @return whether it was created */
static bool restore_bundle(IntakeSource *s, const FoundLinks *f) {
        _cleanup_(bundle_record_done) BundleRecord rec = { .kind = s->spec->scan.kind,
                                                           .state = BUNDLE_SETTLING,
                                                           .complete = true,
                                                           .uid = f->unit_uid,
                                                           .links_held = true };
        Bundle *b = NULL;
        if (!f->unit || !f->is_unit_gone || !is_of_kind(s, f->id) ||
            bundle_table_find_unit(s->context->bundles, s->config->name, f->unit))
                return false;
        strcpy(rec.id, f->id);
        rec.source = strdup(s->config->name);
        rec.path = strdup(f->unit);
        if (!rec.source || !rec.path || new_bundle_fill_deliveries(s, &rec) < 0)
                return false;
        if (source_kind_has_incident(rec.kind))
                set_incident(s, f, &rec);
        if (bundle_table_add(s->context->bundles, &rec, s, &b) < 0)
                return false; /* bundle_table_add() has logged it */
        log_dump(f->id, LOG_NOTICE, 0,
                 "its row was lost with the state; its files are removed at '%s' and delivered "
                 "from the links that hold them",
                 f->unit);
        if (s->context->on_found)
                s->context->on_found(b, s->context->userdata);
        intake_source_resume_bundle(s, b);
        return true;
}

/* Sets the note about links without a row. The note is shown after the first scan only: units that
 * are still at the source get their rows by the scan. */
static void note_unlisted_links(IntakeSource *s, size_t n, const char *path) {
        _cleanup_free_ char *escaped = n > 0 ? path_escape(path) : NULL, *text = NULL;
        if (n > 0)
                text = strbuf_format("hard links hold %zu %s that the state database does not "
                                     "have, such as '%s'; save what is needed, then remove the "
                                     "directory",
                                     n, n == 1 ? "bundle" : "bundles", escaped ? escaped : "?");
        s->sweep.is_wanted = s->sweep.is_wanted || n > 0;
        source_set_note(&s->sweep.unlisted, s->scan.has_completed ? text : NULL);
}

static bool is_supplement_id(const char *id) {
        const char *suffix = strrchr(id, '-');
        return suffix && suffix[1] == 's';
}

/* Links are released only if their bundle is known to be over: an id may be another source's, or
 * its row may be lost with a damaged database. */
static void on_listed(SourceTask *t) {
        _cleanup_(listing_freep) LinkListing *p = CONTAINER_OF(t, LinkListing, task);
        IntakeSource *s = p->source;
        const char *kind = source_kind_name(s->spec->scan.kind);
        const char *unknown = NULL, *of_kind = NULL;
        size_t n_unknown = 0, n_of_kind = 0;
        s->sweep.is_running = false;
        if (p->result < 0 && p->result != -ENOENT)
                log_warning(p->result,
                            "cannot list hard links for '%s'; the next start tries again",
                            p->spec->fixed);
        /* Supplements come last: with a lost database their bases are restored first. */
        for (int is_last = 0; is_last < 2; is_last++)
                LIST_FOREACH_ITEM (const FoundLinks, f, link, &p->found) {
                        if (!f->id || !f->path || is_supplement_id(f->id) != (is_last > 0))
                                continue;
                        LinkFate fate = fate_of(s, f->id);
                        if (fate == LINKS_RELEASE)
                                ended_links_release(s, f->id);
                        else if (fate == LINKS_RECHECK)
                                intake_recheck_links(s, f->id);
                        else if (fate == LINKS_UNKNOWN && !restore_bundle(s, f)) {
                                unknown = n_unknown++ == 0 ? f->path : unknown;
                                if (strncmp(f->id, kind, strlen(kind)) == 0)
                                        of_kind = n_of_kind++ == 0 ? f->path : of_kind;
                        }
                }
        note_unlisted_links(s, n_of_kind, of_kind);
        if (n_unknown > 0)
                log_unknown(unknown, n_unknown);
}

void link_sweep_start(IntakeSource *s) {
        _cleanup_(listing_freep) LinkListing *l = calloc(1, sizeof *l);
        if (!l)
                return; /* the next start lists them */
        list_init(&l->found);
        l->source = s;
        l->spec = source_spec_ref(s->spec);
        l->task = (SourceTask){ .job.run = listing_run, .done = on_listed, .drop = listing_drop };
        if (intake_source_submit(s, &l->task) < 0)
                return;
        (void)TAKE_PTR(l);
        s->sweep.is_running = true;
}

void link_sweep_repeat(IntakeSource *s) {
        if (!s->sweep.is_wanted || s->sweep.is_running)
                return;
        s->sweep.is_wanted = false;
        link_sweep_start(s);
}

void link_sweep_done(IntakeSource *s) {
        free(s->sweep.unlisted);
}
