/* A bundle as it is: its parts are verified as they come, and what an earlier run has left is kept as far as it is right. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "cli/archive/get.h"
#include "cli/archive/parts_check.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

typedef struct Whole {
        Get *get;
        PartsCheck check;
        uint64_t kept_bytes; /* of the partial file, that were not loaded now */
        char *step;          /* GET_STEP_BYTES */
        char *manifest_path; /* NULL: none is written */
        bool has_manifest;   /* it is there already, and the same */
} Whole;

/* ---- what is there already ---- */

/* Feeds a file to the check. @return 0; PARTS_E_*; -errno */
static int feed_file(Whole *w, int fd, uint64_t bytes) {
        int r = 0;
        for (uint64_t at = 0; r == 0 && at < bytes;) {
                size_t n = (size_t)MIN(bytes - at, (uint64_t)GET_STEP_BYTES);
                if (cli_is_interrupted())
                        return -EINTR;
                r = fs_pread_all(fd, w->step, n, at);
                if (r == 0)
                        r = parts_check_feed(&w->check, w->step, n);
                at += n;
                cli_progress(w->get->cli, "looking at what is here already: %u %%",
                             cli_percent(at, bytes));
        }
        cli_progress_end();
        return r;
}

/* @return whether the file is the object; -EINTR */
static int is_same(int fd, void *userdata) {
        Whole *w = userdata;
        uint64_t bytes = get_object_bytes(w->get);
        if (lseek(fd, 0, SEEK_END) != (off_t)bytes)
                return 0;
        int r = feed_file(w, fd, bytes);
        parts_check_init(&w->check, w->get->manifest);
        return r == -EINTR ? r : r == 0;
}

static int look_at_manifest(Whole *w) {
        Get *g = w->get;
        _cleanup_free_ char *text = NULL;
        size_t n;
        if (output_is_stdout(&g->out))
                return CLI_YES;
        size_t n_stem;
        bool has_suffix = bundle_file_of(g->out.path, &n_stem) == BUNDLE_OBJECT;
        if (asprintf(&w->manifest_path, "%.*s" MANIFEST_SUFFIX,
                     (int)(has_suffix ? n_stem : strlen(g->out.path)), g->out.path) < 0) {
                w->manifest_path = NULL;
                cli_error("%s", strerror(ENOMEM));
                return CLI_NO;
        }
        if (access(w->manifest_path, F_OK) < 0)
                return CLI_YES;
        w->has_manifest =
                fs_read_file(AT_FDCWD, w->manifest_path, MANIFEST_MAX_BYTES, &text, &n) == 0 &&
                n == g->manifest_bytes && memcmp(text, g->manifest_text, n) == 0;
        if (w->has_manifest || g->may_replace)
                return CLI_YES;
        cli_error("'%s' exists and is another bundle's manifest; replace it with --force, or name "
                  "another place with -o",
                  w->manifest_path);
        return CLI_NO;
}

/* Keeps of the partial file what is right. */
static int keep_partial(Whole *w) {
        Get *g = w->get;
        if (output_is_stdout(&g->out) || g->out.kept == 0)
                return CLI_YES;
        int r = feed_file(w, g->out.fd, MIN(g->out.kept, get_object_bytes(g)));
        if (r == -EINTR)
                return object_store_say(g->store, r);
        if (r != 0)
                parts_check_again(&w->check);
        r = output_rewind(&g->out, w->check.offset);
        w->kept_bytes = w->check.offset;
        return r < 0 ? output_say(&g->out, r) : CLI_YES;
}

/* ---- loading ---- */

static int say_bad_part(const Whole *w) {
        const Get *g = w->get;
        cli_error("'%s': bytes %llu to %llu are not what the manifest says%s; the object is "
                  "damaged or was replaced, and `neuron-collect verify` tells what of it is good",
                  g->object_url, (unsigned long long)w->check.part_offset,
                  (unsigned long long)(w->check.part_offset + w->check.part_bytes - 1),
                  output_is_stdout(&g->out) ? ", do not use what was written" : "");
        return CLI_NO;
}

/* Loads the rest, or until a part is bad that began with kept bytes: then *ret_again.  */
static int load_rest(Whole *w, bool *ret_again) {
        Get *g = w->get;
        uint64_t total = get_object_bytes(g);
        _cleanup_(object_reader_freep) ObjectReader *reader = NULL;
        int code = get_open_range(g, w->check.offset, total - w->check.offset, &reader);
        while (code == CLI_YES && w->check.offset < total) {
                size_t n = (size_t)MIN(total - w->check.offset, (uint64_t)GET_STEP_BYTES);
                int r = reader->source.read_at(&reader->source, w->step, n, w->check.offset);
                if (r < 0)
                        return get_say(g, r);
                get_note(g, n);
                if (parts_check_feed(&w->check, w->step, n) != 0) {
                        *ret_again = w->check.part_offset < w->kept_bytes;
                        parts_check_again(&w->check);
                        w->kept_bytes = 0;
                        if (!output_is_stdout(&g->out) &&
                            (r = output_rewind(&g->out, w->check.offset)) < 0)
                                return output_say(&g->out, r);
                        return *ret_again ? CLI_YES : say_bad_part(w);
                }
                r = output_write(&g->out, w->step, n);
                if (r < 0)
                        return output_say(&g->out, r);
        }
        return code;
}

static int load(Whole *w) {
        bool again;
        int code = output_open(&w->get->out);
        if (code == CLI_YES)
                code = keep_partial(w);
        if (code == CLI_YES)
                code = output_check_room(&w->get->out, get_object_bytes(w->get) - w->check.offset);
        do {
                again = false;
                if (code == CLI_YES && !parts_check_is_complete(&w->check))
                        code = load_rest(w, &again);
        } while (again && code == CLI_YES);
        cli_progress_end();
        return code == CLI_YES ? output_commit(&w->get->out) : code;
}

/* ---- the end ---- */

/* Last, as at the destination: where there is a manifest, there is its bundle. */
static int write_manifest(const Whole *w) {
        const Get *g = w->get;
        if (!w->manifest_path || w->has_manifest)
                return CLI_YES;
        _cleanup_free_ char *parent = path_parent(w->manifest_path);
        _cleanup_close_ int fd = parent ? open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
        int r = fd < 0 ? -errno
                       : fs_write_file(fd, path_name(w->manifest_path), g->manifest_text,
                                       g->manifest_bytes, 0644);
        if (r == 0)
                return CLI_YES;
        cli_error("cannot write '%s': %s", w->manifest_path, strerror(-r));
        return CLI_NO;
}

static int tell(const Whole *w, bool was_there) {
        const Get *g = w->get;
        char bytes[PARSE_FORMAT_SIZE], kept[PARSE_FORMAT_SIZE], parts[CLI_COUNT_SIZE];
        if (output_is_stdout(&g->out))
                return CLI_YES;
        if (g->cli->json) {
                json_t *answer = json_pack(
                        "{s:o, s:o, s:o, s:I, s:I}", "object", cli_json_string(g->object_url),
                        "file", cli_json_string(g->out.path), "manifest",
                        cli_json_string(w->manifest_path), "bytes", (json_int_t)get_object_bytes(g),
                        "loaded_bytes", (json_int_t)g->loaded_bytes);
                int code = cli_print_json(g->cli, answer);
                json_decref(answer);
                return code;
        }
        cli_part("%s: %s, verified in %s", g->out.path,
                 parse_format_human(bytes, get_object_bytes(g)),
                 cli_count(parts, json_array_size(w->check.parts), "part"));
        if (was_there)
                cli_line(", was here already");
        else if (g->loaded_bytes < get_object_bytes(g))
                cli_line(", %s of it from an earlier run",
                         parse_format_human(kept, get_object_bytes(g) - g->loaded_bytes));
        else
                cli_line("%s", "");
        return CLI_YES;
}

static int get(Whole *w) {
        Get *g = w->get;
        bool is_there = false;
        int code = look_at_manifest(w);
        if (code == CLI_YES && !output_is_stdout(&g->out))
                code = get_look_at_existing(g, is_same, w, &is_there);
        if (code == CLI_YES && !is_there)
                code = load(w);
        if (code == CLI_YES)
                code = write_manifest(w);
        return code == CLI_YES ? tell(w, is_there) : code;
}

int get_whole(Get *g) {
        Whole w = { .get = g, .step = malloc(GET_STEP_BYTES) };
        _cleanup_free_ char *name = bundle_object_name(path_name(g->names.stem));
        if (!w.step || !name) {
                free(w.step);
                cli_error("%s", strerror(ENOMEM));
                return CLI_NO;
        }
        parts_check_init(&w.check, g->manifest);
        g->total_bytes = get_object_bytes(g);
        int code = output_init(&g->out, &(OutputOrder){ .given = g->given_output,
                                                        .name = name,
                                                        .may_replace = g->may_replace });
        if (code == CLI_YES)
                code = get(&w);
        free(w.step);
        free(w.manifest_path);
        return code;
}
