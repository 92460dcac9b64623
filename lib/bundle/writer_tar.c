/* libarchive knows the pax format and its dialects; data and padding are written by us. So each header is made by an
 * archive of its own that never sees the data: it costs 3 µs, and one that were used again would write the data's
 * bytes as zeros first. */
#include "lib/bundle/writer_tar.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/strbuf.h"

DEFINE_CLEANUP(struct archive, archive_write_free);
DEFINE_CLEANUP(struct archive_entry, archive_entry_free);

typedef struct TarOutput {
        StrBuf bytes;
        bool is_complete; /* what comes now is not wanted */
} TarOutput;

static la_ssize_t on_output(struct archive *a, void *userdata, const void *data, size_t n) {
        TarOutput *output = userdata;
        (void)a;
        if (output->is_complete)
                return -1; /* or closing the archive would write the member's data, as zeros */
        strbuf_add_n(&output->bytes, data, n);
        return (la_ssize_t)n; /* a failure is remembered by the StrBuf */
}

static void fill_entry(struct archive_entry *e, const PlanMember *m) {
        archive_entry_copy_pathname(e, m->path);
        archive_entry_set_mode(e, S_IFREG | (m->mode & 07777));
        archive_entry_set_uid(e, m->uid);
        archive_entry_set_gid(e, m->gid);
        archive_entry_set_size(e, (int64_t)m->bytes);
        /* libarchive 3.6 spells -6 s + 0.5 s as -6.5 */
        archive_entry_set_mtime(e, (time_t)m->mtime_sec,
                                m->mtime_sec < 0 ? 0 : (long)m->mtime_nsec);
        if (!m->is_sparse)
                return;
        for (uint32_t i = 0; i < m->n_extents; i++)
                archive_entry_sparse_add_entry(e, (int64_t)m->extents[i].offset,
                                               (int64_t)m->extents[i].bytes);
        if (m->n_extents == 0)
                archive_entry_sparse_add_entry(e, 0, 0); /* all hole */
}

/* Names are raw bytes. Those that are not ASCII are marked so (hdrcharset=BINARY): called UTF-8, they would have to be
 * converted, which libarchive cannot in the C locale of a daemon, nor bsdtar when it extracts them there. */
static int mark_name(struct archive *a, const char *path) {
        for (const char *c = path; *c; c++)
                if ((unsigned char)*c >= 0x80)
                        return archive_write_set_format_option(a, "pax", "hdrcharset", "BINARY");
        return ARCHIVE_OK;
}

static int make_header(const PlanMember *m, TarOutput *output) {
        _cleanup_(archive_entry_freep) struct archive_entry *e = archive_entry_new();
        _cleanup_(archive_write_freep) struct archive *a = archive_write_new();
        if (!e || !a)
                return -ENOMEM;
        fill_entry(e, m);
        if (archive_write_set_format_pax(a) != ARCHIVE_OK || mark_name(a, m->path) != ARCHIVE_OK ||
            archive_write_set_bytes_per_block(a, 0) != ARCHIVE_OK || /* 0 = no padding to 10 KiB */
            archive_write_open(a, output, NULL, on_output, NULL) != ARCHIVE_OK)
                return -ENOMEM;

        int r = archive_write_header(a, e);
        if (r >= ARCHIVE_WARN && m->is_sparse && archive_write_data(a, "", 0) < 0) /* the map */
                r = ARCHIVE_FATAL;
        output->is_complete = true;
        return r < ARCHIVE_WARN ? -EIO : 0;
}

int writer_tar_header(const PlanMember *m, void **ret, size_t *ret_bytes) {
        TarOutput output = { 0 };

        int r = make_header(m, &output);
        if (r == 0)
                r = strbuf_error(&output.bytes);
        if (r < 0) {
                strbuf_done(&output.bytes);
                return r;
        }
        *ret_bytes = output.bytes.n;
        *ret = strbuf_take(&output.bytes);
        return 0;
}
