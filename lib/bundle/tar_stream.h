/* The tar stream of a frozen plan, read from its members in order; for lib/bundle, but for what is
 * known of a member. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/bundle/member_digest.h"
#include "lib/bundle/plan.h"
#include "lib/bundle/validate.h"

typedef struct MemberResult {
        uint8_t sha256[SHA256_SIZE];
        bool is_sparse_digest;
        Verdict verdict;
        char *detail; /* owned by the writer; may be NULL */
} MemberResult;

/* What a later run must know of the member whose data continues behind the end of a frame, beside
 * the plan. */
typedef struct WriterMark {
        MemberDigest digest;
        bool is_lost;       /* nothing more is read from it: zeros (tolerant) */
        Verdict fault;      /* with fault_detail */
        char *fault_detail; /* owned; NULL: none so far */
} WriterMark;

void writer_mark_done(WriterMark *m);

/** @return n results, none of which is known yet; NULL for lack of memory */
MemberResult *member_results_new(size_t n);
/** Takes NULL, returns NULL. */
MemberResult *member_results_free(MemberResult *results, size_t n);

typedef struct TarStreamOptions { /* each as in BundleWriterOptions */
        bool tolerant, without_results;
        SourceKind source;
        const WriterMark *mark; /* borrowed while tar_stream_new() runs */
        int (*open_member)(size_t i, const PlanMember *m, void *userdata);
        void (*before_read)(size_t n, void *userdata);
        void *userdata;
} TarStreamOptions;

typedef struct TarStream TarStream;

/** @param plan  borrowed, must outlive the stream
 * @param offset  in the stream, where to start
 * @return 0, -ENOMEM */
int tar_stream_new(TarStream **ret, const Plan *plan, const TarStreamOptions *options,
                   uint64_t offset);
TarStream *tar_stream_free(TarStream *s);
DEFINE_CLEANUP(TarStream, tar_stream_free);

/** Reads the next n bytes. @param ret_zero  whether they are all zeros
 * @return 0; TAR_STREAM_E_CHANGED: a member is not what the plan says, as bundle_writer_next();
 *   -errno */
enum { TAR_STREAM_E_CHANGED = 2 };
int tar_stream_read(TarStream *s, void *data, size_t n, bool *ret_zero);

/** Saves how the member stands whose data continues behind what was read; when there is none, *ret
 * stays. @param ret  its old content is freed @return 0, -ENOMEM */
int tar_stream_save_mark(const TarStream *s, WriterMark *ret);

/** @return what is known of a member, as bundle_writer_member() */
const MemberResult *tar_stream_result(const TarStream *s, size_t i);
/** Replaces all results by those of an earlier run. @param results  taken */
void tar_stream_restore_results(TarStream *s, MemberResult *results);

/** @return the member that ended the stream; plan_n_members() when none did */
size_t tar_stream_failed_member(const TarStream *s);
/** @return bytes read from members so far */
uint64_t tar_stream_bytes_read(const TarStream *s);

/** @return how far into the member's content the first `stored` bytes of its data in the tar stream
 *   reach, holes before them included */
uint64_t tar_stream_content_at(const PlanMember *m, uint64_t stored);

/** @return whether data of a member lies on both sides of the beginning of this frame */
bool writer_mark_is_needed(const Plan *plan, uint64_t first_frame);
