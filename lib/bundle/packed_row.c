/* The state that the row of a part carries: the results of the members that ended in it, and how
 * the member stands that is open at its end. Everything else is determined by the plan, against
 * which a row of an earlier run is checked.
 *
 * The form, all numbers little-endian: u32 version; u64 first member, u64 number of members; for
 * each: SHA-256 (32), u8 its form (1 = sparse), u8 verdict, u16 length of the detail, detail. Then,
 * if a member is open: its digest (member_digest_save()), u8 lost, u8 verdict of its fault, u16
 * length of the fault's detail (0 = no fault), detail. */
#include "lib/bundle/packed_row.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/strbuf.h"
#include "lib/bundle/member_digest.h"
#include "lib/bundle/tar_stream.h"

void packed_row_done(PackedRow *r) {
        free(r->frame_bytes);
        free(r->state);
        *r = (PackedRow){ 0 };
}

#define STATE_VERSION 1
#define DETAIL_MAX UINT16_MAX

/* ---- what the plan determines of a run of frames ---- */

/* What the plan alone determines of a run of frames. */
typedef struct Span {
        size_t first_member, end_member; /* they end in it */
        bool is_open;                    /* a member's data continues behind it … */
        uint64_t content;                /* … and so much of its content came before */
} Span;

static uint64_t frame_offset(const Plan *plan, uint64_t frame) {
        uint64_t offset, bytes;
        if (frame >= plan_n_frames(plan))
                return plan_stream_bytes(plan);
        plan_frame(plan, frame, &offset, &bytes);
        return offset;
}

/* @return how many members have all their data before an offset of the stream */
static size_t count_ended(const Plan *plan, uint64_t offset) {
        const size_t i = plan_member_at(plan, offset);
        if (i == plan_n_members(plan))
                return i;
        const PlanMember *m = plan_member(plan, i);
        return i + (offset - m->stream_offset >= m->header_bytes + plan_stored_bytes(m));
}

static Span span_of(const Plan *plan, uint64_t first_frame, uint64_t n_frames) {
        const uint64_t end = frame_offset(plan, first_frame + n_frames);
        Span span = { .first_member = count_ended(plan, frame_offset(plan, first_frame)),
                      .end_member = count_ended(plan, end),
                      .is_open = writer_mark_is_needed(plan, first_frame + n_frames) };
        if (span.is_open) {
                const PlanMember *m = plan_member(plan, span.end_member);
                span.content = tar_stream_content_at(m, end - m->stream_offset - m->header_bytes);
        }
        return span;
}

/* ---- saving ---- */

/* Little-endian. */
static void write_number(StrBuf *b, uint64_t value, size_t bytes) {
        const uint64_t little = htole64(value);
        strbuf_add_n(b, &little, bytes);
}

static void write_detail(StrBuf *b, const char *detail) {
        const size_t n = detail ? strnlen(detail, DETAIL_MAX) : 0;
        write_number(b, n, 2);
        strbuf_add_n(b, detail ? detail : "", n);
}

static void write_result(StrBuf *b, const MemberResult *result) {
        strbuf_add_n(b, result->sha256, SHA256_SIZE);
        write_number(b, result->is_sparse_digest, 1);
        write_number(b, result->verdict, 1);
        write_detail(b, result->detail);
}

static void write_mark(StrBuf *b, const WriterMark *mark) {
        uint8_t digest[MEMBER_DIGEST_STATE_SIZE];
        member_digest_save(&mark->digest, digest);
        strbuf_add_n(b, digest, sizeof digest);
        write_number(b, mark->is_lost, 1);
        write_number(b, mark->fault_detail ? mark->fault : 0, 1);
        write_detail(b, mark->fault_detail);
}

int packed_row_save_state(PackedRow *row, const Plan *plan, const BundleWriter *w, bool *ret_lost) {
        const Span span = span_of(plan, row->first_frame, row->n_frames);
        StrBuf b = STRBUF_INIT;

        *ret_lost = span.is_open && bundle_writer_last_mark(w)->is_lost;
        write_number(&b, STATE_VERSION, 4);
        write_number(&b, span.first_member, 8);
        write_number(&b, span.end_member - span.first_member, 8);
        for (size_t i = span.first_member; i < span.end_member; i++)
                write_result(&b, bundle_writer_member(w, i));
        if (span.is_open)
                write_mark(&b, bundle_writer_last_mark(w));

        int r = strbuf_error(&b);
        if (r == 0) {
                row->state_bytes = b.n;
                row->state = (uint8_t *)strbuf_detach(&b);
        }
        strbuf_done(&b);
        return r;
}

/* ---- loading ---- */

typedef struct Input {
        const uint8_t *data;
        size_t n;
        bool is_invalid; /* for good */
} Input;

/* @return n bytes, NULL when they are not there */
static const uint8_t *read_bytes(Input *in, size_t n) {
        if (in->is_invalid || n > in->n) {
                in->is_invalid = true;
                return NULL;
        }
        const uint8_t *p = in->data;
        in->data += n;
        in->n -= n;
        return p;
}

static uint64_t read_number(Input *in, size_t bytes, uint64_t max) {
        uint64_t little = 0;
        const uint8_t *p = read_bytes(in, bytes);
        if (p)
                memcpy(&little, p, bytes);
        if (le64toh(little) > max) {
                in->is_invalid = true;
                return 0;
        }
        return le64toh(little);
}

/* @param ret  the caller's; unchanged when the text is empty or invalid. @return 0 or -ENOMEM */
static int read_detail(Input *in, char **ret) {
        const size_t n = (size_t)read_number(in, 2, DETAIL_MAX);
        const uint8_t *p = read_bytes(in, n);
        if (!p || n == 0)
                return 0;
        if (memchr(p, 0, n)) {
                in->is_invalid = true;
                return 0;
        }
        *ret = strndup((const char *)p, n);
        return *ret ? 0 : -ENOMEM;
}

static int read_result(Input *in, MemberResult *ret) {
        static const uint8_t nothing[SHA256_SIZE];

        const uint8_t *digest = read_bytes(in, SHA256_SIZE);
        if (digest)
                memcpy(ret->sha256, digest, SHA256_SIZE);
        if (memcmp(ret->sha256, nothing, SHA256_SIZE) == 0)
                in->is_invalid = true;
        ret->is_sparse_digest = read_number(in, 1, 1);
        ret->verdict = (Verdict)read_number(in, 1, N_VERDICTS - 1);
        return read_detail(in, &ret->detail);
}

static int read_mark(Input *in, const Span *span, WriterMark *ret) {
        WriterMark mark = { 0 };

        const uint8_t *digest = read_bytes(in, MEMBER_DIGEST_STATE_SIZE);
        if (!digest || member_digest_load(&mark.digest, digest) < 0 ||
            mark.digest.offset + mark.digest.pending_zeros != span->content) {
                in->is_invalid = true;
                return 0;
        }
        mark.is_lost = read_number(in, 1, 1);
        mark.fault = (Verdict)read_number(in, 1, N_VERDICTS - 1);
        int r = read_detail(in, &mark.fault_detail);
        if (mark.is_lost && !mark.fault_detail)
                in->is_invalid = true;
        if (r < 0 || in->is_invalid) {
                writer_mark_done(&mark);
                return r;
        }
        writer_mark_done(ret);
        *ret = mark;
        return 0;
}

int packed_row_load_state(const PackedRow *row, const Plan *plan, MemberResult *results,
                          WriterMark *mark, bool *ret_lost) {
        const Span span = span_of(plan, row->first_frame, row->n_frames);
        Input in = { .data = row->state, .n = row->state ? row->state_bytes : 0 };
        int r = 0;

        if (read_number(&in, 4, UINT32_MAX) != STATE_VERSION ||
            read_number(&in, 8, UINT64_MAX) != span.first_member ||
            read_number(&in, 8, UINT64_MAX) != span.end_member - span.first_member)
                in.is_invalid = true;
        for (size_t i = span.first_member; r == 0 && !in.is_invalid && i < span.end_member; i++)
                r = read_result(&in, &results[i]);
        if (r == 0 && span.is_open)
                r = read_mark(&in, &span, mark);
        if (r < 0)
                return r;
        if (in.is_invalid || in.n > 0)
                return PACKED_ROW_E_INVALID;
        *ret_lost = span.is_open && mark->is_lost;
        return 0;
}
