/* neuron-collect get: a bundle or one of its members, verified. */
#include <errno.h>
#include <string.h>

#include "cli/archive/get.h"
#include "cli/near.h"
#include "lib/base/clock.h"
#include "lib/base/parse.h"
#include "lib/bundle/manifest.h"

#define DRAW_USEC (200 * USEC_PER_MSEC)
#define SIBLINGS_MAX 1000

/* ---- for both ways ---- */

uint64_t get_object_bytes(const Get *g) {
        return cli_number(json_object_get(g->manifest, "bundle"), "bytes");
}

int get_open_range(Get *g, uint64_t offset, uint64_t bytes, ObjectReader **ret) {
        if (g->begin_usec == 0)
                g->begin_usec = clock_boottime_usec();
        int r = object_store_reader(g->store,
                                    &(ObjectRange){ .key = g->names.object,
                                                    .offset = offset,
                                                    .bytes = bytes,
                                                    .object_bytes = get_object_bytes(g) },
                                    ret);
        return r == 0 ? CLI_YES : get_say(g, r);
}

int get_say(const Get *g, int r) {
        if (r == -EINTR)
                return output_say(&g->out, r);
        int code = object_store_say(g->store, r);
        char bytes[PARSE_FORMAT_SIZE];
        if (!output_is_stdout(&g->out) && g->out.written > 0)
                cli_error("%s are in '%s', and the same command goes on from there",
                          parse_format_human(bytes, g->out.written), g->out.partial);
        return code;
}

int get_look_at_existing(Get *g, int (*is_same)(int fd, void *userdata), void *userdata,
                         bool *ret_is_there) {
        *ret_is_there = false;
        _cleanup_close_ int fd = output_open_existing(&g->out);
        if (fd == -ENOENT)
                return CLI_YES;
        if (fd < 0 && fd != -EACCES) {
                cli_error("'%s' cannot be written: %s", g->out.path,
                          fd == -EBADF ? "it is not a regular file; -o - writes to stdout"
                                       : strerror(-fd));
                return CLI_NO;
        }
        int r = fd < 0 ? 0 : is_same(fd, userdata);
        if (r < 0)
                return object_store_say(g->store, r);
        *ret_is_there = r > 0;
        return *ret_is_there || g->may_replace ? CLI_YES : output_say_taken(&g->out);
}

static uint64_t whole_seconds(double usec) {
        double seconds = usec / (double)USEC_PER_SEC;
        return seconds < (double)UINT32_MAX ? (uint64_t)seconds * USEC_PER_SEC
                                            : UINT32_MAX * USEC_PER_SEC;
}

void get_note(Get *g, uint64_t loaded_bytes) {
        uint64_t now = clock_boottime_usec();
        g->loaded_bytes += loaded_bytes;
        if (!g->cli->progress || now - g->drawn_usec < DRAW_USEC)
                return;
        char bar[CLI_BAR_SIZE], total[PARSE_FORMAT_SIZE], rate[PARSE_FORMAT_SIZE],
                left[CLOCK_ISO_SIZE];
        uint64_t passed = MAX(now - g->begin_usec, UINT64_C(1));
        double per_usec = (double)g->loaded_bytes / (double)passed;
        uint64_t done = output_is_stdout(&g->out) || g->member ? g->loaded_bytes : g->out.written;
        uint64_t missing = g->total_bytes - MIN(done, g->total_bytes);
        unsigned percent = cli_percent(done, g->total_bytes);
        g->drawn_usec = now;
        cli_progress(g->cli, "%s %u %% of %s, %s/s, %s left", cli_bar(bar, percent), percent,
                     parse_format_human(total, g->total_bytes),
                     parse_format_human(rate, (uint64_t)(per_usec * (double)USEC_PER_SEC)),
                     clock_format_span(left, whole_seconds((double)missing / per_usec)));
}

/* ---- the manifest ---- */

typedef struct Siblings {
        const Get *get;
        Near near; /* URLs */
        char *last;
} Siblings;

static int on_sibling(const ObjectItem *item, void *userdata) {
        Siblings *s = userdata;
        size_t n;
        if (item->is_prefix || bundle_file_of(item->key, &n) == BUNDLE_NEITHER)
                return 0;
        _cleanup_free_ char *stem = strndup(item->key, n),
                            *url = stem ? object_store_url(s->get->store, stem) : NULL;
        if (url && (!s->last || strcmp(s->last, url) != 0)) { /* object and manifest count once */
                near_look(&s->near, url);
                free(s->last);
                s->last = TAKE_PTR(url);
        }
        return 0;
}

/* @return what lies beside a bundle that is not there, in words, the caller's; NULL */
static char *near_bundles(const Get *g, const char *url) {
        Siblings siblings = { .get = g, .near = near_init(url) };
        const char *slash = strrchr(g->names.stem, '/');
        _cleanup_free_ char *prefix =
                strndup(g->names.stem, slash ? (size_t)(slash + 1 - g->names.stem) : 0);
        if (prefix)
                (void)object_store_list(g->store, &(ObjectListOrder){ .prefix = prefix,
                                                                      .shallow = true,
                                                                      .max_items = SIBLINGS_MAX,
                                                                      .on_item = on_sibling,
                                                                      .userdata = &siblings });
        char *text = near_text(&siblings.near);
        if (text && *text && !siblings.near.is_guess) {
                char *others;
                if (asprintf(&others, "there are others, %s", text) >= 0) {
                        free(text);
                        text = others;
                }
        }
        near_done(&siblings.near);
        free(siblings.last);
        return text;
}

/* The manifest is not there: is it that the bundle was not delivered, or is the name wrong? */
static int say_no_bundle(const Get *g) {
        _cleanup_free_ char *why = strdup(object_store_error(g->store)), *near = NULL,
                            *url = object_store_url(g->store, g->names.stem);
        uint64_t bytes;
        if (object_store_stat(g->store, g->names.object, &bytes) == 0) {
                cli_error("'%s' has no manifest, so it is what a delivery has left that is not "
                          "finished, or was given up",
                          g->object_url);
                return CLI_NO;
        }
        near = url ? near_bundles(g, url) : NULL;
        if (near && *near)
                cli_error("no bundle '%s'; %s", url, near);
        else
                cli_error("no bundle '%s' (%s); `neuron-collect ls` tells which there are",
                          url ? url : "?", why && *why ? why : "no manifest");
        return CLI_NO;
}

static int read_manifest(Get *g) {
        _cleanup_free_ char *fault = NULL, *url = object_store_url(g->store, g->names.manifest);
        ObjectText manifest = { 0 };
        int r = object_store_read(g->store, g->names.manifest, MANIFEST_MAX_BYTES, &manifest);
        g->manifest_text = manifest.text;
        g->manifest_bytes = manifest.n;
        if (r == OBJECT_E_NOT_FOUND)
                return say_no_bundle(g);
        if (r != 0)
                return object_store_say(g->store, r);
        r = manifest_read(g->manifest_text, g->manifest_bytes, &g->manifest, &fault);
        if (r == 0)
                return CLI_YES;
        cli_error("'%s' is no manifest: %s", url ? url : g->names.manifest,
                  fault ? fault : strerror(-r));
        return CLI_NO;
}

/* ---- the command ---- */

static int parse(int argc, char **argv, Get *g, S3Options *s3) {
        static const struct option options[] = { S3_OPTION_ROWS,
                                                 { "member", required_argument, NULL, 'm' },
                                                 { "output", required_argument, NULL, 'o' },
                                                 { "force", no_argument, NULL, 'f' },
                                                 { 0 } };
        int o;
        while ((o = cli_option(&(CliOptions){ argv[0], ":o:", options }, argc, argv)) >= 0)
                switch (o) {
                case 'm':
                        g->member = optarg;
                        break;
                case 'o':
                        g->given_output = optarg;
                        break;
                case 'f':
                        g->may_replace = true;
                        break;
                default:
                        if (!s3_options_take(s3, o, optarg))
                                return CLI_USAGE;
                }
        if (argc - optind != 1 || !*argv[optind])
                return cli_usage(argv[0], "wants one bundle, s3://bucket/key or a path");
        if (g->member && !*g->member)
                return cli_usage(argv[0], "--member wants the path of a member, not nothing");
        if (g->given_output && !*g->given_output)
                return cli_usage(argv[0], "-o wants a file, a directory or -, not nothing");
        if (g->given_output && strcmp(g->given_output, "-") == 0 && g->cli->json)
                return cli_usage(argv[0], "--json and the content cannot both go to stdout");
        return CLI_YES;
}

static int get(Get *g) {
        g->object_url = object_store_url(g->store, g->names.object);
        int code = g->object_url ? read_manifest(g) : CLI_NO;
        if (code != CLI_YES)
                return code;
        return g->member ? get_member(g) : get_whole(g);
}

int cmd_get(const Cli *cli, int argc, char **argv) {
        S3Options s3 = { 0 };
        ObjectUrl url = { 0 };
        Get g = { .cli = cli, .out = OUTPUT_INIT };
        int code = parse(argc, argv, &g, &s3);
        const char *given = argv[optind];
        if (code == CLI_YES)
                code = object_url_parse(argv[0], given, &url);
        if (code == CLI_YES)
                code = object_url_names(argv[0], given, &url, &g.names);
        if (code == CLI_YES) {
                cli_catch_signals();
                code = object_store_open(&g.store, cli, &url, &s3);
        }
        if (code == CLI_YES)
                code = get(&g);
        cli_progress_end();
        output_done(&g.out);
        json_decref(g.manifest);
        free(g.manifest_text);
        free(g.object_url);
        bundle_names_done(&g.names);
        object_url_done(&url);
        object_store_free(g.store);
        return code;
}
