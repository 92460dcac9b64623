/* What the files of an upload share: s3.c steps, s3_upload_judge.c judges what is there, s3_upload_state.c keeps the state and its end,
 * s3_upload_asks.c asks and notes what is heard, s3_upload_parts.c keeps the parts. */
#pragma once

#include "lib/base/list.h"
#include "uploaders/s3/s3.h"

typedef enum UploadState {
        UPLOAD_NEW,
        UPLOAD_FIRST,    /* waits for part 1, which tells whether there will be others */
        UPLOAD_PUT,      /* all of it in one request */
        UPLOAD_CREATE,   /* a multipart upload */
        UPLOAD_LIST,     /* which parts of an earlier run are there? */
        UPLOAD_PARTS,    /* on their way, in parallel */
        UPLOAD_LOOK,     /* HEAD before what makes the object visible */
        UPLOAD_COMPLETE, /* a multipart upload */
        UPLOAD_JUDGE,    /* HEAD after 412 or 409: who is in the way? */
        UPLOAD_GUARD,    /* HEAD of the guard, before what is there is replaced */
        UPLOAD_TRACE, /* HEAD when the upload is gone, or Complete met a conflict: has it been completed? */
        UPLOAD_PROVE, /* HEAD of what was written */
        UPLOAD_ABORT, /* the outcome is known, the upload is in the way */
        UPLOAD_ENDED,
        N_UPLOAD_STATES
} UploadState;

typedef enum UploadThere {                /* under our key */
                           THERE_UNKNOWN, /* no answer that says it */
                           THERE_NOTHING,
                           THERE_OURS, /* same plan, same size, of a single PUT same bytes; guard: same plan */
                           THERE_OTHER,
                           THERE_FORBIDDEN /* to look */
} UploadThere;

typedef struct UploadHeard { /* of the last answer; for a part: of the first that failed */
        S3Verdict verdict;
        char *sentence;
        bool is_malformed;       /* it takes our XML for none */
        char etag[S3_ETAG_SIZE]; /* of PUT and Complete; "" = not told */
        UploadThere there;       /* of HEAD */
        char there_etag[S3_ETAG_SIZE];
        uint64_t there_bytes;
} UploadHeard;

typedef struct UploadPart { /* by number */
        uint64_t bytes;
        char *etag; /* NULL = not known to be there */
        uint8_t sha256[SHA256_SIZE];
        bool was_listed;
} UploadPart;

typedef struct UploadJob { /* a part that was given and has not arrived */
        ListLink link;
        S3Upload *upload;
        S3Part *part;
        S3Call *call; /* NULL = not sent yet */
} UploadJob;

typedef struct UploadParts {
        UploadPart *items;
        unsigned n; /* numbers from 1 that were given or are in the ledger */
        size_t n_allocated;
        unsigned n_there;
        unsigned cursor; /* all below are there or were asked for in this run */
        unsigned wanted; /* asked for, not given yet; 0 */
        unsigned last;   /* number; 0 = not known */
        uint64_t there_bytes;
        ListLink jobs;
        unsigned n_jobs;
} UploadParts;

struct S3Upload {
        S3Client *client;
        S3UploadOrder
                order; /* key, content_type, plan_hex are ours; parts and upload_id are not kept here */
        UploadState state;
        sd_event_source *kick; /* one step in the next turn of the loop */
        char *upload_id;       /* NULL = none yet */
        bool upload_is_gone;   /* completed, aborted, or the server does not know it */
        bool may_write_over; /* what is there was looked at and is to be replaced: the write is without condition */
        bool part_failed;
        bool pausing;         /* no further part is asked for */
        bool has_strays;      /* Create was carried out more often than was heard, perhaps */
        S3Verdict written;    /* of the last try to write the object */
        bool omits_checksums; /* in Complete: Swift takes a document with them for malformed */
        unsigned n_rounds;    /* of looking who is in the way */
        unsigned list_marker;
        int failure; /* -errno of a callback, of memory, or of a part that nobody asked for */

        S3Call *call; /* all but parts */
        char *body;   /* of Complete */
        UploadHeard heard;
        UploadParts parts;

        int outcome; /* once decided */
        char *error;
        S3Proof proof;
        char etag[S3_ETAG_SIZE];
};

/* s3.c */
void s3_upload_step(S3Upload *u);

/* s3_upload_state.c. Any of these may end the upload: nothing is done to it afterwards in the same step. */
/** Moves to a state and begins what it waits for. */
void s3_upload_go(S3Upload *u, UploadState state);
/** @return whether the server itself is to see that nothing is written over */
bool s3_upload_is_conditional(const S3Upload *u);
/** The one way out. */
void s3_upload_finish(S3Upload *u, int outcome);
/** Ends, after an upload that nobody will go on with was aborted. */
void s3_upload_end(S3Upload *u, int outcome);
/** Ends with a sentence of our own, about the object. */
void _printf_(3, 4) s3_upload_end_saying(S3Upload *u, int outcome, const char *fmt, ...);
/** Ends with what the server said. */
void s3_upload_end_heard(S3Upload *u, int outcome);

/* s3_upload_judge.c: after a HEAD was answered */
void s3_upload_after_look(S3Upload *u);
void s3_upload_after_guard(S3Upload *u);
void s3_upload_after_proof(S3Upload *u);
/** Somebody was quicker, or an answer of ours was lost: HEAD tells. */
void s3_upload_look_who_is_there(S3Upload *u);

/* s3_upload_asks.c: begins a request; when it is answered, u->heard is written and s3_upload_step() called. 0, -ENOMEM */
int s3_upload_ask_put(S3Upload *u, bool is_conditional);
int s3_upload_ask_create(S3Upload *u);
int s3_upload_ask_list(S3Upload *u);
int s3_upload_ask_head(S3Upload *u);
int s3_upload_ask_guard(S3Upload *u);
int s3_upload_ask_complete(S3Upload *u, bool is_conditional);
int s3_upload_ask_abort(S3Upload *u);
/** Sends a part. Its answer is noted in the table of parts, and step is called. */
int s3_upload_ask_part(UploadJob *job);
void s3_upload_heard_done(UploadHeard *h);

/* s3_upload_parts.c */
int upload_parts_init(UploadParts *p, const S3UploadOrder *order);
void upload_parts_done(UploadParts *p);
/** What is to be asked for next. @return its number, 0 = nothing now or any more */
unsigned upload_parts_next(const UploadParts *p, unsigned max_in_flight);
/** @return 0, -ENOMEM, -EINVAL: it was not asked for. The part is kept in a job, or released. */
int upload_parts_give(UploadParts *p, S3Upload *u, S3Part *part);
/** The job's part is there: the job is gone. @return 0, -ENOMEM */
int upload_parts_arrived(UploadParts *p, UploadJob *job, const char *etag);
void upload_parts_drop_jobs(UploadParts *p);
/** Compares a page of ListParts with the ledger. @return 0, UPLOAD_E_STALE: a part that was there is another one now */
int upload_parts_compare(UploadParts *p, const S3PartList *page);
/** After the last page. @return the number of a part that should be there and was not listed, 0 = none */
unsigned upload_parts_unlisted(const UploadParts *p);
/** The last one is known, and all have an ETag. */
bool upload_parts_are_all_there(const UploadParts *p);
/** The object's, as far as parts are known. */
uint64_t upload_parts_bytes(const UploadParts *p);
/** The body of Complete. @return the caller's, NULL for lack of memory */
char *upload_parts_complete_body(const UploadParts *p, bool with_checksums);
