/* neuron-collect ls: lists the bundles below a URL, by incident. The key says what a bundle is; the
 * beginning of its manifest says whether it was delivered and is complete. Manifests are read many
 * at once, and printed incident by incident, so a long list needs little memory. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/archive/object_store.h"
#include "cli/common/cli.h"
#include "lib/base/array.h"
#include "lib/base/clock.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/bundle/manifest.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/ids.h"
#include "lib/neuron/names.h"

#define BATCH                                                                                      \
        512 /* bundles whose manifests are checked together, and then some to the incident's end   \
             */
#define BATCH_MAX (16 * BATCH) /* an incident that large is reported in several groups */
#define DRAW_EVERY 100
#define OWNER_SIZE 40
#define HEAD_BYTES (64 * KIB) /* of a manifest: 500 parts and more */

typedef enum EntryState {
        ENTRY_COMPLETE,
        ENTRY_INCOMPLETE,
        ENTRY_NO_MANIFEST,
        ENTRY_NO_OBJECT,
        ENTRY_WRONG_SIZE,
        ENTRY_BAD_MANIFEST,
} EntryState;

/* What the key of an object or manifest says; "" where it does not. Borrows parts of the key. */
typedef struct BundleInfo {
        const char *name; /* the stem's last component */
        const char *node;
        size_t n_node;
        size_t n_incident; /* the first so many bytes of the key are the incident's directory; 0 =
                              none */
        char kind[24];
        char time[CLOCK_ISO_SIZE]; /* ISO 8601, UTC */
        char date_time[DATE_TIME_SIZE],
                cluster_id[CLUSTER_ID_SIZE]; /* when the incident's directory is `<date>-<cluster
                                                id>` */
} BundleInfo;
typedef struct ListedBundle {
        char *stem;
        BundleInfo what; /* borrows stem */
        bool has_object, has_manifest;
        uint64_t bytes, modified_usec, manifest_bytes;
        int64_t owner; /* of the manifest, else of the object */
        EntryState state;
        bool is_read;  /* the manifest was read, or its fault reported */
        char *reasons; /* JSON; NULL */
        json_t *failure;
} ListedBundle;

typedef struct Ls {
        const Cli *cli;
        ObjectStore *store;
        ListedBundle *entries;
        size_t n;
        uint64_t n_told;
        json_t *incidents; /* for --json; NULL: printed */
        uint64_t n_bad;    /* manifests that could not be read */
        bool failed;
        VolumeOwners owners;
} Ls;

/* ---- the key of an object or manifest ---- */

/* `<kind>-<yyyymmddTHHMMSS>-<12 hex>[-sN]` */
static void read_id(const char *id, BundleInfo *ret) {
        if (!bundle_id_is_valid(id))
                return;
        for (SourceKind k = 0; k < N_SOURCE_KINDS; k++) {
                const char *kind = source_kind_name(k);
                size_t n = strlen(kind);
                const char *t = id + n + 1;
                if (strncmp(id, kind, n) != 0 || id[n] != '-' || t[8] != 'T')
                        continue;
                snprintf(ret->kind, sizeof ret->kind, "%s", kind);
                snprintf(ret->time, sizeof ret->time, "%.4s-%.2s-%.2sT%.2s:%.2s:%.2sZ", t, t + 4,
                         t + 6, t + 9, t + 11, t + 13);
        }
}

/* Reads the name of an incident's directory, or of a directory beside it, which ends in `.<node>`.
 */
static void read_incident(const char *directory, size_t n, BundleInfo *ret) {
        size_t n_node = ret->n_node;
        if (n_node > 0 && n > n_node && directory[n - n_node - 1] == '.' &&
            memcmp(directory + n - n_node, ret->node, n_node) == 0)
                n -= n_node + 1;
        _cleanup_free_ char *path = strndup(directory, n);
        PathTemplate *t;
        TemplateValues values;
        char bad;
        if (!path || path_template_new(&t, "/%d-%c", "dc", &bad) < 0)
                return;
        if (path_template_match(t, path_name(path), &values)) {
                memcpy(ret->date_time, values.date_time, sizeof ret->date_time);
                memcpy(ret->cluster_id, values.cluster_id, sizeof ret->cluster_id);
        }
        path_template_free(t);
}

static bool is_dots(const char *s, size_t n) {
        return n <= 2 && strncmp(s, "..", n) == 0;
}

/* @param stem  `<prefix>/<instance-id>/<bundle-id>`; of anything else only the directory is
 * reported. Outlives *ret */
static void bundle_info_parse(const char *stem, BundleInfo *ret) {
        *ret = (BundleInfo){ .name = path_name(stem), .node = "" };
        read_id(ret->name, ret);
        if (ret->name == stem)
                return;
        const char *end = ret->name - 1, *node = end;
        ret->n_incident = (size_t)(end - stem);
        if (!ret->kind[0]) /* an agent has not named it, so its directory has no meaning */
                return;
        while (node > stem && node[-1] != '/')
                node--;
        if (is_dots(node, (size_t)(end - node)))
                return;
        ret->node = node;
        ret->n_node = (size_t)(end - node);
        ret->n_incident = node > stem ? (size_t)(node - 1 - stem) : 0;
        read_incident(stem, ret->n_incident, ret);
}

/* ---- gathering ---- */

static void entries_clear(Ls *l) {
        for (size_t i = 0; i < l->n; i++) {
                free(l->entries[i].stem);
                free(l->entries[i].reasons);
                json_decref(l->entries[i].failure);
        }
        l->n = 0;
}

static bool is_same_incident(const ListedBundle *a, const ListedBundle *b) {
        return a->what.n_incident == b->what.n_incident &&
               memcmp(a->stem, b->stem, a->what.n_incident) == 0;
}

/* Finds or adds the entry of a key: the two files of a bundle come one after the other.
 * @return NULL for lack of memory */
static ListedBundle *entry_of(Ls *l, const char *key, size_t n_stem) {
        ListedBundle *last = l->n > 0 ? &l->entries[l->n - 1] : NULL;
        if (last && strlen(last->stem) == n_stem && memcmp(last->stem, key, n_stem) == 0)
                return last;
        if (array_grow(&l->entries, l->n, sizeof *l->entries) < 0)
                return NULL;
        ListedBundle *e = &l->entries[l->n];
        *e = (ListedBundle){ .stem = strndup(key, n_stem) };
        if (!e->stem)
                return NULL;
        bundle_info_parse(e->stem, &e->what);
        l->n++;
        return e;
}

/* ---- manifests ---- */

static bool read_manifest(ListedBundle *e, const ObjectHead *h) {
        ManifestHead head;
        if (!h->text || manifest_read_head(h->text, h->n, &head) < 0)
                return false;
        json_decref(e->failure);
        e->state = !e->has_object           ? ENTRY_NO_OBJECT
                   : head.bytes != e->bytes ? ENTRY_WRONG_SIZE
                   : head.complete          ? ENTRY_COMPLETE
                                            : ENTRY_INCOMPLETE;
        e->reasons = TAKE_PTR(head.reasons);
        e->failure = head.failure ? json_loads(head.failure, 0, NULL) : NULL;
        manifest_head_done(&head);
        return true;
}

/* Counts a manifest that cannot be read. Only the first is reported, since many may have one cause.
 * @param why  NULL: it is not a manifest */
static void report_bad_manifest(Ls *l, const ListedBundle *e, const char *why) {
        _cleanup_free_ char *url = object_store_url(l->store, e->stem);
        l->failed = true;
        if (l->n_bad++ > 0)
                return;
        if (why)
                cli_error("%s", why);
        else
                cli_error("'%s" MANIFEST_SUFFIX "' is not a manifest", url ? url : e->stem);
}

/* Reads max_bytes of each manifest that was not read yet. @return 0, -errno */
static int read_manifests(Ls *l, size_t max_bytes, bool is_last_try) {
        _cleanup_free_ ObjectHead *heads = calloc(l->n, sizeof *heads);
        _cleanup_free_ ListedBundle **of = calloc(l->n, sizeof *of);
        size_t n = 0;
        int r = heads && of ? 0 : -ENOMEM;
        for (size_t i = 0; r == 0 && i < l->n; i++) {
                ListedBundle *e = &l->entries[i];
                if (e->is_read)
                        continue;
                _cleanup_free_ char *key = bundle_manifest_name(e->stem);
                if (!key)
                        r = -ENOMEM;
                of[n] = e;
                heads[n++] = (ObjectHead){ .key = TAKE_PTR(key), .max_bytes = max_bytes };
        }
        if (r == 0)
                r = object_store_read_heads(l->store, heads, n);
        for (size_t i = 0; i < n; i++) {
                ListedBundle *e = of[i];
                bool is_all = is_last_try || heads[i].error || heads[i].n < max_bytes;
                e->is_read = r == 0 && (read_manifest(e, &heads[i]) || is_all);
                if (e->is_read && e->state == ENTRY_BAD_MANIFEST)
                        report_bad_manifest(l, e, heads[i].error);
                free((char *)heads[i].key);
                object_head_done(&heads[i]);
        }
        return r;
}

static int classify_entries(Ls *l) {
        for (size_t i = 0; i < l->n; i++) {
                ListedBundle *e = &l->entries[i];
                e->state = e->has_manifest ? ENTRY_BAD_MANIFEST : ENTRY_NO_MANIFEST;
                e->is_read = !e->has_manifest || e->manifest_bytes == 0;
                if (e->has_manifest && e->is_read) /* a range of nothing cannot be requested */
                        report_bad_manifest(l, e, NULL);
        }
        int r = read_manifests(l, HEAD_BYTES, false);
        return r == 0 ? read_manifests(l, MANIFEST_HEAD_MAX_BYTES, true) : r;
}

/* ---- printing ---- */

static const char *const state_texts[] = {
        [ENTRY_COMPLETE] = "complete",
        [ENTRY_INCOMPLETE] = "INCOMPLETE",
        [ENTRY_NO_MANIFEST] = "not delivered (no manifest)",
        [ENTRY_NO_OBJECT] = "manifest without its object",
        [ENTRY_WRONG_SIZE] = "size differs from its manifest",
        [ENTRY_BAD_MANIFEST] = "manifest cannot be read",
};

/* @return the time in the key, else the time when the object was written */
static const char *entry_time(const ListedBundle *e, char buf[static CLOCK_ISO_SIZE]) {
        char moment[CLI_MOMENT_SIZE];
        if (e->what.time[0])
                return e->what.time;
        cli_moment(moment, clock_format_iso(buf, e->modified_usec));
        return strcpy(buf, moment);
}

static void print_entry(const Ls *l, const ListedBundle *e) {
        char bytes[PARSE_FORMAT_SIZE], time[CLOCK_ISO_SIZE], failure[CLI_FAILURE_SIZE];
        char owner[OWNER_SIZE] = "";
        _cleanup_free_ char *url = object_store_url(l->store, e->stem);
        if (!volume_owners_has(&l->owners, e->owner))
                snprintf(owner, sizeof owner, "  owner: uid %lld", (long long)e->owner);
        cli_part("  %s  %-19.*s  %-16s  %10s  ", entry_time(e, time),
                 e->what.n_node ? (int)e->what.n_node : 1, e->what.n_node ? e->what.node : "-",
                 e->what.kind[0] ? e->what.kind : "-", parse_format_human(bytes, e->bytes));
        cli_state(l->cli, state_texts[e->state], 10);
        cli_line("  %s%s%s%s%s", url ? url : e->stem,
                 e->has_object ? BUNDLE_SUFFIX : MANIFEST_SUFFIX, e->failure ? "  failure: " : "",
                 cli_failure_text(failure, e->failure), owner);
}

static json_t *entry_json(const Ls *l, const ListedBundle *e) {
        char time[CLOCK_ISO_SIZE];
        _cleanup_free_ char *url = NULL, *stem = object_store_url(l->store, e->stem),
                            *node = strndup(e->what.node, e->what.n_node);
        if (!stem || !node ||
            asprintf(&url, "%s%s", stem, e->has_object ? BUNDLE_SUFFIX : MANIFEST_SUFFIX) < 0) {
                url = NULL;
                return NULL;
        }
        bool is_known = e->state == ENTRY_COMPLETE || e->state == ENTRY_INCOMPLETE;
        return json_pack("{s:o, s:o, s:o, s:s?, s:s, s:I, s:b, s:o, s:o, s:O?, s:s?, s:o}", "url",
                         cli_json_string(url), "name", cli_json_string(e->what.name), "node",
                         cli_json_string(node), "kind", e->what.kind[0] ? e->what.kind : NULL,
                         "time", entry_time(e, time), "bytes", (json_int_t)e->bytes, "delivered",
                         is_known, "complete",
                         is_known ? json_boolean(e->state == ENTRY_COMPLETE) : json_null(),
                         "reasons", e->reasons ? json_loads(e->reasons, 0, NULL) : json_array(),
                         "failure", e->failure, "fault", is_known ? NULL : state_texts[e->state],
                         "owner", e->owner == OWNER_UNKNOWN ? json_null() : json_integer(e->owner));
}

/* @return the number of nodes of the bundles [from, to) of an incident, which are sorted by node */
static uint64_t count_nodes(const Ls *l, size_t from, size_t to) {
        uint64_t n = 0;
        for (size_t i = from; i < to; i++) {
                const BundleInfo *w = &l->entries[i].what,
                                 *before = i > from ? &l->entries[i - 1].what : NULL;
                n += !before || w->n_node != before->n_node ||
                     memcmp(w->node, before->node, w->n_node) != 0;
        }
        return n;
}

static int print_incident_json(const Ls *l, size_t from, size_t to) {
        const BundleInfo *w = &l->entries[from].what;
        _cleanup_free_ char *directory = strndup(l->entries[from].stem, w->n_incident),
                            *url = directory ? object_store_url(l->store, directory) : NULL;
        json_auto_t *bundles = json_array();
        int r = url && bundles ? 0 : -ENOMEM;
        for (size_t i = from; r == 0 && i < to; i++)
                if (json_array_append_new(bundles, entry_json(l, &l->entries[i])) < 0)
                        r = -ENOMEM;
        json_t *one =
                r < 0 ? NULL
                      : json_pack("{s:o, s:s?, s:s?, s:O}", "incident", cli_json_string(url),
                                  "date_time", w->date_time[0] ? w->date_time : NULL, "cluster_id",
                                  w->cluster_id[0] ? w->cluster_id : NULL, "bundles", bundles);
        return json_array_append_new(l->incidents, one) < 0 ? -ENOMEM : 0;
}

static void print_incident(const Ls *l, size_t from, size_t to) {
        uint64_t bytes = 0;
        for (size_t i = from; i < to; i++)
                bytes += l->entries[i].bytes;
        char size[PARSE_FORMAT_SIZE], bundles[CLI_COUNT_SIZE], nodes[CLI_COUNT_SIZE];
        _cleanup_free_ char *directory =
                strndup(l->entries[from].stem, l->entries[from].what.n_incident);
        _cleanup_free_ char *url = object_store_url(l->store, directory ? directory : "");
        cli_line("%s: %s of %s, %s", url && *url ? url : ".",
                 cli_count(bundles, to - from, "bundle"),
                 cli_count(nodes, count_nodes(l, from, to), "node"),
                 parse_format_human(size, bytes));
        for (size_t i = from; i < to; i++)
                print_entry(l, &l->entries[i]);
}

/* Reads the manifests of the gathered bundles, and prints them. @return 0, -errno; -EPIPE: stdout
 * was closed */
static int flush(Ls *l) {
        int r = l->n > 0 ? classify_entries(l) : 0;
        cli_progress_end();
        for (size_t from = 0, to; r == 0 && from < l->n; from = to) {
                for (to = from + 1; to < l->n; to++)
                        if (!is_same_incident(&l->entries[from], &l->entries[to]))
                                break;
                if (l->incidents)
                        r = print_incident_json(l, from, to);
                else
                        print_incident(l, from, to);
        }
        l->n_told += l->n;
        entries_clear(l);
        if (!l->incidents && (fflush(stdout) != 0 || ferror(stdout)))
                return -EPIPE;
        return r;
}

static int on_item(const ObjectItem *item, void *userdata) {
        Ls *l = userdata;
        size_t n_stem;
        BundleFile file = bundle_file_kind(item->key, &n_stem);
        if (file == BUNDLE_NEITHER)
                return 0;
        ListedBundle *e = entry_of(l, item->key, n_stem);
        if (!e)
                return -ENOMEM;
        if (file == BUNDLE_OBJECT) {
                e->has_object = true;
                e->bytes = item->bytes;
                e->owner = e->has_manifest ? e->owner : item->owner;
        } else {
                e->has_manifest = true;
                e->owner = item->owner;
                e->manifest_bytes = item->bytes;
        }
        e->modified_usec = MAX(e->modified_usec, item->modified_usec);
        if ((l->n_told + l->n) % DRAW_EVERY == 0)
                cli_progress(l->cli, "%llu bundles", (unsigned long long)(l->n_told + l->n));
        /* the second file of the last bundle may still follow, so only those before it are printed
         */
        bool goes =
                l->n > BATCH_MAX || (l->n > BATCH && !is_same_incident(&l->entries[l->n - 2], e));
        if (!goes)
                return 0;
        ListedBundle last = *e;
        l->n--;
        int r = flush(l);
        l->entries[0] = last;
        l->n = 1;
        return r;
}

/* ---- the command ---- */

/* @return the prefix of the keys to list: the URL may also name one bundle; the caller's */
static char *list_prefix(const ObjectUrl *url, ObjectStore *store) {
        size_t n;
        uint64_t bytes;
        if (bundle_file_kind(url->key, &n) != BUNDLE_NEITHER &&
            (url->bucket || object_store_stat(store, url->key, &bytes) == 0))
                return strndup(url->key, n);
        if (url->bucket)
                return strdup(url->key);
        return strbuf_format("%s%s", url->key, strcmp(url->key, "/") == 0 ? "" : "/");
}

static int list_below(Ls *l, const char *prefix) {
        return prefix ? object_store_list(l->store, &(ObjectListing){ .prefix = prefix,
                                                                      .on_item = on_item,
                                                                      .userdata = l })
                      : -ENOMEM;
}

/* Lists the bundles beside an incident's directory, in `<incident>.<instance-id>/`: an agent
 * delivers there when the directory refuses it.
 * @param r  the result for the directory itself, which may be missing
 * @return as object_store_list() */
static int list_beside(Ls *l, const ObjectUrl *url, int r) {
        _cleanup_free_ char *parent = path_parent(url->key),
                            *prefix = strbuf_format("%s.", url->key);
        BundleInfo incident = { .node = "" };
        uint64_t n = l->n_told + l->n;
        if (url->bucket || r < 0)
                return r;
        read_incident(url->key, strlen(url->key), &incident);
        if (!incident.date_time[0])
                return r;
        _cleanup_free_ char *why = r > 0 ? strdup(object_store_error(l->store)) : NULL;
        int e = parent && prefix ? flush(l) : -ENOMEM; /* before the root changes */
        if (e == 0)
                e = object_store_set_root(l->store, parent);
        if (e == 0)
                e = list_below(l, prefix);
        if (e == 0 && r > 0 && n == l->n_told + l->n && why)
                cli_error("%s", why);
        l->failed = l->failed || (e == 0 && r > 0 && n == l->n_told + l->n);
        return e;
}

static int list(Ls *l, const ObjectUrl *url, const char *given) {
        _cleanup_free_ char *prefix = list_prefix(url, l->store);
        int r = list_beside(l, url, list_below(l, prefix));
        _cleanup_free_ char *why = r > 0 ? strdup(object_store_error(l->store)) : NULL;
        int f = r >= 0 ? flush(l) : 0; /* prints what was found, also after a failure */
        entries_clear(l);
        cli_progress_end();
        if (r == -EPIPE || f == -EPIPE)
                return CLI_NO; /* main() reports it */
        if (why) {
                cli_error("%s", why);
                l->failed = true;
        } else if (r < 0 || f < 0)
                return object_store_report(l->store, r < 0 ? r : f);
        if (l->n_bad > 1)
                cli_error("%llu manifests cannot be read or are invalid; the errors of the first "
                          "are above",
                          (unsigned long long)l->n_bad);
        if (l->n_told == 0 && !l->failed)
                cli_error("no bundles below '%s'", given);
        int code = l->incidents ? cli_print_json(l->cli, l->incidents) : CLI_YES;
        return l->failed ? CLI_NO : code;
}

int cmd_ls(const Cli *cli, int argc, char **argv) {
        S3Options s3 = { 0 };
        ObjectUrl url = { 0 };
        int code =
                s3_options_parse(argc, argv, "one URL, s3://bucket[/prefix] or a directory", &s3);
        if (code == CLI_YES)
                code = object_url_parse(argv[0], argv[optind], &url);
        if (code != CLI_YES)
                return code;
        cli_catch_signals();
        Ls l = { .cli = cli, .incidents = cli->json ? json_array() : NULL };
        code = object_store_open(&l.store, cli, &url, &s3);
        volume_owners_init(&l.owners, cli, url.bucket || code != CLI_YES ? NULL : url.key);
        if (code == CLI_YES)
                code = list(&l, &url, argv[optind]);
        volume_owners_done(&l.owners);
        object_store_free(l.store);
        free(l.entries);
        json_decref(l.incidents);
        object_url_done(&url);
        return code;
}
