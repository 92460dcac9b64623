/* The form, all numbers little-endian: u32 version; u64 first member, u64 number of members; for each: SHA-256 (32), u8 its form (1 =
 * sparse), u8 verdict, u16 length of the detail, detail. Then, if a member is open: its digest (member_digest_save()), u8 lost,
 * u8 verdict of its fault, u16 length of the fault's detail (0 = no fault), detail. */
#include "lib/bundle/packer_state.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#include "lib/base/strbuf.h"

#define STATE_VERSION 1
#define DETAIL_MAX UINT16_MAX

/* ---- the plan's side ---- */

static uint64_t frame_offset(const Plan *plan, uint64_t frame) {
        uint64_t offset, bytes;
        if (frame >= plan_n_frames(plan))
                return plan_stream_bytes(plan);
        plan_frame(plan, frame, &offset, &bytes);
        return offset;
}

/* @return how many members have all their data before an offset of the stream */
static size_t n_ended(const Plan *plan, uint64_t offset) {
        const size_t i = plan_member_at(plan, offset);
        if (i == plan_n_members(plan))
                return i;
        const PlanMember *m = plan_member(plan, i);
        return i + (offset - m->stream_offset >= m->header_bytes + plan_stored_bytes(m));
}

PackerSpan packer_span(const Plan *plan, uint64_t first_frame, uint64_t n_frames) {
        const uint64_t end = frame_offset(plan, first_frame + n_frames);
        PackerSpan span = { .first_member = n_ended(plan, frame_offset(plan, first_frame)),
                            .end_member = n_ended(plan, end),
                            .is_open = writer_mark_is_needed(plan, first_frame + n_frames) };
        if (span.is_open) {
                const PlanMember *m = plan_member(plan, span.end_member);
                span.content = plan_content_at(m, end - m->stream_offset - m->header_bytes);
        }
        return span;
}

/* ---- saving ---- */

static void put_number(StrBuf *b, uint64_t value, size_t bytes) {
        const uint64_t little = htole64(value);
        strbuf_add_n(b, &little, bytes);
}

static void put_detail(StrBuf *b, const char *detail) {
        const size_t n = detail ? strnlen(detail, DETAIL_MAX) : 0;
        put_number(b, n, 2);
        strbuf_add_n(b, detail ? detail : "", n);
}

static void put_result(StrBuf *b, const MemberResult *result) {
        strbuf_add_n(b, result->sha256, SHA256_SIZE);
        put_number(b, result->is_sparse_digest, 1);
        put_number(b, result->verdict, 1);
        put_detail(b, result->detail);
}

static void put_mark(StrBuf *b, const WriterMark *mark) {
        uint8_t digest[MEMBER_DIGEST_STATE_SIZE];
        member_digest_save(&mark->digest, digest);
        strbuf_add_n(b, digest, sizeof digest);
        put_number(b, mark->is_lost, 1);
        put_number(b, mark->fault_detail ? mark->fault : 0, 1);
        put_detail(b, mark->fault_detail);
}

int packer_state_save(const PackerSpan *span, const BundleWriter *w, PackedRow *row) {
        StrBuf b = STRBUF_INIT;
        put_number(&b, STATE_VERSION, 4);
        put_number(&b, span->first_member, 8);
        put_number(&b, span->end_member - span->first_member, 8);
        for (size_t i = span->first_member; i < span->end_member; i++)
                put_result(&b, bundle_writer_member(w, i));
        if (span->is_open)
                put_mark(&b, bundle_writer_mark(w));

        int r = strbuf_error(&b);
        if (r == 0) {
                row->state_bytes = b.n;
                row->state = (uint8_t *)strbuf_take(&b);
        }
        strbuf_done(&b);
        return r;
}

/* ---- loading ---- */

typedef struct Input {
        const uint8_t *data;
        size_t n;
        bool is_odd; /* for good */
} Input;

/* @return n bytes, NULL when they are not there */
static const uint8_t *take(Input *in, size_t n) {
        if (in->is_odd || n > in->n) {
                in->is_odd = true;
                return NULL;
        }
        const uint8_t *p = in->data;
        in->data += n;
        in->n -= n;
        return p;
}

static uint64_t take_number(Input *in, size_t bytes, uint64_t max) {
        uint64_t little = 0;
        const uint8_t *p = take(in, bytes);
        if (p)
                memcpy(&little, p, bytes);
        if (le64toh(little) > max) {
                in->is_odd = true;
                return 0;
        }
        return le64toh(little);
}

/* @param ret  the caller's; left alone when the text is empty or odd. @return 0 or -ENOMEM */
static int take_detail(Input *in, char **ret) {
        const size_t n = (size_t)take_number(in, 2, DETAIL_MAX);
        const uint8_t *p = take(in, n);
        if (!p || n == 0)
                return 0;
        if (memchr(p, 0, n)) {
                in->is_odd = true;
                return 0;
        }
        *ret = strndup((const char *)p, n);
        return *ret ? 0 : -ENOMEM;
}

static int take_result(Input *in, BundleWriter *w, size_t i) {
        static const uint8_t nothing[SHA256_SIZE];
        _cleanup_free_ char *detail = NULL;
        MemberResult result = { 0 };

        const uint8_t *digest = take(in, SHA256_SIZE);
        if (digest)
                memcpy(result.sha256, digest, SHA256_SIZE);
        if (memcmp(result.sha256, nothing, SHA256_SIZE) == 0)
                in->is_odd = true;
        result.is_sparse_digest = take_number(in, 1, 1);
        result.verdict = (Verdict)take_number(in, 1, N_VERDICTS - 1);
        int r = take_detail(in, &detail);
        result.detail = detail;
        return r < 0 || in->is_odd || !w ? r : bundle_writer_restore(w, i, &result);
}

static int take_mark(Input *in, const PackerSpan *span, WriterMark *ret) {
        WriterMark mark = { 0 };

        const uint8_t *digest = take(in, MEMBER_DIGEST_STATE_SIZE);
        if (!digest || member_digest_load(&mark.digest, digest) < 0 ||
            mark.digest.offset + mark.digest.pending_zeros != span->content) {
                in->is_odd = true;
                return 0;
        }
        mark.is_lost = take_number(in, 1, 1);
        mark.fault = (Verdict)take_number(in, 1, N_VERDICTS - 1);
        int r = take_detail(in, &mark.fault_detail);
        if (mark.is_lost && !mark.fault_detail)
                in->is_odd = true;
        if (r < 0 || in->is_odd) {
                writer_mark_done(&mark);
                return r;
        }
        writer_mark_done(ret);
        *ret = mark;
        return 0;
}

int packer_state_load(const PackerSpan *span, const PackedRow *row, BundleWriter *w,
                      WriterMark *ret) {
        Input in = { .data = row->state, .n = row->state ? row->state_bytes : 0 };
        int r = 0;

        if (take_number(&in, 4, UINT32_MAX) != STATE_VERSION ||
            take_number(&in, 8, UINT64_MAX) != span->first_member ||
            take_number(&in, 8, UINT64_MAX) != span->end_member - span->first_member)
                in.is_odd = true;
        for (size_t i = span->first_member; r == 0 && !in.is_odd && i < span->end_member; i++)
                r = take_result(&in, w, i);
        if (r == 0 && span->is_open)
                r = take_mark(&in, span, ret);
        if (r < 0)
                return r;
        return in.is_odd || in.n > 0 ? PACKER_E_ROWS : 0;
}
