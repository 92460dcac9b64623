/* Checks what concerns more than one key, after read.c has checked each key alone: sources and
 * destinations that name or overlap each other, limits that must fit together, keys that have no
 * meaning beside others. Each fault names the place of a key. It also appends `/%d-%c` to the path
 * of a destination where incidents go and whose path names neither.
 *
 * That the names in a list differ is checked by config_load.c. Nothing here opens a file, but
 * config_check_files(). */
#include "config/check.h"

#include <errno.h>
#include <pwd.h>
#include <string.h>
#include <unistd.h>

#include "config/config.h"
#include "config/config_private.h"
#include "config/faults.h"
#include "config/keys.h"
#include "config/value.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/http/url.h"

static const char appended[] = "%d-%c";

/* The place of a key; its line is 0 when the key has its default. */
static Spot spot_of(const Config *c, const char *name, size_t index, size_t item) {
        const ConfigOrigin *origin = origins_find(
                c->origins, &(ConfigOrigin){ .key = keys_get(name), .index = index, .item = item });
        return (Spot){
                .line = origin ? origin->line : 0, .name = name, .index = index, .item = item
        };
}

/* @return false when the value in the file is faulty: then the field does not hold it, and checks
 * of it against other fields would report nonsense */
static bool is_valid(const Config *c, const char *name, size_t index) {
        const ConfigOrigin *origin =
                origins_find(c->origins, &(ConfigOrigin){ .key = keys_get(name), .index = index });
        return !origin || !origin->faulty;
}

/* The first of two keys that was given. */
static Spot spot_of_either(const Config *c, const char *name, const char *other, size_t index) {
        Spot spot = spot_of(c, name, index, FAULTS_NO_ITEM);
        return spot.line > 0 ? spot : spot_of(c, other, index, FAULTS_NO_ITEM);
}

/* Names */

static void check_own_name(const Config *c, Faults *faults, size_t i) {
        const char *name = c->sources[i].name;
        Spot spot = spot_of(c, "sources[].name", i, FAULTS_NO_ITEM);

        if (name && strcmp(name, AGENT_SOURCE) == 0)
                faults_add(faults, &spot, "give it another name",
                           "'%s' is reserved for what the agent itself makes, such as snapshots",
                           name);
}

static void report_no_destination(const Config *c, Faults *faults, const Spot *spot,
                                  const char *name) {
        _cleanup_(strbuf_done) StrBuf remedy = STRBUF_INIT;
        size_t n = 0;

        strbuf_add(&remedy, "use one of: ");
        for (size_t i = 0; i < c->n_destinations; i++)
                if (c->destinations[i].name)
                        strbuf_addf(&remedy, "%s%s", n++ > 0 ? ", " : "", c->destinations[i].name);
        faults_add(faults, spot, n > 0 ? remedy.text : "add it to `destinations:`",
                   "unknown destination '%s'", name);
}

static void resolve_destinations(const Config *c, Faults *faults, size_t i) {
        const StringList *names = &c->sources[i].destinations;
        Spot given = spot_of(c, "sources[].destinations", i, FAULTS_NO_ITEM);

        if (given.line == 0)
                return; /* all of them */
        for (size_t k = 0; k < names->n; k++) {
                Spot spot = spot_of(c, "sources[].destinations", i, k + 1);
                if (!config_find_destination(c, names->items[k]))
                        report_no_destination(c, faults, &spot, names->items[k]);
                for (size_t other = 0; other < k; other++)
                        if (strcmp(names->items[k], names->items[other]) == 0) {
                                faults_add(faults, &spot, "delete one of them",
                                           "'%s' is in the list twice", names->items[k]);
                                break;
                        }
        }
}

/* Paths */

static bool has_incident(const Config *c, const ConfigDestination *d) {
        for (size_t i = 0; i < c->n_sources; i++)
                if (c->sources[i].kind == CONFIG_NEURON_CORE_DUMP &&
                    string_list_has(&c->sources[i].destinations, d->name))
                        return true;
        return false;
}

/* Bundles of one incident must meet in one directory, so a path or prefix with neither `%d` nor
 * `%c` gets `/%d-%c` appended. */
static int append_identity(Config *c, Faults *faults, size_t i) {
        ConfigDestination *d = &c->destinations[i];
        const char *name = d->type == CONFIG_S3 ? "destinations[].prefix" : "destinations[].path";
        char **field = d->type == CONFIG_S3 ? &d->prefix : &d->path, *longer;
        ConfigOrigin *origin =
                origins_find(c->origins, &(ConfigOrigin){ .key = keys_get(name), .index = i });

        if (!*field || form_find_variable(*field, "dc") || !has_incident(c, d))
                return 0;
        size_t max = keys_get(name)->max > 0 ? keys_get(name)->max : KEYS_STRING_MAX;
        if (strlen(*field) + 1 + strlen(appended) > max) {
                Spot spot = spot_of(c, name, i, FAULTS_NO_ITEM);
                faults_add(faults, &spot, "use a shorter one, or use %d and %c in it",
                           "is too long to have '/%%d-%%c' appended");
                return 0;
        }
        longer = path_join(*field, appended);
        if (!longer)
                return -ENOMEM;
        free(*field);
        *field = longer;
        if (origin)
                origin->appended = true;
        return 0;
}

static bool is_nested(const char *a, const char *b) {
        return path_is_below(a, b) || path_is_below(b, a);
}

/* @return the fixed part of a path template, the caller's; NULL when the key was faulty, and for
 * lack of memory: then *failed is set */
static char *fixed_part(const char *path, bool *failed) {
        char *fixed = path ? form_fixed_part(path) : NULL;

        *failed = *failed || (path && !fixed);
        return fixed;
}

static int check_overlap(const Config *c, Faults *faults, size_t i) {
        bool failed = false;
        Spot spot = spot_of(c, "sources[].path", i, FAULTS_NO_ITEM);
        _cleanup_free_ char *mine = fixed_part(c->sources[i].path, &failed);

        for (size_t k = 0; mine && k < i; k++) {
                _cleanup_free_ char *other = fixed_part(c->sources[k].path, &failed);
                if (!other || !is_nested(mine, other))
                        continue;
                faults_add(
                        faults, &spot,
                        "use one source for both, or directories that do not lie inside each other",
                        "watches '%s' (source '%s'), which overlaps with '%s' (source '%s')", mine,
                        c->sources[i].name ? c->sources[i].name : "", other,
                        c->sources[k].name ? c->sources[k].name : "");
                break;
        }
        for (size_t k = 0; mine && k < c->n_destinations; k++) {
                _cleanup_free_ char *to = fixed_part(c->destinations[k].path, &failed);
                if (to && is_nested(mine, to))
                        faults_add(faults, &spot,
                                   "keep sources and destinations apart, else bundles would be "
                                   "collected again",
                                   "watches '%s', but destinations[%zu] writes to '%s'", mine, k,
                                   to);
        }
        if (mine && c->state_directory && path_is_below(c->state_directory, mine))
                faults_add(faults, &spot, "use a state directory outside of the sources",
                           "watches '%s', but the agent's state lies in '%s'", mine,
                           c->state_directory);
        return failed ? -ENOMEM : 0;
}

static int check_paths(Config *c, Faults *faults) {
        int r = 0;

        for (size_t i = 0; i < c->n_sources; i++)
                resolve_destinations(c, faults, i);
        for (size_t i = 0; r == 0 && i < c->n_destinations; i++)
                r = append_identity(c, faults, i);
        for (size_t i = 0; r == 0 && i < c->n_sources; i++)
                r = check_overlap(c, faults, i);
        return r;
}

/* Limits that must fit together */

/* Memory by compression level, rounded up; each row counts up to its level: what one thread's
 * compression context takes, and the least with which a bundle can be written. lib/bundle knows the
 * latter, but config/ must not include it: tests/config/test_memory.c compares the two.
 * @see ZSTD_estimateCCtxSize(), libzstd 1.4.8 to 1.5.4: 48.5 MiB at level 12;
 * ZSTD_estimateCCtxSize_usingCParams() for frames of 2 MiB, and two frames in flight, in and out */
static const struct {
        uint64_t level, context_mib, writer_mib;
} memory_steps[] = { { 1, 2, 9 },    { 3, 2, 10 },   { 4, 4, 11 },
                     { 6, 4, 12 },   { 8, 7, 15 },   { 9, 13, 21 },
                     { 11, 25, 33 }, { 12, 50, 33 }, { UINT64_MAX, 50, 42 } };

static size_t memory_step(uint64_t level) {
        size_t i = 0;

        while (level > memory_steps[i].level)
                i++;
        return i;
}

uint64_t config_writer_bytes(uint64_t level) {
        return memory_steps[memory_step(level)].writer_mib * MIB;
}

static void check_compression(const Config *c, Faults *faults) {
        uint64_t threads = MAX(c->limits.compression_threads, (uint64_t)1); /* auto: one at least */
        uint64_t need =
                threads * memory_steps[memory_step(c->limits.compression_level)].context_mib * MIB;
        char max[PARSE_FORMAT_SIZE], size[PARSE_FORMAT_SIZE];
        Spot spot = spot_of_either(c, "limits.compression_level", "limits.compression_threads", 0);

        if (need > c->limits.memory_max_bytes)
                faults_add(faults, &spot,
                           "lower the level or the threads, or raise limits.memory_max",
                           "compression takes %s with %u threads at level %u, more than "
                           "limits.memory_max, %s",
                           parse_format_bytes(size, need), (unsigned)threads,
                           (unsigned)c->limits.compression_level,
                           parse_format_bytes(max, c->limits.memory_max_bytes));
}

uint64_t config_memory_needed(const ConfigDestination *d, uint64_t writer_min_bytes) {
        /* The frame that makes a part large enough still goes into it, so a part can be one frame
         * larger. One part is sent while the next one is made. */
        return d->type == CONFIG_S3 ? 2 * (d->part_size_bytes + 2 * MIB) + writer_min_bytes
                                    : writer_min_bytes;
}

/* Rounds up to whole MiB, for messages. */
static uint64_t round_up(uint64_t bytes) {
        return (bytes + MIB - 1) / MIB * MIB;
}

static void check_parts(const Config *c, Faults *faults, size_t i) {
        static const char part_size[] = "destinations[].part_size";
        const ConfigDestination *d = &c->destinations[i];
        uint64_t writer = config_writer_bytes(c->limits.compression_level),
                 max = c->limits.memory_max_bytes, need = config_memory_needed(d, writer);
        char part[PARSE_FORMAT_SIZE], needed[PARSE_FORMAT_SIZE], allowed[PARSE_FORMAT_SIZE];
        _cleanup_(strbuf_done) StrBuf remedy = STRBUF_INIT;
        Spot spot = spot_of(c, part_size, i, FAULTS_NO_ITEM);

        if (d->type != CONFIG_S3 || need <= max || !is_valid(c, part_size, i) ||
            !is_valid(c, "limits.compression_level", 0))
                return;
        if (spot.line == 0)
                spot.line = d->line;
        parse_format_bytes(needed, round_up(need));
        strbuf_addf(&remedy, "set limits.memory_max to %s or more", needed);
        if (max >= writer + 2 * (keys_get(part_size)->min + 2 * MIB)) {
                char fits[PARSE_FORMAT_SIZE];
                uint64_t part_max = (max - writer) / 2 - 2 * MIB;
                parse_format_bytes(fits, part_max / MIB * MIB);
                strbuf_addf(&remedy, ", or part_size to %s or less", fits);
        }
        faults_add(faults, &spot, remedy.text,
                   "parts of %s at compression level %u take %s of memory, more than "
                   "limits.memory_max, %s",
                   parse_format_bytes(part, d->part_size_bytes),
                   (unsigned)c->limits.compression_level, needed, parse_format_bytes(allowed, max));
}

static void check_memory(const Config *c, Faults *faults) {
        char max[PARSE_FORMAT_SIZE], memory[PARSE_FORMAT_SIZE];
        Spot spot = spot_of_either(c, "limits.memory_max", "limits.memory", 0);

        if (!is_valid(c, "limits.memory_max", 0))
                return;
        if (is_valid(c, "limits.memory", 0) && c->limits.memory_max_bytes < c->limits.memory_bytes)
                faults_add(faults, &spot, "raise limits.memory_max, or lower limits.memory",
                           "limits.memory_max, %s, is below limits.memory, %s",
                           parse_format_bytes(max, c->limits.memory_max_bytes),
                           parse_format_bytes(memory, c->limits.memory_bytes));
        check_compression(c, faults);
        for (size_t i = 0; i < c->n_destinations; i++)
                check_parts(c, faults, i);
}

static void check_window(const Config *c, Faults *faults, size_t i) {
        static const char from[] = "limits.upload_windows[].from",
                          to[] = "limits.upload_windows[].to";
        const ConfigWindow *w = &c->limits.upload_windows[i];
        Spot spot = spot_of(c, to, i, FAULTS_NO_ITEM);
        bool given = spot_of(c, from, i, FAULTS_NO_ITEM).line > 0 && spot.line > 0;

        if (given && is_valid(c, from, i) && is_valid(c, to, i) && w->from_minute == w->to_minute)
                faults_add(faults, &spot,
                           "use another time, or limits.upload_rate for the whole day",
                           "the window ends when it begins");
}

static void check_times(const Config *c, Faults *faults) {
        Spot spot = spot_of_either(c, "retry.maximum", "retry.initial", 0);

        if (is_valid(c, "retry.maximum", 0) && is_valid(c, "retry.initial", 0) &&
            c->retry.maximum_usec < c->retry.initial_usec)
                faults_add(faults, &spot, "raise retry.maximum, or lower retry.initial",
                           "retry.maximum is below retry.initial");
        for (size_t i = 0; i < c->n_sources; i++) {
                spot = spot_of_either(c, "sources[].max_wait", "sources[].settle", i);
                if (is_valid(c, "sources[].max_wait", i) && is_valid(c, "sources[].settle", i) &&
                    c->sources[i].max_wait_usec < c->sources[i].settle_usec)
                        faults_add(faults, &spot, "raise max_wait, or lower settle",
                                   "max_wait is below settle, so every bundle would go out "
                                   "incomplete");
        }
        for (size_t i = 0; i < c->limits.n_upload_windows; i++)
                check_window(c, faults, i);
}

static void check_sockets(const Config *c, Faults *faults) {
        Spot spot = spot_of_either(c, "hook.socket", "api.socket", 0);

        if (strcmp(c->api.socket, c->hook.socket) == 0)
                faults_add(faults, &spot, "use two paths",
                           "api.socket and hook.socket are both '%s'", c->api.socket);
}

static void check_key_id(const Config *c, Faults *faults, size_t i) {
        const ConfigDestination *d = &c->destinations[i];
        Spot spot = spot_of(c, "destinations[].kms_key_id", i, FAULTS_NO_ITEM);

        if (d->kms_key_id[0] && is_valid(c, "destinations[].sse", i) &&
            strcmp(d->sse, "aws:kms") != 0)
                faults_add(faults, &spot, "add `sse: aws:kms`, or delete the line",
                           "has no meaning with sse: %s", d->sse);
}

/* `addressing: virtual` puts the bucket's name before the endpoint's host, and `bucket.127.0.0.1`
 * is no host name. */
static void check_addressing(const Config *c, Faults *faults, size_t i) {
        const ConfigDestination *d = &c->destinations[i];
        _cleanup_(url_done) Url url = { 0 };
        Spot spot = spot_of(c, "destinations[].addressing", i, FAULTS_NO_ITEM);

        if (strcmp(d->addressing, "virtual") == 0 && url_parse(&url, d->endpoint) == 0 &&
            url.is_address)
                faults_add(faults, &spot, "use path, or a host name in the endpoint",
                           "puts the bucket's name before a host name, but the endpoint, '%s', "
                           "has an address",
                           d->endpoint);
}

static void check_command(const Config *c, Faults *faults, size_t i) {
        const StringList *run = &c->snapshot.commands[i].run;
        Spot spot = spot_of(c, "snapshot.commands[].run", i, 1);
        _cleanup_(strbuf_done) StrBuf shown = STRBUF_INIT;

        if (run->n == 0 || run->items[0][0] == '/')
                return;
        text_add_shown(&shown, run->items[0]);
        faults_add(faults, &spot, "write the absolute path of the program",
                   "%s is not an absolute path", strbuf_error(&shown) < 0 ? "it" : shown.text);
}

/* With `after_delivery: keep` the agent deletes no source at all, so it cannot evict undelivered
 * ones. */
static void check_retention(const Config *c, Faults *faults) {
        Spot spot = spot_of(c, "retention.evict_undelivered", 0, FAULTS_NO_ITEM);

        if (c->retention.evict_oldest && !c->retention.delete_after_delivery &&
            is_valid(c, "retention.after_delivery", 0))
                faults_add(faults, &spot, "use never, or also set retention.after_delivery: delete",
                           "with after_delivery: keep no source is ever deleted, so none can be "
                           "evicted");
}

/* @return whether a hook note may choose any key of the bucket: without hook.allow_prefixes, it may
 * choose keys below the fixed part of the destination's prefix */
static bool allows_whole_bucket(const Config *c, const ConfigDestination *d) {
        _cleanup_free_ char *fixed = form_fixed_part(d->prefix);

        for (size_t i = 0; i < c->hook.allow_prefixes.n; i++) {
                const char *bucket = c->hook.allow_prefixes.items[i] + strlen("s3://");
                size_t n = strlen(d->bucket);
                if (strncmp(bucket, d->bucket, n) == 0 && !bucket[n + strspn(bucket + n, "/")])
                        return true;
        }
        return c->hook.allow_prefixes.n == 0 && fixed && !fixed[strspn(fixed, "/")];
}

/* A name that this machine does not know matches no uid, so the agent would not believe the files
 * of that user (lib/neuron/agent_uid.h). */
static void print_unknown_users(const Config *c, FILE *f) {
        for (size_t i = 0; i < c->agreement.trusted_uids.n; i++) {
                const char *user = c->agreement.trusted_uids.items[i];
                if (user[strspn(user, "0123456789")] != '\0' && !getpwnam(user))
                        fprintf(f,
                                "%s:%u: warning: agreement.trusted_uids[%zu]: this machine knows "
                                "no "
                                "user '%s'; write the number\n",
                                c->file ? c->file : "?",
                                spot_of(c, "agreement.trusted_uids", 0, i + 1).line, i, user);
        }
}

void config_print_warnings(const Config *c, FILE *f) {
        print_unknown_users(c, f);
        for (size_t i = 0; i < c->n_destinations; i++)
                if (c->destinations[i].type == CONFIG_S3 &&
                    allows_whole_bucket(c, &c->destinations[i]))
                        fprintf(f,
                                "%s:%u: warning: destinations[%zu].prefix: a hook note may choose "
                                "any place in the bucket '%s'; begin the prefix with a fixed part, "
                                "such as neuron/%%d-%%c, or name that in hook.allow_prefixes\n",
                                c->file ? c->file : "?",
                                spot_of(c, "destinations[].prefix", i, FAULTS_NO_ITEM).line, i,
                                c->destinations[i].bucket);
}

size_t config_check_files(const Config *c, Diags *diags) {
        Faults faults = { .file = c->file, .diags = diags };

        for (size_t i = 0; i < c->n_destinations; i++) {
                const char *path = c->destinations[i].ca_file;
                Spot spot = spot_of(c, "destinations[].ca_file", i, FAULTS_NO_ITEM);
                if (c->destinations[i].type == CONFIG_S3 && path[0] && access(path, R_OK) < 0 &&
                    errno != EACCES) /* the agent may be another user */
                        faults_add(&faults, &spot,
                                   "write the path of a file in PEM, or delete the "
                                   "line for the system's certificates",
                                   "'%s' cannot be read: %s", path, strerror(errno));
        }
        return faults.n;
}

int config_check(Config *c, Faults *faults) {
        int r;

        for (size_t i = 0; i < c->n_sources; i++)
                check_own_name(c, faults, i);
        r = check_paths(c, faults);
        if (r < 0)
                return r;
        check_memory(c, faults);
        check_times(c, faults);
        check_retention(c, faults);
        check_sockets(c, faults);
        for (size_t i = 0; i < c->n_destinations; i++) {
                check_key_id(c, faults, i);
                check_addressing(c, faults, i);
        }
        for (size_t i = 0; i < c->snapshot.n_commands; i++)
                check_command(c, faults, i);
        return 0;
}
