/* The watch of a source: an event (lib/event/dirwatch.c) leads to a probe of the bundle or of the
 * path that it is about. Events are hints: where there is no watch, and for what it misses, the
 * scan finds what is new. */
#include "agent/intake/source_watch.h"

#include <stdlib.h>
#include <string.h>

#include "agent/intake/path_probes.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"

/* A watch takes memory, here and in the kernel. The directories of one user are at most half. */
void source_watch_init(IntakeContext *c) {
        if (c->watched.max == 0)
                c->watched = (Bound){ .what = "watched directories",
                                      .max = INTAKE_WATCHED_MAX,
                                      .max_each = INTAKE_WATCHED_MAX / 2,
                                      .clock = c->clock };
}

/* @return the bundle that is worked on and has the path in its unit; NULL: none */
static Bundle *bundle_above(IntakeSource *s, const char *relative) {
        _cleanup_free_ char *path = source_unit_path(s, relative);
        size_t least = strlen(s->spec->fixed);
        while (path && strlen(path) >= least) {
                Bundle *b = bundle_table_find_unit(s->context->bundles, s->config->name, path);
                if (b)
                        return b;
                char *slash = strrchr(path, '/');
                if (!slash || slash == path)
                        break;
                *slash = '\0';
        }
        return NULL;
}

static void on_change(const char *relative, bool is_dir, void *userdata) {
        IntakeSource *s = userdata;
        Bundle *b = bundle_above(s, relative);
        /* A loose unit is only the files directly in its directory: what lies deeper is another
         * unit's. */
        if (b && !source_spec_is_loose(s->spec, source_spec_relative(s->spec, b->rec.path))) {
                const uint64_t soon = MAX(REPROBE_USEC, REPROBE_SHARE * b->facts.check_took_usec);
                bool is_probing = source_is_probing(b);
                bool is_settling = b->rec.state == BUNDLE_SETTLING;
                bool is_armed =
                        b->unit.timer && sd_event_source_get_enabled(b->unit.timer, NULL) > 0;
                if (!is_probing &&
                    ((is_settling && !b->unit.dirty) || (bundle_is_underway(b) && !is_armed)))
                        source_probe_bundle_in(b, soon);
                if (is_probing && bundle_is_underway(b))
                        source_set_unit_state(b, UNIT_PROBING_AGAIN);
                b->unit.dirty = true;
                return;
        }
        if (is_dir || s->spec->scan.kind == SOURCE_PROCESS_CORE) {
                path_probes_add(s, relative);
                return;
        }
        const char *slash = strrchr(relative, '/'); /* many files of one directory are one probe */
        _cleanup_free_ char *dir = strndup(relative, slash ? (size_t)(slash - relative) : 0);
        if (dir)
                path_probes_add(s, dir);
}

static void on_rescan(const char *why, void *userdata) {
        IntakeSource *s = userdata;
        log_debug("source %s: scanning, because %s", s->config->name, why);
        s->calls.start_scan(s);
}

/* @param text  the source's from now on; NULL: no memory */
static void log_note(IntakeSource *s, int level, char *text) {
        if (text && (!s->watch.note || strcmp(s->watch.note, text) != 0))
                log_write(level, 0, NULL, "source %s: %s", s->config->name, text);
        free(s->watch.note);
        s->watch.note = text;
}

static void on_degraded(const char *why, const char *remedy, void *userdata) {
        log_note(userdata, LOG_WARNING,
                 strbuf_format("%s%s%s", why, remedy ? "; " : "", remedy ? remedy : ""));
}

void source_watch_start(IntakeSource *s, const char *network_fs) {
        bool is_polled = s->config->watch == CONFIG_WATCH_AUTO && network_fs;
        if (is_polled) /* it may have been mounted since the watch began */
                s->watch.dirwatch = dirwatch_free(s->watch.dirwatch);
        if (s->watch.dirwatch || s->config->watch == CONFIG_WATCH_SCAN)
                return;
        if (is_polled) {
                log_note(s, LOG_NOTICE,
                         strbuf_format("'%s' is on %s, where inotify does not see what other nodes "
                                       "write: scanning every scan_interval instead",
                                       s->spec->fixed, network_fs));
                return;
        }
        DirWatchCallbacks callbacks = { .on_change = on_change,
                                        .on_rescan = on_rescan,
                                        .on_degraded = on_degraded,
                                        .bound = &s->context->watched,
                                        .userdata = s };
        int r = dirwatch_new(&s->watch.dirwatch, s->context->event, s->spec->fixed, &callbacks);
        if (r < 0)
                on_degraded("no inotify instance can be had, so only the scan every scan_interval "
                            "finds what is new",
                            "raise fs.inotify.max_user_instances", s);
}

void source_watch_done(IntakeSource *s) {
        dirwatch_free(s->watch.dirwatch);
        free(s->watch.note);
}
