/* The tar stream of a plan, made piece by piece while the members are read: headers, data, padding, end blocks. On the way each
 * content byte passes the member's digest and its validator. Private to the writer. */
#pragma once

#include "lib/bundle/member_digest.h"
#include "lib/bundle/pages.h"
#include "lib/bundle/writer.h"

typedef enum WriterMember {
        WRITER_MEMBER_NEXT,
        WRITER_MEMBER_OPEN,
        WRITER_MEMBER_FINISHED
} WriterMember;

typedef struct WriterStream {
        const Plan *plan;
        const BundleWriterOptions *options;
        MemberResult *results; /* one a member; owned */
        WriterMark start;      /* of the member in which it starts */
        size_t failed_member;
        uint64_t bytes_read;

        size_t member;      /* plan_n_members() = the end blocks */
        WriterMember state; /* its: its padding is made when it is FINISHED */
        uint64_t position;  /* in its part of the stream */
        uint64_t data_end;  /* where its padding begins */

        /* the open member */
        bool is_lost; /* nothing more to be read from it: zeros (tolerant) */
        int fd;
        void *header;         /* owned */
        uint32_t extent;      /* the one being read … */
        uint64_t extent_done; /* … and how much of it */
        uint64_t content;     /* next byte of the content for the digest */
        Pages pages;
        MemberDigest digest;
        Validator *validator; /* owned; NULL: only frames are wanted */
        Verdict fault;
        char *fault_detail; /* what went wrong (tolerant); owned */
} WriterStream;

/** Starts at an offset of the stream. @param options  borrowed, as is the plan. @return 0 or -ENOMEM */
int writer_stream_init(WriterStream *s, const Plan *plan, const BundleWriterOptions *options,
                       uint64_t stream_offset);
void writer_stream_done(WriterStream *s);

/** @return whether a member's data has begun before stream_offset and ends behind it; *ret that member */
bool writer_stream_is_inside(const Plan *plan, uint64_t stream_offset, size_t *ret);

/** Writes down how the member stands in whose data the stream is; leaves *ret alone elsewhere. @param ret  initialised, replaced
 * @return 0 or -ENOMEM */
int writer_stream_mark(const WriterStream *s, WriterMark *ret);

/** Makes the next n bytes of the stream, which must be there. A member ends with its last byte of data: whatever is wrong with it
 * then is told in this call.
 * @param ret_zero  whether all of them are zero
 * @return 0, WRITER_E_CHANGED, -errno; after anything but 0 it cannot go on */
int writer_stream_read(WriterStream *s, void *data, size_t n, bool *ret_zero);
