/* One member: the seek table, then only the frames that hold it, unpacked as they come. */
#include <errno.h>
#include <string.h>
#include <strings.h>

#include "cli/archive/get.h"
#include "cli/near.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/bundle/fetch.h"
#include "lib/bundle/member_digest.h"

#define TABLE_MAX_BYTES (64 * MIB)

typedef struct Member {
        Get *get;
        const json_t *entry; /* of the manifest */
        Fetch *fetch;
        FetchRange frames;
        char *step;      /* GET_STEP_BYTES */
        int write_error; /* -errno of the output; 0 */
} Member;

static const json_t *find_entry(const Get *g) {
        size_t i;
        json_t *entry;
        json_array_foreach(json_object_get(g->manifest, "members"), i,
                           entry) if (strcmp(cli_text(entry, "path"), g->member) == 0) return entry;
        return NULL;
}

/* ---- what is there already ---- */

/* @return whether the file's content is the member's; -EINTR */
static int is_same(int fd, void *userdata) {
        const Member *m = userdata;
        MemberDigest d;
        uint8_t digest[SHA256_SIZE];
        char hex[SHA256_HEX_SIZE];
        bool is_sparse;
        uint64_t bytes = cli_number(m->entry, "bytes");
        if (lseek(fd, 0, SEEK_END) != (off_t)bytes)
                return 0;
        member_digest_init(&d);
        for (uint64_t at = 0; at < bytes;) {
                size_t n = (size_t)MIN(bytes - at, (uint64_t)GET_STEP_BYTES);
                if (cli_is_interrupted())
                        return -EINTR;
                if (fs_pread_all(fd, m->step, n, at) < 0)
                        return 0;
                (void)member_digest_update(&d, m->step,
                                           n); /* whether it is zero is nobody's concern here */
                at += n;
        }
        member_digest_final(&d, digest, &is_sparse);
        return strcasecmp(digest_hex(digest, sizeof digest, hex),
                          cli_text(m->entry, is_sparse ? "sha256_sparse" : "sha256")) == 0;
}

/* ---- loading ---- */

/* A bundle that is not what its manifest says. */
static int say_damaged(const Member *m, const char *what) {
        const Get *g = m->get;
        cli_error("'%s' in '%s': %s%s; `neuron-collect verify` tells what of the bundle is good",
                  g->member, g->object_url, *what ? what : "the object does not fit its manifest",
                  output_is_stdout(&g->out) && g->out.written > 0 ? ", do not use what was written"
                                                                  : "");
        return CLI_NO;
}

static int put(const void *data, uint64_t n, uint64_t offset, void *userdata) {
        Member *m = userdata;
        (void)offset; /* in order */
        m->write_error =
                data ? output_write(&m->get->out, data, (size_t)n) : output_zeros(&m->get->out, n);
        return m->write_error;
}

static int load_table(Member *m, const FetchRange *table) {
        if (table->bytes > TABLE_MAX_BYTES)
                return say_damaged(m, "its table of frames is too large");
        _cleanup_(object_reader_freep) ObjectReader *reader = NULL;
        _cleanup_free_ void *data = malloc(table->bytes + 1);
        int code = data ? get_open_range(m->get, table->offset, table->bytes, &reader) : CLI_NO;
        if (code != CLI_YES)
                return code;
        int r = reader->source.read_at(&reader->source, data, table->bytes, table->offset);
        if (r < 0)
                return get_say(m->get, r);
        m->get->loaded_bytes += table->bytes;
        r = fetch_set_table(m->fetch, data, table->bytes, &m->frames);
        if (r == -EINVAL)
                return say_damaged(m, fetch_fault(m->fetch));
        return r < 0 ? get_say(m->get, r) : CLI_YES;
}

/* @return CLI_YES, CLI_NO; *ret_bad when the content is not what it should be, which is not said */
static int load_frames(Member *m, bool *ret_bad) {
        Get *g = m->get;
        _cleanup_(object_reader_freep) ObjectReader *reader = NULL;
        int r = 0, code = CLI_YES;
        if (m->frames.bytes > 0)
                code = get_open_range(g, m->frames.offset, m->frames.bytes, &reader);
        g->total_bytes = m->frames.bytes;
        for (uint64_t at = 0; code == CLI_YES && r == 0 && at < m->frames.bytes;) {
                size_t n = (size_t)MIN(m->frames.bytes - at, (uint64_t)GET_STEP_BYTES);
                r = reader->source.read_at(&reader->source, m->step, n, m->frames.offset + at);
                if (r < 0)
                        return get_say(g, r);
                get_note(g, n);
                r = fetch_feed(m->fetch, m->step, n, put, m);
                at += n;
        }
        if (m->write_error < 0)
                return output_say(&g->out, m->write_error);
        if (code == CLI_YES && r == 0)
                r = fetch_finish(m->fetch);
        *ret_bad = r == -EBADMSG;
        return r < 0 && r != -EBADMSG ? get_say(g, r) : code;
}

/* Feeds what an earlier run has left to the digest. */
static int feed_kept(Member *m, uint64_t bytes) {
        int r = 0;
        for (uint64_t at = 0; r == 0 && at < bytes;) {
                size_t n = (size_t)MIN(bytes - at, (uint64_t)GET_STEP_BYTES);
                r = cli_is_interrupted() ? -EINTR : fs_pread_all(m->get->out.fd, m->step, n, at);
                if (r == 0)
                        fetch_feed_kept(m->fetch, m->step, n);
                at += n;
        }
        if (r == 0)
                r = output_rewind(&m->get->out, bytes);
        return r < 0 ? output_say(&m->get->out, r) : CLI_YES;
}

/* @param kept  what of the partial file may be kept @param ret_bad  as load_frames(); *ret_kept: how much was */
static int load_once(Member *m, uint64_t kept, bool *ret_bad, uint64_t *ret_kept) {
        Get *g = m->get;
        FetchRange table;
        int r = fetch_new(&m->fetch, g->manifest, g->member, &table);
        if (r == -EINVAL)
                return say_damaged(m, "the manifest says impossible things of it");
        int code = r < 0 ? get_say(g, r) : load_table(m, &table);
        *ret_kept = 0;
        if (code != CLI_YES)
                return code;
        if (kept > 0) {
                r = fetch_resume(m->fetch, kept, &m->frames, ret_kept);
                if (r < 0)
                        return get_say(g, r);
        }
        if (!output_is_stdout(&g->out))
                code = feed_kept(m, *ret_kept);
        if (code == CLI_YES)
                code = load_frames(m, ret_bad);
        if (code == CLI_YES && !*ret_bad && !output_is_stdout(&g->out) &&
            (r = output_rewind(&g->out, fetch_bytes(m->fetch))) < 0) /* a hole at its end */
                code = output_say(&g->out, r);
        return code;
}

static int load(Member *m) {
        Get *g = m->get;
        bool bad = false;
        uint64_t kept;
        int code = output_open(&g->out);
        if (code == CLI_YES)
                code = load_once(m, g->out.kept, &bad, &kept);
        if (code == CLI_YES && bad &&
            kept > 0) { /* of another bundle, perhaps, or broken by a crash */
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
        return say_damaged(m, fetch_fault(m->fetch));
}

/* ---- the end ---- */

static int tell(const Member *m, bool was_there) {
        const Get *g = m->get;
        char bytes[PARSE_FORMAT_SIZE], loaded[PARSE_FORMAT_SIZE];
        if (output_is_stdout(&g->out))
                return CLI_YES;
        if (g->cli->json) {
                json_t *answer = json_pack(
                        "{s:o, s:o, s:o, s:O, s:I}", "object", cli_json_string(g->object_url),
                        "member", cli_json_string(g->member), "file", cli_json_string(g->out.path),
                        "bytes", json_object_get(m->entry, "bytes"), "loaded_bytes",
                        (json_int_t)g->loaded_bytes);
                int code = cli_print_json(g->cli, answer);
                json_decref(answer);
                return code;
        }
        parse_format_human(bytes, cli_number(m->entry, "bytes"));
        if (was_there)
                cli_line("%s: %s, verified, was here already", g->out.path, bytes);
        else
                cli_line("%s: %s, verified; %s were loaded for it", g->out.path, bytes,
                         parse_format_human(loaded, g->loaded_bytes));
        return CLI_YES;
}

static int say_no_member(const Get *g) {
        const json_t *members = json_object_get(g->manifest, "members");
        _cleanup_(near_done) Near near = near_init(g->member);
        size_t i;
        json_t *entry;
        json_array_foreach(members, i, entry) near_look(&near, cli_text(entry, "path"));
        _cleanup_free_ char *names = near_text(&near);
        char n[CLI_COUNT_SIZE];
        cli_count(n, json_array_size(members), "member");
        cli_error("no member '%s' in '%s'; %s%s%s%s", g->member, g->object_url,
                  near.is_guess ? "" : "it has ", near.is_guess ? "" : n, near.is_guess ? "" : ", ",
                  names ? names : "");
        return CLI_NO;
}

static int get(Member *m, const char *name) {
        Get *g = m->get;
        bool is_there = false;
        int code = output_init(&g->out, &(OutputOrder){ .given = g->given_output,
                                                        .name = name,
                                                        .may_replace = g->may_replace });
        if (code == CLI_YES && !output_is_stdout(&g->out))
                code = get_look_at_existing(g, is_same, m, &is_there);
        if (code == CLI_YES && !is_there)
                code = load(m);
        return code == CLI_YES ? tell(m, is_there) : code;
}

int get_member(Get *g) {
        _cleanup_free_ char *raw = NULL;
        Member m = { .get = g, .entry = find_entry(g) };
        if (!m.entry)
                return say_no_member(g);
        m.step = malloc(GET_STEP_BYTES);
        int code = CLI_NO;
        if (!m.step || path_unescape(g->member, &raw) < 0)
                cli_error("%s", strerror(ENOMEM)); /* manifest_read() has seen to the spelling */
        else
                code = get(&m, path_name(raw));
        fetch_free(m.fetch);
        free(m.step);
        return code;
}
