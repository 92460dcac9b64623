/* neuron-collect verify: hashes a bundle again, and compares it with the manifest beside it.
 * Reading the object is left to object_store.c, verifying to lib/bundle/reader.c. */
#include <errno.h>
#include <string.h>

#include "cli/archive/object_store.h"
#include "cli/common/cli.h"
#include "lib/base/parse.h"
#include "lib/bundle/manifest.h"
#include "lib/bundle/reader.h"

typedef struct VerifyCommand {
        const Cli *cli;
        ObjectStore *store;
        const char *object; /* path or URL */
        json_t *manifest;
        json_t *faults;
        unsigned drawn_percent;
} VerifyCommand;

static void on_fault(const char *what, void *userdata) {
        json_array_append_new(((VerifyCommand *)userdata)->faults, cli_json_string(what));
}

static void on_progress(uint64_t done_bytes, uint64_t total_bytes, void *userdata) {
        VerifyCommand *v = userdata;
        unsigned percent = cli_percent(done_bytes, total_bytes);
        if (percent != v->drawn_percent) {
                char bar[CLI_BAR_SIZE], total[PARSE_FORMAT_SIZE];
                cli_progress(v->cli, "%s %u %% of %s", cli_bar(bar, percent), percent,
                             parse_format_human(total, total_bytes));
        }
        v->drawn_percent = percent;
}

static int load_manifest(VerifyCommand *v, const char *key) {
        ObjectHead manifest = { .key = key };
        bool is_missing;
        int code = object_store_read_manifest(v->store, &manifest, &v->manifest, &is_missing);
        object_head_done(&manifest);
        if (is_missing)
                cli_error("cannot read the manifest: %s; a bundle without its manifest was not "
                          "delivered",
                          object_store_error(v->store));
        return code;
}

static void print_report(const VerifyCommand *v, const VerifyReport *report) {
        const json_t *bundle = json_object_get(v->manifest, "bundle");
        char bytes[PARSE_FORMAT_SIZE], members[CLI_COUNT_SIZE], faults[CLI_COUNT_SIZE];
        size_t i;
        json_t *text;
        json_array_foreach(v->faults, i, text) cli_line("  %s", cli_string(text));
        cli_part("%s: ", v->object);
        cli_state(v->cli, report->ok ? "OK" : "FAILED", 0);
        cli_line(": %s, %s, %s", cli_count(members, report->n_members, "member"),
                 parse_format_human(bytes, report->bytes),
                 report->ok ? "all hashes match"
                            : cli_count(faults, json_array_size(v->faults), "error"));
        if (!cli_is_true(bundle, "complete"))
                puts("  it was labelled incomplete when it was packed:");
        json_array_foreach(json_object_get(bundle, "reasons"), i, text)
                cli_line("    %s", cli_string(text));
}

static int print_report_json(const VerifyCommand *v, const VerifyReport *report) {
        const json_t *bundle = json_object_get(v->manifest, "bundle");
        return cli_print_new_json(
                v->cli, json_pack("{s:o, s:b, s:I, s:I, s:I, s:O, s:b, s:O}", "object",
                                  cli_json_string(v->object), "ok", report->ok, "members",
                                  (json_int_t)report->n_members, "bad", (json_int_t)report->n_bad,
                                  "bytes", (json_int_t)report->bytes, "faults", v->faults,
                                  "complete", cli_is_true(bundle, "complete"), "reasons",
                                  json_object_get(bundle, "reasons")));
}

static int verify(VerifyCommand *v, ByteSource *source) {
        VerifyReport report = { .on_fault = on_fault, .on_progress = on_progress, .userdata = v };
        int r = bundle_verify(source, v->manifest, &report);
        cli_progress_end();
        if (r < 0)
                return object_store_report(v->store, r);
        int code = CLI_YES;
        if (v->cli->json)
                code = print_report_json(v, &report);
        else
                print_report(v, &report);
        return code != CLI_YES ? code : report.ok ? CLI_YES : CLI_NO;
}

static int open_and_verify(VerifyCommand *v, const BundleNames *names) {
        _cleanup_free_ char *url = object_store_url(v->store, names->object);
        _cleanup_(object_reader_freep) ByteSource *reader = NULL;
        ObjectRange range = { .key = names->object };
        int code = url ? load_manifest(v, names->manifest) : CLI_NO;
        if (code != CLI_YES)
                return code;
        v->object = url;
        int r = object_store_stat(v->store, names->object, &range.bytes);
        if (r == 0)
                r = object_store_reader(v->store, &range, &reader);
        return r == 0 ? verify(v, reader) : object_store_report(v->store, r);
}

int cmd_verify(const Cli *cli, int argc, char **argv) {
        S3Options s3 = { 0 };
        BundleNames names = { 0 };
        VerifyCommand v = { .cli = cli, .faults = json_array(), .drawn_percent = UINT32_MAX };
        int code = s3_options_parse(argc, argv, "one bundle, s3://bucket/key or a path", &s3);
        if (code == CLI_YES && !v.faults)
                code = cli_error("%s", strerror(ENOMEM));
        if (code == CLI_YES)
                code = object_store_open_bundle(&v.store, cli, argv, &s3, &names);
        if (code == CLI_YES)
                code = open_and_verify(&v, &names);
        json_decref(v.faults);
        json_decref(v.manifest);
        bundle_names_done(&names);
        object_store_free(v.store);
        return code;
}
