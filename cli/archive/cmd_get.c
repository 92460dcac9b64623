/* neuron-collect get: fetches a bundle or one of its members, verified.
 *
 * A bundle is loaded unchanged, and its parts are verified as they arrive. For a member only the
 * frames that hold it are loaded, and its digest is verified. Both verify and keep what an earlier
 * run has left, and continue behind it. output.c owns the file that is written, lib/bundle/fetch.c
 * unpacks frames. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "cli/archive/object_store.h"
#include "cli/archive/output.h"
#include "cli/common/cli.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/bundle/fetch.h"
#include "lib/bundle/manifest.h"
#include "lib/bundle/member_digest.h"
#include "lib/neuron/bundle_name.h"

typedef struct PartsCheck {
        const json_t *parts;  /* of a manifest that manifest_read() has checked; borrowed */
        size_t part;          /* index of the current part; the number of parts at the end */
        uint64_t part_offset; /* of the part in the object */
        uint64_t part_bytes;
        uint64_t offset; /* of the next byte */
        Sha256 hash;     /* over the bytes of the part so far */
} PartsCheck;

#define GET_STEP_BYTES (1 * MIB) /* read, checked and written at once */
typedef struct Get {
        const Cli *cli;
        ObjectStore *store;
        BundleNames names;        /* keys */
        char *object_url;         /* for messages */
        const char *member;       /* NULL: the whole bundle */
        const char *given_output; /* -o; NULL */
        ObjectHead manifest_text;
        json_t *manifest;
        Output out;
        char *step;                         /* GET_STEP_BYTES */
        uint64_t total_bytes, loaded_bytes; /* loaded: from the store, in this run */
        uint64_t begin_usec, drawn_usec;    /* CLOCK_BOOTTIME */
} Get;

static void start_part(PartsCheck *c) {
        c->part_bytes = cli_number(json_array_get(c->parts, c->part), "bytes");
        c->part_offset = c->offset;
        sha256_init(&c->hash);
}

static void parts_check_init(PartsCheck *c, const json_t *manifest) {
        *c = (PartsCheck){ .parts = json_object_get(json_object_get(manifest, "bundle"), "parts") };
        start_part(c);
}

static bool parts_check_is_complete(const PartsCheck *c) {
        return c->part == json_array_size(c->parts);
}

static bool is_as_listed(const PartsCheck *c) {
        uint8_t digest[SHA256_SIZE];
        char hex[SHA256_HEX_SIZE];
        Sha256 hash = c->hash;
        sha256_final(&hash, digest);
        return strcasecmp(digest_hex(digest, sizeof digest, hex),
                          cli_text(json_array_get(c->parts, c->part), "sha256")) == 0;
}

/* @return 0; -EBADMSG: a part that ends in these bytes does not match the manifest, and stays the
 * current one for parts_check_restart_part(); or there are more bytes than parts */
static int parts_check_update(void *check, const void *data, size_t n) {
        PartsCheck *c = check;
        const char *from = data;
        while (n > 0) {
                if (parts_check_is_complete(c))
                        return -EBADMSG;
                size_t now = (size_t)MIN((uint64_t)n, c->part_offset + c->part_bytes - c->offset);
                sha256_update(&c->hash, from, now);
                from += now;
                n -= now;
                c->offset += now;
                if (c->offset < c->part_offset + c->part_bytes)
                        continue;
                if (!is_as_listed(c))
                        return -EBADMSG;
                c->part++;
                start_part(c);
        }
        return 0;
}

static void parts_check_restart_part(PartsCheck *c) {
        c->offset = c->part_offset;
        sha256_init(&c->hash);
}

#define DRAW_USEC (200 * USEC_PER_MSEC)
/* ---- shared by bundles and members ---- */

static uint64_t get_object_bytes(const Get *g) {
        return cli_number(json_object_get(g->manifest, "bundle"), "bytes");
}

static int report_read_error(const Get *g, int r) {
        if (r == -EINTR)
                return output_report(&g->out, r);
        int code = object_store_report(g->store, r);
        char bytes[PARSE_FORMAT_SIZE];
        if (!output_is_stdout(&g->out) && g->out.written > 0)
                cli_error("%s are in '%s'; the same command resumes there",
                          parse_format_human(bytes, g->out.written), g->out.partial);
        return code;
}

static int open_range(Get *g, uint64_t offset, uint64_t bytes, ByteSource **ret) {
        if (g->begin_usec == 0)
                g->begin_usec = clock_boottime_usec();
        int r = object_store_reader(g->store,
                                    &(ObjectRange){ .key = g->names.object,
                                                    .offset = offset,
                                                    .bytes = bytes,
                                                    .object_bytes = get_object_bytes(g) },
                                    ret);
        return r == 0 ? CLI_YES : report_read_error(g, r);
}

/* Passes a file of an earlier run to `handle`, step by step. @return 0; the first result of
 * `handle` that is not 0; -errno, -EINTR */
static int read_existing(const Get *g, int fd, uint64_t bytes,
                         int (*handle)(void *userdata, const void *data, size_t n),
                         void *userdata) {
        int r = 0;
        for (uint64_t at = 0; r == 0 && at < bytes;) {
                size_t n = (size_t)MIN(bytes - at, (uint64_t)GET_STEP_BYTES);
                r = cli_is_interrupted() ? -EINTR : fs_pread_all(fd, g->step, n, at);
                if (r == 0)
                        r = handle(userdata, g->step, n);
                at += n;
                cli_progress(g->cli, "verifying the existing file: %u %%", cli_percent(at, bytes));
        }
        cli_progress_end();
        return r;
}

static int check_existing(Get *g, int (*is_same)(int fd, void *userdata), void *userdata,
                          bool *ret_is_there) {
        *ret_is_there = false;
        _cleanup_close_ int fd = output_open_existing(&g->out);
        if (fd == -ENOENT)
                return CLI_YES;
        if (fd < 0 && fd != -EACCES)
                return cli_error("'%s' cannot be written: %s", g->out.path,
                                 fd == -EBADF ? "it is not a regular file; -o - writes to stdout"
                                              : strerror(-fd));
        int r = fd < 0 ? 0 : is_same(fd, userdata);
        if (r < 0)
                return object_store_report(g->store, r);
        *ret_is_there = r > 0;
        return *ret_is_there || g->out.may_replace ? CLI_YES : output_report_exists(&g->out);
}

static void count_loaded(Get *g, uint64_t loaded_bytes) {
        uint64_t now = clock_boottime_usec();
        g->loaded_bytes += loaded_bytes;
        if (!g->cli->progress || now - g->drawn_usec < DRAW_USEC)
                return;
        uint64_t passed = MAX(now - g->begin_usec, UINT64_C(1));
        double rate = (double)g->loaded_bytes / (double)passed * (double)USEC_PER_SEC;
        uint64_t done = output_is_stdout(&g->out) || g->member ? g->loaded_bytes : g->out.written;
        double missing = (double)(g->total_bytes - MIN(done, g->total_bytes));
        g->drawn_usec = now;
        cli_draw_copy(g->cli, "",
                      &(CliCopy){ .done_bytes = done,
                                  .total_bytes = g->total_bytes,
                                  .rate = (uint64_t)rate,
                                  .eta_seconds = (uint64_t)MIN(missing / rate, (double)UINT32_MAX),
                                  .has_eta = true });
}

/* ---- the manifest ---- */

/* Reports that there is no manifest: the bundle was not delivered, or the name is wrong. */
static int report_no_bundle(const Get *g) {
        _cleanup_free_ char *why = strdup(object_store_error(g->store)),
                            *url = object_store_url(g->store, g->names.stem);
        uint64_t bytes;
        if (object_store_stat(g->store, g->names.object, &bytes) == 0)
                cli_error("'%s' has no manifest: its delivery is unfinished or was given up",
                          g->object_url);
        else
                cli_error("no bundle '%s' (%s); `neuron-collect ls` lists the bundles",
                          url ? url : "?", why && *why ? why : "no manifest");
        return CLI_NO;
}

static int read_manifest(Get *g) {
        bool is_missing;
        g->manifest_text.key = g->names.manifest;
        int code =
                object_store_read_manifest(g->store, &g->manifest_text, &g->manifest, &is_missing);
        return is_missing ? report_no_bundle(g) : code;
}

/* ---- a whole bundle ---- */

typedef struct Whole {
        Get *get;
        PartsCheck check;
        uint64_t kept_bytes; /* of the partial file, from an earlier run */
        char *manifest_path; /* NULL: none is written */
        bool has_manifest;   /* the same manifest exists there */
} Whole;

/* ---- the existing file ---- */

/* @return whether the file is the object; -EINTR */
static int is_same_bundle(int fd, void *userdata) {
        Whole *w = userdata;
        uint64_t bytes = get_object_bytes(w->get);
        if (lseek(fd, 0, SEEK_END) != (off_t)bytes)
                return 0;
        int r = read_existing(w->get, fd, bytes, parts_check_update, &w->check);
        parts_check_init(&w->check, w->get->manifest);
        return r == -EINTR ? r : r == 0;
}

static int check_manifest(Whole *w) {
        Get *g = w->get;
        _cleanup_free_ char *text = NULL;
        size_t n;
        if (output_is_stdout(&g->out))
                return CLI_YES;
        size_t n_stem;
        bool has_suffix = bundle_file_kind(g->out.path, &n_stem) == BUNDLE_OBJECT;
        if (asprintf(&w->manifest_path, "%.*s" MANIFEST_SUFFIX,
                     (int)(has_suffix ? n_stem : strlen(g->out.path)), g->out.path) < 0) {
                w->manifest_path = NULL;
                return cli_error("%s", strerror(ENOMEM));
        }
        if (access(w->manifest_path, F_OK) < 0)
                return CLI_YES;
        w->has_manifest =
                fs_read_file(AT_FDCWD, w->manifest_path, MANIFEST_MAX_BYTES, &text, &n) == 0 &&
                n == g->manifest_text.n && memcmp(text, g->manifest_text.text, n) == 0;
        if (w->has_manifest || g->out.may_replace)
                return CLI_YES;
        return cli_error(
                "'%s' exists and is another bundle's manifest; replace it with --force, or name "
                "another place with -o",
                w->manifest_path);
}

/* Verifies the partial file of an earlier run, and keeps its parts up to the first bad one. */
static int keep_partial(Whole *w) {
        Get *g = w->get;
        if (output_is_stdout(&g->out) || g->out.kept == 0)
                return CLI_YES;
        int r = read_existing(g, g->out.fd, MIN(g->out.kept, get_object_bytes(g)),
                              parts_check_update, &w->check);
        if (r == -EINTR)
                return object_store_report(g->store, r);
        if (r != 0)
                parts_check_restart_part(&w->check);
        r = output_rewind(&g->out, w->check.offset);
        w->kept_bytes = w->check.offset;
        return r < 0 ? output_report(&g->out, r) : CLI_YES;
}

/* ---- loading ---- */

static int report_bad_part(const Whole *w) {
        const Get *g = w->get;
        return cli_error(
                "'%s': bytes %llu to %llu do not match the manifest%s; the object is damaged or "
                "was replaced: `neuron-collect verify` reports which members are good",
                g->object_url, (unsigned long long)w->check.part_offset,
                (unsigned long long)(w->check.part_offset + w->check.part_bytes - 1),
                output_is_stdout(&g->out) ? ", do not use what was written" : "");
}

/* Loads the rest. A part that began with kept bytes and is bad ends it with *ret_again: then these
 * bytes are discarded, and the part is loaded again. */
static int load_rest(Whole *w, bool *ret_again) {
        Get *g = w->get;
        uint64_t total = get_object_bytes(g);
        _cleanup_(object_reader_freep) ByteSource *reader = NULL;
        int code = open_range(g, w->check.offset, total - w->check.offset, &reader);
        while (code == CLI_YES && w->check.offset < total) {
                size_t n = (size_t)MIN(total - w->check.offset, (uint64_t)GET_STEP_BYTES);
                int r = reader->read_at(reader, w->get->step, n, w->check.offset);
                if (r < 0)
                        return report_read_error(g, r);
                count_loaded(g, n);
                if (parts_check_update(&w->check, w->get->step, n) != 0) {
                        *ret_again = w->check.part_offset < w->kept_bytes;
                        parts_check_restart_part(&w->check);
                        w->kept_bytes = 0;
                        if (!output_is_stdout(&g->out) &&
                            (r = output_rewind(&g->out, w->check.offset)) < 0)
                                return output_report(&g->out, r);
                        return *ret_again ? CLI_YES : report_bad_part(w);
                }
                r = output_write(&g->out, w->get->step, n);
                if (r < 0)
                        return output_report(&g->out, r);
        }
        return code;
}

static int load_bundle(Whole *w) {
        bool again;
        int code = output_open(&w->get->out);
        if (code == CLI_YES)
                code = keep_partial(w);
        if (code == CLI_YES)
                code = output_check_space(&w->get->out, get_object_bytes(w->get) - w->check.offset);
        do {
                again = false;
                if (code == CLI_YES && !parts_check_is_complete(&w->check))
                        code = load_rest(w, &again);
        } while (again && code == CLI_YES);
        cli_progress_end();
        return code == CLI_YES ? output_commit(&w->get->out) : code;
}

/* ---- the end ---- */

/* Writes the manifest last, as agents do: where there is a manifest, the bundle is complete. */
static int write_manifest(const Whole *w) {
        const Get *g = w->get;
        if (!w->manifest_path || w->has_manifest)
                return CLI_YES;
        _cleanup_close_ int fd = output_open_parent(w->manifest_path);
        int r = fd < 0 ? fd
                       : fs_write_file(fd, path_name(w->manifest_path), g->manifest_text.text,
                                       g->manifest_text.n, 0644);
        if (r == 0)
                return CLI_YES;
        return cli_error("cannot write '%s': %s", w->manifest_path, strerror(-r));
}

static int print_bundle(const Whole *w, bool was_there) {
        const Get *g = w->get;
        char bytes[PARSE_FORMAT_SIZE], kept[PARSE_FORMAT_SIZE], parts[CLI_COUNT_SIZE];
        if (output_is_stdout(&g->out))
                return CLI_YES;
        if (g->cli->json) {
                return cli_print_new_json(g->cli,
                                          json_pack("{s:o, s:o, s:o, s:I, s:I}", "object",
                                                    cli_json_string(g->object_url), "file",
                                                    cli_json_string(g->out.path), "manifest",
                                                    cli_json_string(w->manifest_path), "bytes",
                                                    (json_int_t)get_object_bytes(g), "loaded_bytes",
                                                    (json_int_t)g->loaded_bytes));
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

static int get_bundle(Whole *w) {
        Get *g = w->get;
        bool is_there = false;
        int code = check_manifest(w);
        if (code == CLI_YES && !output_is_stdout(&g->out))
                code = check_existing(g, is_same_bundle, w, &is_there);
        if (code == CLI_YES && !is_there)
                code = load_bundle(w);
        if (code == CLI_YES)
                code = write_manifest(w);
        return code == CLI_YES ? print_bundle(w, is_there) : code;
}

static int get_whole(Get *g) {
        Whole w = { .get = g };
        _cleanup_free_ char *name = bundle_object_name(path_name(g->names.stem));
        if (!name)
                return cli_error("%s", strerror(ENOMEM));
        parts_check_init(&w.check, g->manifest);
        g->total_bytes = get_object_bytes(g);
        int code = output_init(&g->out, g->given_output, name);
        if (code == CLI_YES)
                code = get_bundle(&w);
        free(w.manifest_path);
        return code;
}

/* ---- one member: the seek table, then only the frames that hold it ---- */

#define TABLE_MAX_BYTES (64 * MIB)
typedef struct GetMember {
        Get *get;
        const json_t *entry; /* of the manifest */
        Fetch *fetch;
        FetchRange frames;
        int write_error; /* -errno of the output; 0 */
} GetMember;

/* ---- the existing file ---- */

static int update_digest(void *digest, const void *data, size_t n) {
        (void)member_digest_update(digest, data, n); /* whether the data is zero is not needed */
        return 0;
}

/* @return whether the file's content is the member's; -EINTR */
static int is_same_member(int fd, void *userdata) {
        const GetMember *m = userdata;
        MemberDigest d;
        uint8_t digest[SHA256_SIZE];
        char hex[SHA256_HEX_SIZE];
        bool is_sparse;
        uint64_t bytes = cli_number(m->entry, "bytes");
        if (lseek(fd, 0, SEEK_END) != (off_t)bytes)
                return 0;
        member_digest_init(&d);
        int r = read_existing(m->get, fd, bytes, update_digest, &d);
        if (r < 0)
                return r == -EINTR ? r : 0;
        member_digest_final(&d, digest, &is_sparse);
        return strcasecmp(digest_hex(digest, sizeof digest, hex),
                          cli_text(m->entry, is_sparse ? "sha256_sparse" : "sha256")) == 0;
}

/* ---- loading ---- */

/* Reports that the bundle does not match its manifest. */
static int report_damaged(const GetMember *m, const char *what) {
        const Get *g = m->get;
        return cli_error(
                "'%s' in '%s': %s%s; `neuron-collect verify` reports which members are good",
                g->member, g->object_url, *what ? what : "the object does not fit its manifest",
                output_is_stdout(&g->out) && g->out.written > 0 ? ", do not use what was written"
                                                                : "");
}

static int write_member(const void *data, uint64_t n, uint64_t offset, void *userdata) {
        GetMember *m = userdata;
        (void)offset; /* the pieces come in order */
        m->write_error =
                data ? output_write(&m->get->out, data, (size_t)n) : output_zeros(&m->get->out, n);
        return m->write_error;
}

static int load_table(GetMember *m, const FetchRange *table) {
        if (table->bytes > TABLE_MAX_BYTES)
                return report_damaged(m, "its table of frames is too large");
        _cleanup_(object_reader_freep) ByteSource *reader = NULL;
        _cleanup_free_ void *data = malloc(table->bytes + 1);
        int code = data ? open_range(m->get, table->offset, table->bytes, &reader) : CLI_NO;
        if (code != CLI_YES)
                return code;
        int r = reader->read_at(reader, data, table->bytes, table->offset);
        if (r < 0)
                return report_read_error(m->get, r);
        m->get->loaded_bytes += table->bytes;
        r = fetch_set_table(m->fetch, data, table->bytes, &m->frames);
        if (r == -EINVAL)
                return report_damaged(m, fetch_error_text(m->fetch));
        return r < 0 ? report_read_error(m->get, r) : CLI_YES;
}

/* @return CLI_YES, CLI_NO; *ret_bad: the content does not match the manifest, which the caller
 * reports */
static int load_frames(GetMember *m, bool *ret_bad) {
        Get *g = m->get;
        _cleanup_(object_reader_freep) ByteSource *reader = NULL;
        int r = 0, code = CLI_YES;
        if (m->frames.bytes > 0)
                code = open_range(g, m->frames.offset, m->frames.bytes, &reader);
        g->total_bytes = m->frames.bytes;
        for (uint64_t at = 0; code == CLI_YES && r == 0 && at < m->frames.bytes;) {
                size_t n = (size_t)MIN(m->frames.bytes - at, (uint64_t)GET_STEP_BYTES);
                r = reader->read_at(reader, m->get->step, n, m->frames.offset + at);
                if (r < 0)
                        return report_read_error(g, r);
                count_loaded(g, n);
                r = fetch_supply_data(m->fetch, m->get->step, n, write_member, m);
                at += n;
        }
        if (m->write_error < 0)
                return output_report(&g->out, m->write_error);
        if (code == CLI_YES && r == 0)
                r = fetch_finish(m->fetch);
        *ret_bad = r == -EBADMSG;
        return r < 0 && r != -EBADMSG ? report_read_error(g, r) : code;
}

static int supply_kept(void *fetch, const void *data, size_t n) {
        fetch_supply_kept(fetch, data, n);
        return 0;
}

/* Adds the bytes of an earlier run to the digest. */
static int hash_kept(GetMember *m, uint64_t bytes) {
        int r = read_existing(m->get, m->get->out.fd, bytes, supply_kept, m->fetch);
        if (r == 0)
                r = output_rewind(&m->get->out, bytes);
        return r < 0 ? output_report(&m->get->out, r) : CLI_YES;
}

/* @param kept  bytes of the partial file that may be kept
 * @param ret_bad  as in load_frames()
 * @param ret_kept  bytes that were kept */
static int load_once(GetMember *m, uint64_t kept, bool *ret_bad, uint64_t *ret_kept) {
        Get *g = m->get;
        FetchRange table;
        int r = fetch_new(&m->fetch, g->manifest, g->member, &table);
        if (r == -EINVAL)
                return report_damaged(m, "the manifest's values for it are impossible");
        int code = r < 0 ? report_read_error(g, r) : load_table(m, &table);
        *ret_kept = 0;
        if (code != CLI_YES)
                return code;
        if (kept > 0) {
                r = fetch_resume(m->fetch, kept, &m->frames, ret_kept);
                if (r < 0)
                        return report_read_error(g, r);
        }
        if (!output_is_stdout(&g->out))
                code = hash_kept(m, *ret_kept);
        if (code == CLI_YES)
                code = load_frames(m, ret_bad);
        if (code == CLI_YES && !*ret_bad && !output_is_stdout(&g->out) &&
            (r = output_rewind(&g->out, fetch_bytes(m->fetch))) < 0) /* a hole at its end */
                code = output_report(&g->out, r);
        return code;
}

static int load_member(GetMember *m) {
        Get *g = m->get;
        bool bad = false;
        uint64_t kept;
        int code = output_open(&g->out);
        if (code == CLI_YES)
                code = load_once(m, g->out.kept, &bad, &kept);
        if (code == CLI_YES && bad &&
            kept > 0) { /* the kept bytes may be another bundle's, or damaged by a crash */
                bad = false;
                m->fetch = fetch_free(m->fetch);
                code = load_once(m, 0, &bad, &kept);
        }
        cli_progress_end();
        if (code != CLI_YES)
                return code;
        if (!bad)
                return output_commit(&g->out);
        output_discard(&g->out);
        return report_damaged(m, fetch_error_text(m->fetch));
}

/* ---- the end ---- */

static int print_member(const GetMember *m, bool was_there) {
        const Get *g = m->get;
        char bytes[PARSE_FORMAT_SIZE], loaded[PARSE_FORMAT_SIZE];
        if (output_is_stdout(&g->out))
                return CLI_YES;
        if (g->cli->json) {
                return cli_print_new_json(g->cli,
                                          json_pack("{s:o, s:o, s:o, s:O, s:I}", "object",
                                                    cli_json_string(g->object_url), "member",
                                                    cli_json_string(g->member), "file",
                                                    cli_json_string(g->out.path), "bytes",
                                                    json_object_get(m->entry, "bytes"),
                                                    "loaded_bytes", (json_int_t)g->loaded_bytes));
        }
        parse_format_human(bytes, cli_number(m->entry, "bytes"));
        if (was_there)
                cli_line("%s: %s, verified, was here already", g->out.path, bytes);
        else
                cli_line("%s: %s, verified; %s were loaded for it", g->out.path, bytes,
                         parse_format_human(loaded, g->loaded_bytes));
        return CLI_YES;
}

static int report_no_member(const Get *g) {
        const json_t *members = json_object_get(g->manifest, "members");
        _cleanup_(suggest_done) Suggestion near = { .wanted = g->member };
        size_t i;
        json_t *entry;
        json_array_foreach(members, i, entry) suggest_add(&near, cli_text(entry, "path"));
        char n[CLI_COUNT_SIZE];
        if (near.name)
                cli_error("no member '%s' in '%s'; did you mean '%s'?", g->member, g->object_url,
                          near.name);
        else
                cli_error("no member '%s' in '%s'; it has %s, which its manifest lists", g->member,
                          g->object_url, cli_count(n, json_array_size(members), "member"));
        return CLI_NO;
}

static int get_entry(GetMember *m, const char *name) {
        Get *g = m->get;
        bool is_there = false;
        int code = output_init(&g->out, g->given_output, name);
        if (code == CLI_YES && !output_is_stdout(&g->out))
                code = check_existing(g, is_same_member, m, &is_there);
        if (code == CLI_YES && !is_there)
                code = load_member(m);
        return code == CLI_YES ? print_member(m, is_there) : code;
}

static int get_member(Get *g) {
        _cleanup_free_ char *raw = NULL;
        GetMember m = { .get = g,
                        .entry = cli_find(json_object_get(g->manifest, "members"), "path",
                                          g->member) };
        if (!m.entry)
                return report_no_member(g);
        int code = CLI_NO;
        if (path_unescape(g->member, &raw) < 0)
                cli_error("%s", strerror(ENOMEM)); /* manifest_read() has checked the escapes */
        else
                code = get_entry(&m, path_name(raw));
        fetch_free(m.fetch);
        return code;
}

/* ---- the command ---- */

static int parse(int argc, char **argv, Get *g, S3Options *s3) {
        const CliOption options[] = { S3_OPTION_ROWS(s3),
                                      { "member", .value = &g->member },
                                      { "output", .value = &g->given_output, .letter = 'o' },
                                      { "force", .is_given = &g->out.may_replace },
                                      { 0 } };
        int code = cli_options(argv[0], argc, argv, options);
        if (code != CLI_YES)
                return code;
        if (argc - optind != 1 || !*argv[optind])
                return cli_usage(argv[0], "requires one bundle, s3://bucket/key or a path");
        if (g->member && !*g->member)
                return cli_usage(argv[0], "--member requires the path of a member");
        if (g->given_output && !*g->given_output)
                return cli_usage(argv[0], "-o requires a file, a directory or -");
        if (g->given_output && strcmp(g->given_output, "-") == 0 && g->cli->json)
                return cli_usage(argv[0], "--json and the content cannot both go to stdout");
        return CLI_YES;
}

static int get(Get *g) {
        g->object_url = object_store_url(g->store, g->names.object);
        g->step = malloc(GET_STEP_BYTES);
        int code = g->object_url && g->step ? read_manifest(g) : CLI_NO;
        if (code != CLI_YES)
                return code;
        return g->member ? get_member(g) : get_whole(g);
}

int cmd_get(const Cli *cli, int argc, char **argv) {
        S3Options s3 = { 0 };
        Get g = { .cli = cli, .out = OUTPUT_INIT };
        int code = parse(argc, argv, &g, &s3);
        if (code == CLI_YES)
                code = object_store_open_bundle(&g.store, cli, argv, &s3, &g.names);
        if (code == CLI_YES)
                code = get(&g);
        cli_progress_end();
        output_done(&g.out);
        json_decref(g.manifest);
        object_head_done(&g.manifest_text);
        free(g.object_url);
        free(g.step);
        bundle_names_done(&g.names);
        object_store_free(g.store);
        return code;
}
