/* neuron-collect verify FILE: re-hashes a bundle against the manifest beside it. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/bundle/byte_source.h"
#include "lib/bundle/manifest.h"
#include "lib/bundle/reader.h"

#define MANIFEST_MAX_BYTES (256 * MIB)
#define BUNDLE_SUFFIX ".tar.zst"
#define MANIFEST_SUFFIX ".manifest.json"

typedef struct Verify {
        const Cli *cli;
        const char *object; /* path */
        const json_t *manifest;
        json_t *faults;
        unsigned drawn_percent;
} Verify;

static void on_fault(const char *what, void *userdata) {
        json_array_append_new(((Verify *)userdata)->faults, cli_json_string(what));
}

static void on_progress(uint64_t done_bytes, uint64_t total_bytes, void *userdata) {
        Verify *v = userdata;
        unsigned percent = cli_percent(done_bytes, total_bytes);
        if (percent != v->drawn_percent) {
                char total[PARSE_FORMAT_SIZE];
                cli_progress(v->cli, "%u %% of %s", percent,
                             parse_format_human(total, total_bytes));
        }
        v->drawn_percent = percent;
}

static bool ends_with(const char *s, const char *suffix) {
        size_t n = strlen(s), m = strlen(suffix);
        return n > m && strcmp(s + n - m, suffix) == 0;
}

/* Either of the two names will do. @return 0 and both, the caller's; -EINVAL, -ENOMEM */
static int both_names(const char *given, char **ret_object, char **ret_manifest) {
        const char *suffix = ends_with(given, BUNDLE_SUFFIX)     ? BUNDLE_SUFFIX
                             : ends_with(given, MANIFEST_SUFFIX) ? MANIFEST_SUFFIX
                                                                 : NULL;
        if (!suffix)
                return -EINVAL;
        int stem = (int)(strlen(given) - strlen(suffix));
        if (asprintf(ret_object, "%.*s" BUNDLE_SUFFIX, stem, given) < 0)
                *ret_object = NULL;
        if (asprintf(ret_manifest, "%.*s" MANIFEST_SUFFIX, stem, given) < 0)
                *ret_manifest = NULL;
        return *ret_object && *ret_manifest ? 0 : -ENOMEM;
}

static int load_manifest(const char *path, json_t **ret) {
        _cleanup_free_ char *text = NULL, *fault = NULL;
        size_t n;
        int r = fs_read_file(AT_FDCWD, path, MANIFEST_MAX_BYTES, &text, &n);
        if (r < 0) {
                cli_error("cannot read the manifest '%s': %s%s", path, strerror(-r),
                          r == -ENOENT ? "; a bundle without its manifest was not delivered" : "");
                return CLI_NO;
        }
        r = manifest_read(text, n, ret, &fault);
        if (r < 0) {
                cli_error("'%s' is no manifest: %s", path, fault ? fault : strerror(-r));
                return CLI_NO;
        }
        return CLI_YES;
}

static void print_report(const Verify *v, const VerifyReport *report) {
        const json_t *bundle = json_object_get(v->manifest, "bundle");
        char bytes[PARSE_FORMAT_SIZE], members[CLI_COUNT_SIZE], faults[CLI_COUNT_SIZE];
        size_t i;
        json_t *text;
        json_array_foreach(v->faults, i, text) cli_line("  %s", cli_string(text));
        cli_part("%s: ", v->object);
        cli_state(v->cli, report->ok ? "yes" : "NO", 0);
        cli_line(", %s, %s in %s",
                 report->ok ? "whole and as the manifest says"
                            : cli_count(faults, json_array_size(v->faults), "fault"),
                 parse_format_human(bytes, report->bytes),
                 cli_count(members, report->n_members, "member"));
        if (!cli_is_true(bundle, "complete"))
                puts("  it was labelled incomplete when it was packed:");
        json_array_foreach(json_object_get(bundle, "reasons"), i, text)
                cli_line("    %s", cli_string(text));
}

static int print_report_json(const Verify *v, const VerifyReport *report) {
        const json_t *bundle = json_object_get(v->manifest, "bundle");
        json_t *answer = json_pack("{s:o, s:b, s:I, s:I, s:I, s:O, s:b, s:O}", "object",
                                   cli_json_string(v->object), "ok", report->ok, "members",
                                   (json_int_t)report->n_members, "bad", (json_int_t)report->n_bad,
                                   "bytes", (json_int_t)report->bytes, "faults", v->faults,
                                   "complete", cli_is_true(bundle, "complete"), "reasons",
                                   json_object_get(bundle, "reasons"));
        int code = cli_print_json(v->cli, answer);
        json_decref(answer);
        return code;
}

static int verify(Verify *v) {
        /* O_NONBLOCK: a FIFO of that name is an error, not a long wait */
        _cleanup_close_ int fd = open(v->object, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0) {
                cli_error("cannot open '%s': %s", v->object, strerror(errno));
                return CLI_NO;
        }
        struct stat st;
        if (fstat(fd, &st) == 0 && !S_ISREG(st.st_mode)) {
                cli_error("'%s' is not a regular file", v->object);
                return CLI_NO;
        }
        VerifyReport report = { .on_fault = on_fault, .on_progress = on_progress, .userdata = v };
        FileByteSource file;
        int r = file_byte_source_init(&file, fd);
        if (r == 0)
                r = bundle_verify(&file.source, v->manifest, &report);
        cli_progress_end();
        if (r < 0) {
                cli_error("cannot read '%s': %s", v->object, strerror(-r));
                return CLI_NO;
        }
        int code = CLI_YES;
        if (v->cli->json)
                code = print_report_json(v, &report);
        else
                print_report(v, &report);
        return code != CLI_YES ? code : report.ok ? CLI_YES : CLI_NO;
}

int cmd_verify(const Cli *cli, int argc, char **argv) {
        _cleanup_free_ char *object = NULL, *manifest_path = NULL;
        const char *file;
        int code = cli_arguments(argc, argv, 1, "one file, ….tar.zst or ….manifest.json", &file);
        if (code != CLI_YES)
                return code;
        if (strncmp(file, "s3://", strlen("s3://")) == 0)
                return cli_usage(argv[0],
                                 "'%s': s3 is not available in this version; copy the bundle and "
                                 "its manifest here",
                                 file);
        if (both_names(file, &object, &manifest_path) < 0)
                return cli_usage(argv[0],
                                 "'%s' is neither a " BUNDLE_SUFFIX " nor a " MANIFEST_SUFFIX,
                                 file);
        json_t *manifest = NULL;
        code = load_manifest(manifest_path, &manifest);
        if (code != CLI_YES)
                return code;
        Verify v = { .cli = cli,
                     .object = object,
                     .manifest = manifest,
                     .faults = json_array(),
                     .drawn_percent = UINT32_MAX };
        code = v.faults ? verify(&v) : CLI_NO;
        json_decref(v.faults);
        json_decref(manifest);
        return code;
}
