/* neuron-collect report: prints who took part in a failure, who is missing, who failed first, and
 * where each node's bundles are.
 *
 * It reads the records that nodes have written at a destination, and folds them into the document
 * of incident.json, as an agent does (agent/peers). All that is printed comes from that document,
 * so the published incident.json can replace records that cannot be read. Files of users who are
 * not known as agents' are left out: volume_owners.c. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/peers/incident.h"
#include "agent/peers/incidents_name.h"
#include "agent/peers/record.h"
#include "cli/archive/object_store.h"
#include "cli/common/cli.h"
#include "lib/base/array.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/job.h"
#include "lib/neuron/names.h"
#include "lib/neuron/nrt_status.h"

#define EXIT_UNREADABLE CLI_NO_AGENT /* exit 1 means that a rank is missing */
#define INCIDENT_NAME "incident.json"
#define INCIDENT_BYTES_MAX ((size_t)32 << 20)
#define FOUND_MAX 1000000                 /* names of a listing */
#define CLAIMS_READ_MAX (64 * CLAIMS_MAX) /* of a failure, in all of its records */
#define BUNDLES_READ_MAX CLAIMS_READ_MAX  /* beyond which those of further records are left out */
#define BATCH 16                          /* records that are read together */
#define GROWTH_BYTES (64 * KIB)           /* a record may grow so much after it was listed */
#define CELL_SIZE 160
#define DOCUMENT_DEPTH_MAX 5 /* bundles of nodes of incident.json */

typedef struct ReportObject { /* an object of a failure */
        IncidentsName name;
        uint64_t bytes, modified_usec;
} ReportObject;

typedef struct FailureReport {
        const Cli *cli;
        ObjectStore *store;
        const char *given;        /* the URL */
        const char *html;         /* a path; `-`; NULL */
        const char *trusted;      /* --trust-uid; NULL */
        char *root;               /* the directory of `.incidents`: "" or ends in a slash */
        char key[CLAIM_KEY_SIZE]; /* of the requested failure; "" = all */
        uint32_t n;               /* 0 = the newest of each key */
        json_t *published;        /* incident.json; NULL */
        ReportObject *found;      /* by key; of one number each */
        size_t n_found, first;    /* first: of the last key */
        size_t n_keys;
        bool has_failed; /* something could not be read, which was reported */
        VolumeOwners owners;
        size_t n_listed;   /* of `found`: from `.incidents` itself */
        bool finds_beside; /* the current listing is of records beside `.incidents` */
} FailureReport;

/* ---- which failure ---- */

/* @return the component of a key that is `.incidents`; NULL */
static const char *find_component(const char *key) {
        const size_t n = strlen(INCIDENTS_DIRECTORY);
        const char *at = key;
        while ((at = strstr(at, INCIDENTS_DIRECTORY)) &&
               ((at > key && at[-1] != '/') || (at[n] != '\0' && at[n] != '/')))
                at += n;
        return at;
}

/* `.incidents[/<key>[/<n>[.json]]]`. @return whether it is one */
static bool parse_failure(FailureReport *r, const char *text) {
        uint64_t n = 0;
        const char *at = text + strlen(INCIDENTS_DIRECTORY);
        if (!*at)
                return true;
        snprintf(r->key, sizeof r->key, "%s", at + 1);
        at += 1 + strlen(r->key);
        if (!claim_key_is_valid(r->key) || !*at)
                return claim_key_is_valid(r->key);
        bool is_number = *at++ == '/' && parse_u64_prefix(&at, at + strlen(at), &n) && n >= 1 &&
                         n <= UINT32_MAX;
        r->n = is_number ? (uint32_t)n : 0;
        return is_number && (!*at || strcmp(at, ".json") == 0);
}

/* @return an untrusted document, the caller's; NULL */
static json_t *load_json(const char *text, size_t n) {
        json_t *v = parse_json_exceeds_depth(text, n, DOCUMENT_DEPTH_MAX)
                            ? NULL
                            : json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
        if (json_is_object(v))
                return v;
        json_decref(v);
        return NULL;
}

/* Reads the published document of the directory `root`. @return 0; -ENOENT: there is none that can
 * be read, or it is not an agent's; -errno */
static int read_published(FailureReport *r) {
        _cleanup_free_ char *key = strbuf_format("%s" INCIDENT_NAME, r->root);
        ObjectHead head = { .key = key, .max_bytes = INCIDENT_BYTES_MAX };
        int e = key ? object_store_read_heads(r->store, &head, 1) : -ENOMEM;
        bool counts = e == 0 && head.text && volume_owners_check(&r->owners, head.owner, key);
        r->published = counts ? load_json(head.text, head.n) : NULL;
        object_head_done(&head);
        if (e < 0)
                return e;
        uint64_t n = cli_number(r->published, "n");
        const char *name = cli_text(r->published, "key");
        if (claim_key_is_valid(name) && n >= 1 && n <= UINT32_MAX) {
                snprintf(r->key, sizeof r->key, "%s", name);
                r->n = (uint32_t)n;
                return 0;
        }
        json_decref(TAKE_PTR(r->published));
        return -ENOENT;
}

/* Finds the directory above an incident's that has the decision: the fixed part of the destination.
 * @return 0 and `root`; OBJECT_E_*: none has it; -errno */
static int find_root_above(FailureReport *r, bool is_directory) {
        char name[RECORD_NAME_SIZE];
        _cleanup_free_ char *at = is_directory ? realpath(r->root, NULL) : strdup(r->root);
        int result = OBJECT_E_NOT_FOUND;
        decision_object_name(r->key, r->n, name);
        for (size_t n = at ? strlen(at) : 0; n > 0;) {
                uint64_t bytes;
                while (n > 0 && at[n - 1] == '/')
                        n--;
                while (n > 0 && at[n - 1] != '/')
                        n--;
                _cleanup_free_ char *key = strbuf_format("%.*s%s", (int)n, at, name),
                                    *root = strndup(at, n);
                int e = key && root ? object_store_set_root(r->store, root) : -ENOMEM;
                if (e == 0)
                        e = object_store_stat(r->store, key, &bytes);
                if (e == 0) {
                        at[n] = '\0';
                        free(r->root);
                        r->root = TAKE_PTR(at);
                        return 0;
                }
                if (e < 0)
                        return e;
                result = e;
        }
        return result;
}

/* @return 0 and what to list; OBJECT_E_*: only the published document can be read; -EINVAL: it
 * names no failure; -errno */
static int locate(FailureReport *r, const ObjectUrl *url) {
        size_t n = strlen(url->key);
        while (n > 0 && url->key[n - 1] == '/')
                url->key[--n] = '\0';
        const char *component = find_component(url->key);
        n = component ? (size_t)(component - url->key) : n;
        r->root = strbuf_format("%.*s%s", (int)n, url->key,
                                component || (n == 0 && url->bucket) ? "" : "/");
        if (!r->root)
                return -ENOMEM;
        if (component)
                return parse_failure(r, component) ? 0 : -EINVAL;
        int e = read_published(r);
        return e == 0 ? find_root_above(r, !url->bucket) : e == -ENOENT ? 0 : e;
}

/* ---- listing ---- */

static int add_found(FailureReport *r, const ReportObject *f) {
        if (r->n_found >= FOUND_MAX)
                return -EOVERFLOW;
        if (array_grow(&r->found, r->n_found, sizeof *r->found) < 0)
                return -ENOMEM;
        r->found[r->n_found++] = *f;
        if (r->n_found % 1000 == 0)
                cli_progress(r->cli, "%zu records", r->n_found);
        return 0;
}

static int compare_found(const void *a, const void *b) {
        const ReportObject *x = a, *y = b;
        return strcmp(x->name.key, y->name.key);
}

/* @return whether this failure is one of those that were listed before, by key */
static bool has_failure(const FailureReport *r, const IncidentsName *name) {
        const ReportObject wanted = { .name = *name };
        const ReportObject *f =
                bsearch(&wanted, r->found, r->n_listed, sizeof wanted, compare_found);
        return f && f->name.n == name->n;
}

/* Adds a record or decision. Names are sorted, so those of one key follow each other; of a key only
 * the highest number is kept. */
static int on_item(const ObjectItem *item, void *userdata) {
        FailureReport *r = userdata;
        ReportObject f = { .bytes = item->bytes, .modified_usec = item->modified_usec };
        size_t n_root = strlen(r->root);
        if (strncmp(item->key, r->root, n_root) != 0 ||
            !incidents_name_parse(item->key + n_root, &f.name) ||
            (*r->key && strcmp(r->key, f.name.key) != 0) || (r->n > 0 && r->n != f.name.n) ||
            !volume_owners_check(&r->owners, item->owner, item->key))
                return 0;
        if (r->finds_beside)
                return has_failure(r, &f.name) ? add_found(r, &f) : 0;
        const ReportObject *last = r->n_found > 0 ? &r->found[r->n_found - 1] : NULL;
        if (!last || strcmp(last->name.key, f.name.key) != 0) {
                r->first = r->n_found;
                r->n_keys++;
        } else if (f.name.n < last->name.n)
                return 0;
        else if (f.name.n > last->name.n)
                r->n_found = r->first;
        return add_found(r, &f);
}

static int list_below(FailureReport *r, const char *name) {
        _cleanup_free_ char *prefix = strbuf_format("%s%s", r->root, name);
        return prefix ? object_store_list(r->store, &(ObjectListing){ .prefix = prefix,
                                                                      .on_item = on_item,
                                                                      .userdata = r })
                      : -ENOMEM;
}

/* Lists `.incidents`, and on a volume also the records of nodes that it refused, beside it. */
static int list(FailureReport *r, bool is_volume) {
        char name[RECORD_NAME_SIZE] = INCIDENTS_DIRECTORY "/";
        if (*r->key)
                incidents_prefix(r->key, name);
        int e = list_below(r, name);
        if (e != 0 || !is_volume || r->n_found == 0)
                return e;
        r->n_listed = r->n_found;
        r->finds_beside = true;
        e = list_below(r, INCIDENTS_DIRECTORY ".");
        if (r->n_found > r->n_listed)
                qsort(r->found, r->n_found, sizeof *r->found, compare_found);
        return e;
}

/* ---- reading a failure ---- */

typedef struct Folding {
        Decision decision; /* n = 0: none yet */
        char job[JOB_KEY_SIZE];
        Record *records;
        size_t n, n_claims, n_bundles;
} Folding;

static void folding_done(Folding *f) {
        for (size_t i = 0; i < f->n; i++)
                record_done(&f->records[i]);
        free(f->records);
}

static int handle_decision(Folding *to, const ReportObject *f, const ObjectHead *h) {
        int e = decision_parse(h->text, h->n, f->name.key, f->name.n, &to->decision);
        if (e < 0)
                return e;
        json_auto_t *v = load_json(h->text, h->n);
        snprintf(to->job, sizeof to->job, "%s", cli_text(v, "job"));
        to->decision.opened_usec = (int64_t)f->modified_usec;
        return 0;
}

static int handle_record(Folding *to, const ReportObject *f, const ObjectHead *h) {
        if (array_grow(&to->records, to->n, sizeof *to->records) < 0)
                return -ENOMEM;
        Record *record = &to->records[to->n];
        int e = record_parse(h->text, h->n, f->name.key, f->name.n, record);
        if (e < 0)
                return e;
        if (strcmp(record->instance_id, f->name.instance_id) != 0 ||
            record->claims.n > CLAIMS_READ_MAX - to->n_claims) {
                record_done(record);
                return -EINVAL;
        }
        if (record->bundles.n > BUNDLES_READ_MAX - to->n_bundles)
                node_bundles_leave_out(&record->bundles);
        to->n_claims += record->claims.n;
        to->n_bundles += record->bundles.n;
        to->n++;
        return 0;
}

static char *found_key(const FailureReport *r, const ReportObject *f) {
        _cleanup_free_ char *name = incidents_name_format(&f->name);
        return name ? strbuf_format("%s%s", r->root, name) : NULL;
}

/* @return 0, also when some of them are bad; -errno */
static int read_batch(FailureReport *r, const ReportObject *found, size_t n, Folding *to) {
        ObjectHead heads[BATCH] = { 0 };
        char *keys[BATCH] = { 0 };
        int e = 0;
        for (size_t i = 0; i < n; i++) {
                size_t bytes = (size_t)MIN(found[i].bytes, (uint64_t)RECORD_BYTES_MAX);
                keys[i] = found_key(r, &found[i]);
                heads[i] = (ObjectHead){ .key = keys[i], .max_bytes = bytes + GROWTH_BYTES };
                e = keys[i] ? e : -ENOMEM;
        }
        if (e == 0)
                e = object_store_read_heads(r->store, heads, n);
        for (size_t i = 0; e == 0 && i < n; i++) {
                if (!volume_owners_check(&r->owners, heads[i].owner, keys[i]))
                        continue; /* replaced since it was listed */
                int bad = !heads[i].text              ? -EINVAL
                          : found[i].name.is_decision ? handle_decision(to, &found[i], &heads[i])
                                                      : handle_record(to, &found[i], &heads[i]);
                if (bad == -EINVAL) {
                        r->has_failed = true;
                        cli_error("'%s' cannot be read: %s", keys[i],
                                  heads[i].error ? heads[i].error : "it is invalid");
                } else
                        e = bad;
        }
        for (size_t i = 0; i < n; i++) {
                object_head_done(&heads[i]);
                free(keys[i]);
        }
        return e;
}

/* @param found  n objects of one failure @return 0 and incident.json's document, the caller's; NULL
 * without a decision, which is reported; -errno */
static int read_failure(FailureReport *r, const ReportObject *found, size_t n, json_t **ret) {
        _cleanup_(folding_done) Folding f = { 0 };
        _cleanup_(roster_done) Roster roster = { 0 };
        size_t n_text;
        int e = 0;
        for (size_t i = 0; e == 0 && i < n; i += BATCH)
                e = read_batch(r, found + i, MIN((size_t)BATCH, n - i), &f);
        if (e == 0 && f.decision.n == 0) {
                r->has_failed = true;
                cli_error("failure %s/%" PRIu32 " has no valid decision", found->name.key,
                          found->name.n);
                return 0;
        }
        if (e == 0)
                e = roster_fold(&f.decision, f.records, f.n, &roster);
        if (e < 0)
                return e;
        _cleanup_free_ char *text = incident_format(&roster, f.job, &n_text);
        *ret = text ? json_loadb(text, n_text, 0, NULL) : NULL;
        return *ret ? 0 : -ENOMEM;
}

/* ---- text ---- */

/* clang-format off */
static const struct {
        const char *title, *member;
} columns[] = {
        { "RANK", "rank" }, { "STATE", "state" }, { "REASON", "reason" }, { "INSTANCE", "instance_id" },
        { "PID", "pid" }, { "ERROR", "error_code" }, { "FIRST SEEN", "first_seen" }, { "BUNDLE", "bundle" },
};
/* clang-format on */

static const char *spell(const json_t *object, const char *member, char buf[static CELL_SIZE]) {
        const json_t *v = json_object_get(object, member);
        json_int_t number = json_integer_value(v);
        const char *text = json_string_value(v), *error = NULL;
        char moment[CLI_MOMENT_SIZE];
        if (strcmp(member, "error_code") == 0)
                error = nrt_status_name(number);
        if (strcmp(member, "first_seen") == 0)
                text = text ? cli_moment(moment, text) : NULL;
        if (json_is_integer(v))
                snprintf(buf, CELL_SIZE, "%" JSON_INTEGER_FORMAT "%s%s", number, error ? " " : "",
                         error ? error : "");
        else
                snprintf(buf, CELL_SIZE, "%s", text ? text : "-");
        return buf;
}

static void print_table(const Cli *cli, const json_t *rows) {
        char buf[CELL_SIZE];
        int widths[ELEMENTSOF(columns)];
        size_t i;
        const json_t *row;
        for (size_t c = 0; c < ELEMENTSOF(columns); c++) {
                widths[c] = (int)strlen(columns[c].title) + 2;
                json_array_foreach(rows, i, row) widths[c] =
                        MAX(widths[c], (int)strlen(spell(row, columns[c].member, buf)) + 2);
                bool is_last = c + 1 == ELEMENTSOF(columns);
                cli_part("%-*s", is_last ? 0 : widths[c], columns[c].title);
                widths[c] = is_last ? 0 : widths[c];
        }
        json_array_foreach(rows, i, row) {
                cli_line("%s", "");
                for (size_t c = 0; c < ELEMENTSOF(columns); c++)
                        cli_state(cli, spell(row, columns[c].member, buf), widths[c]);
        }
        cli_line("%s", "");
}

_printf_(2, 3) static void add_line(StrBuf *b, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        _cleanup_free_ char *text = strbuf_vformat(fmt, ap);
        va_end(ap);
        strbuf_add_escaped(b, text ? text : strerror(ENOMEM));
        strbuf_add(b, "\n");
}

static size_t count_state(const json_t *document, const char *state) {
        size_t n = 0, i;
        const json_t *row;
        json_array_foreach(json_object_get(document, "ranks"), i, row) n +=
                strcmp(cli_text(row, "state"), state) == 0;
        return n;
}

static void add_facts(StrBuf *b, const json_t *d) {
        char n[CELL_SIZE], moment[CLI_MOMENT_SIZE];
        add_line(b, "cluster id  %s (%s)", cli_text(d, "cluster_id"),
                 cli_is_true(d, "derived") ? "derived: the runtime gave none" : "the runtime's");
        add_line(b, "date-time   %s", cli_text(d, "date_time"));
        add_line(b, "failure     %s/%s", cli_text(d, "key"), spell(d, "n", n));
        add_line(b, "agreed      %s, by %s, opened %s", cli_text(d, "agreed"),
                 cli_text(d, "decided_by"), cli_moment(moment, cli_text(d, "decided_at")));
        add_line(b, "job         %s", *cli_text(d, "job") ? cli_text(d, "job") : "-");
        add_line(b, "ranks       %zu present, %zu late, %zu missing, of %s",
                 count_state(d, "present"), count_state(d, "late"), count_state(d, "missing"),
                 json_is_integer(json_object_get(d, "world_size"))
                         ? spell(d, "world_size", n)
                         : "an unknown number: no rank is reported as missing");
        if (cli_is_true(d, "cut"))
                add_line(b,
                         "not all     there are more than %d processes; the others are not shown",
                         CLAIMS_MAX);
}

static void add_process(StrBuf *b, const char *what, const json_t *p, const char *time,
                        const char *tail) {
        char rank[CELL_SIZE], pid[CELL_SIZE], moment[CLI_MOMENT_SIZE];
        add_line(b, "%s rank %s (%s, pid %s) at %s%s", what, spell(p, "rank", rank),
                 cli_text(p, "instance_id"), spell(p, "pid", pid),
                 cli_moment(moment, cli_text(p, time)), tail);
}

static void add_findings(StrBuf *b, const json_t *d) {
        const json_t *first = json_object_get(d, "first_failure"), *v;
        char tail[2 * CELL_SIZE], error[CELL_SIZE];
        size_t i;
        snprintf(tail, sizeof tail, " \u00b1 %llu ms: %s%s%.100s",
                 cli_number(first, "uncertainty_ms"), spell(first, "error_code", error),
                 *cli_text(first, "error_location") ? " in " : "",
                 cli_text(first, "error_location"));
        if (json_is_object(first))
                add_process(b, "first failure:", first, "time", tail);
        json_array_foreach(json_object_get(d, "suspects"), i, v)
                add_process(b, "suspect:", v, "ended", ", ended without a dump");
}

/* Adds a line for each bundle of each node; its id stands for an object that there is not. */
static void add_evidence(StrBuf *b, const json_t *d) {
        const json_t *node, *bundle;
        size_t i, k;
        json_array_foreach(json_object_get(d, "nodes"), i, node) {
                const char *instance = cli_text(node, "instance_id");
                json_array_foreach(json_object_get(node, "bundles"), k, bundle) {
                        const char *object = cli_text(bundle, "object");
                        if (b->n == 0)
                                add_line(b, "EVIDENCE");
                        add_line(b, "%-20s %-17s %-12s %s", instance, cli_text(bundle, "kind"),
                                 cli_text(bundle, "state"),
                                 *object ? object : cli_text(bundle, "id"));
                }
                if (cli_number(node, "bundles_left_out"))
                        add_line(b, "%-20s and %llu more", instance,
                                 cli_number(node, "bundles_left_out"));
        }
}

static void print_document(const Cli *cli, const json_t *d) {
        _cleanup_(strbuf_done) StrBuf facts = STRBUF_INIT, findings = STRBUF_INIT,
                                      evidence = STRBUF_INIT;
        add_facts(&facts, d);
        add_findings(&findings, d);
        add_evidence(&evidence, d);
        printf("%s\n", facts.text ? facts.text : ""); /* each line is escaped already */
        print_table(cli, json_object_get(d, "ranks"));
        printf("%s%s", findings.n > 0 ? "\n" : "", findings.text ? findings.text : "");
        printf("%s%s", evidence.n > 0 ? "\n" : "", evidence.text ? evidence.text : "");
}

/* ---- a page ---- */

static void add_html(StrBuf *b, const char *s) {
        static const char special[] = "&<>\"'\n";
        static const char *const entities[] = { "&amp;", "&lt;", "&gt;", "&quot;", "&#39;", "\n" };
        for (size_t n = strlen(s), at = 0; at < n;) {
                char spelled[UTF8_ESCAPE_SIZE];
                const char *found = strchr(special, s[at]);
                at += found ? 1 : utf8_escape(s + at, n - at, spelled);
                strbuf_add(b, found ? entities[found - special] : spelled);
        }
}

static void add_html_table(StrBuf *b, const json_t *rows) {
        char cell[CELL_SIZE];
        size_t i;
        const json_t *row;
        strbuf_add(b, "<table>\n<tr>");
        for (size_t c = 0; c < ELEMENTSOF(columns); c++)
                strbuf_addf(b, "<th>%s", columns[c].title);
        json_array_foreach(rows, i, row) {
                strbuf_add(b, "\n<tr class=\"");
                add_html(b, cli_text(row, "state"));
                strbuf_add(b, "\">");
                for (size_t c = 0; c < ELEMENTSOF(columns); c++) {
                        strbuf_add(b, "<td>");
                        add_html(b, spell(row, columns[c].member, cell));
                }
        }
        strbuf_add(b, "\n</table>\n");
}

/* @return whether it was written; what failed is reported */
static bool write_page(const FailureReport *r, const json_t *d) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT, lines = STRBUF_INIT, evidence = STRBUF_INIT;
        strbuf_add(&b, "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n<meta "
                       "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                       "style-src 'unsafe-inline'\">\n<title>");
        add_html(&b, cli_text(d, "date_time"));
        strbuf_add(&b, "-");
        add_html(&b, cli_text(d, "cluster_id"));
        strbuf_add(&b, "</title>\n<style>body{font:14px monospace}td,th{text-align:left;padding:0 "
                       "1em 0 0}.missing{color:#b00}.late{color:#850}</style>\n<pre>\n");
        add_facts(&lines, d);
        strbuf_add(&lines, "\n");
        add_findings(&lines, d);
        add_html(&b, lines.text ? lines.text : "");
        strbuf_add(&b, "</pre>\n");
        add_html_table(&b, json_object_get(d, "ranks"));
        add_evidence(&evidence, d);
        strbuf_add(&b, "<pre>\n");
        add_html(&b, evidence.text ? evidence.text : "");
        strbuf_add(&b, "</pre>\n");
        int e = strbuf_error(&b);
        FILE *f = e < 0 ? NULL : fopen(r->html, "we");
        if (e == 0 && (!f || fputs(b.text, f) < 0))
                e = -errno;
        if (f && fclose(f) != 0)
                e = -errno;
        if (e < 0)
                cli_error("cannot write '%s': %s", r->html, strerror(-e));
        return e == 0;
}

/* ---- the command ---- */

static int exit_code(const FailureReport *r, const json_t *d) {
        bool is_all = count_state(d, "missing") == 0 && !cli_is_true(d, "cut");
        return r->has_failed ? EXIT_UNREADABLE : is_all ? CLI_YES : CLI_NO;
}

static int show(FailureReport *r, const json_t *d) {
        r->has_failed = (r->html && !write_page(r, d)) || r->has_failed;
        if (r->cli->json)
                (void)cli_print_json(r->cli, d);
        else if (!r->html)
                print_document(r->cli, d);
        return exit_code(r, d);
}

static void print_summary(const FailureReport *r, const json_t *d) {
        char n[CELL_SIZE], opened[CLI_MOMENT_SIZE];
        _cleanup_free_ char *root = object_store_url(r->store, r->root);
        cli_line("%s" INCIDENTS_DIRECTORY "/%s/%s  %s-%s  opened %s: %zu present, %zu late, %zu "
                 "missing%s",
                 root ? root : "", cli_text(d, "key"), spell(d, "n", n), cli_text(d, "date_time"),
                 cli_text(d, "cluster_id"), cli_moment(opened, cli_text(d, "decided_at")),
                 count_state(d, "present"), count_state(d, "late"), count_state(d, "missing"),
                 cli_is_true(d, "cut") ? "; not all are shown" : "");
}

/* Prints the failures that were listed: a single one in full, of several a line each.
 * @return an exit code */
static int show_failures(FailureReport *r) {
        json_auto_t *all = json_array();
        int e = all ? 0 : -ENOMEM, code = CLI_YES;
        if (r->n_keys > 1 && !r->cli->json)
                cli_line("%zu failures; `neuron-collect report` shows the ranks of one of them:",
                         r->n_keys);
        for (size_t from = 0, to; e == 0 && from < r->n_found; from = to) {
                json_auto_t *d = NULL;
                const ReportObject *f = &r->found[from];
                for (to = from; to < r->n_found && strcmp(r->found[to].name.key, f->name.key) == 0;)
                        to++;
                e = read_failure(r, f, to - from, &d);
                code = MAX(code, d && r->n_keys == 1 ? show(r, d) : exit_code(r, d));
                if (d && r->n_keys > 1 && !r->cli->json)
                        print_summary(r, d);
                if (d && r->cli->json && json_array_append(all, d) < 0)
                        e = -ENOMEM;
        }
        if (e < 0)
                (void)object_store_report(r->store, e);
        else if (r->n_keys > 1 && r->cli->json)
                (void)cli_print_json(r->cli, all);
        return e < 0 ? EXIT_UNREADABLE : code;
}

#define SEARCH_ITEMS_MAX                                                                           \
        20000 /* objects; `.incidents` sorts before most names, so it is found early               \
               */
#define SEARCH_FOUND -ECANCELED
typedef struct PlaceSearch {
        const FailureReport *report;
        size_t n;
        char *first; /* a bundle's key; owned; NULL: none */
        char *place; /* the directory of `.incidents`; owned; NULL: not found */
} PlaceSearch;

static int on_searched(const ObjectItem *item, void *userdata) {
        PlaceSearch *s = userdata;
        const char *component = find_component(item->key);
        if (component)
                s->place = strndup(item->key, (size_t)(component - item->key));
        if (!s->first && bundle_file_kind(item->key, NULL) != BUNDLE_NEITHER)
                s->first = strdup(item->key);
        return component || ++s->n == SEARCH_ITEMS_MAX ? SEARCH_FOUND : 0;
}

/* Searches for `.incidents` in the directories above a bundle: the listing of a directory skips
 * hidden names. */
static void search_above_bundle(PlaceSearch *s) {
        for (size_t n = strlen(s->report->root); s->first && !s->place && s->first[n];) {
                PlaceSearch below = { .report = s->report };
                n += strcspn(s->first + n, "/");
                n += s->first[n] == '/';
                _cleanup_free_ char *prefix =
                        strbuf_format("%.*s" INCIDENTS_DIRECTORY "/", (int)n, s->first);
                if (prefix)
                        (void)object_store_list(s->report->store, /* there is none */
                                                &(ObjectListing){ .prefix = prefix,
                                                                  .on_item = on_searched,
                                                                  .userdata = &below });
                s->place = below.place;
                free(below.first);
        }
}

/* Reports why there is no failure to print: the URL lies above the directory of the records, or
 * nodes write none there. @return 0; OBJECT_E_*, -errno: it cannot be listed */
static int report_none(FailureReport *r) {
        PlaceSearch s = { .report = r };
        int e = object_store_list(
                r->store,
                &(ObjectListing){ .prefix = r->root, .on_item = on_searched, .userdata = &s });
        if (e != SEARCH_FOUND && e != 0)
                return e;
        search_above_bundle(&s);
        _cleanup_free_ char *place = s.place, *first = s.first;
        (void)first; /* to be freed */
        _cleanup_free_ char *url = place ? object_store_url(r->store, place) : NULL;
        if (url)
                cli_error("no failures in '%s'; there are some below '%s'", r->given, url);
        else
                cli_error("no failures below '%s'%s; nodes record them at the first destination of "
                          "a source, below the fixed part of its prefix; not at a volume that is "
                          "not shared (`durable`), nor when only the bus has decided",
                          r->given, e == SEARCH_FOUND ? " among the first objects" : "");
        return 0;
}

static int report_unreadable(FailureReport *r, int e) {
        if (r->published && e >= 0) {
                cli_error("the records of this failure cannot be read (%s): this is what was "
                          "published",
                          e > 0 ? object_store_error(r->store) : "there are none");
                return show(r, r->published);
        }
        if (e == 0 && r->owners.n_refused > 0)
                cli_error("no failures in '%s' that an agent is known to have written", r->given);
        else if (e == 0 || e == OBJECT_E_NOT_FOUND)
                e = report_none(r);
        if (e != 0)
                (void)object_store_report(r->store, e);
        return EXIT_UNREADABLE;
}

static int report(FailureReport *r, const ObjectUrl *url) {
        int e = locate(r, url);
        if (e == -EINVAL)
                return cli_usage("report",
                                 "'%s' names no failure; write …/" INCIDENTS_DIRECTORY "/KEY/N",
                                 r->given);
        if (e == 0 && !url->bucket) /* below the root no symlink is followed */
                e = object_store_set_root(r->store, r->root);
        if (e == 0)
                e = list(r, !url->bucket);
        cli_progress_end();
        if (e != 0 || r->n_found == 0)
                return report_unreadable(r, e);
        if (r->n_keys > 1 && r->html)
                return cli_usage("report", "--html requires one failure, and there are %zu",
                                 r->n_keys);
        return show_failures(r);
}

static int init_owners(FailureReport *r, const ObjectUrl *url, bool is_open) {
        const char *component = find_component(url->key);
        _cleanup_free_ char *root = component == url->key ? strdup(".")
                                    : component ? strndup(url->key, (size_t)(component - url->key))
                                                : strdup(url->key);
        volume_owners_init(&r->owners, r->cli, is_open && !url->bucket ? root : NULL);
        return r->trusted ? volume_owners_add(&r->owners, r->trusted) : 0;
}

static int parse(int argc, char **argv, FailureReport *r, S3Options *s3) {
        const CliOption options[] = { S3_OPTION_ROWS(s3),
                                      { "html", .value = &r->html },
                                      { "trust-uid", .value = &r->trusted },
                                      { 0 } };
        int code = cli_options(argv[0], argc, argv, options);
        if (code != CLI_YES)
                return code;
        if (argc - optind != 1 || !*argv[optind])
                return cli_usage(argv[0], "requires one URL, s3://bucket/prefix or a directory");
        r->given = argv[optind];
        return CLI_YES;
}

int cmd_report(const Cli *cli, int argc, char **argv) {
        S3Options s3 = { 0 };
        ObjectUrl url = { 0 };
        FailureReport r = { .cli = cli };
        int code = parse(argc, argv, &r, &s3);
        if (code == CLI_YES)
                code = object_url_parse(argv[0], r.given, &url);
        if (code != CLI_YES)
                return code;
        cli_catch_signals();
        code = object_store_open(&r.store, cli, &url, &s3);
        if (init_owners(&r, &url, code == CLI_YES) < 0 && code == CLI_YES)
                code = cli_error("%s", strerror(ENOMEM));
        if (code == CLI_YES)
                code = report(&r, &url);
        volume_owners_report(&r.owners);
        volume_owners_done(&r.owners);
        object_store_free(r.store);
        object_url_done(&url);
        json_decref(r.published);
        free(r.found);
        free(r.root);
        return code;
}
