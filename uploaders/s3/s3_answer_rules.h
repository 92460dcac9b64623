/* The tables behind s3_answer.c: what a code, a status and an HTTP error mean, and the remedy. */
#pragma once

#include "uploaders/s3/s3_answer.h"

typedef struct S3Rule {
        const char *code; /* a `*` stands for any text */
        S3Verdict verdict;
        /* What a person can do; s3_answer.c fills in its `{name}`s. NULL = made there */
        const char *remedy;
} S3Rule;

typedef struct S3OperationRule {
        const char *name, *permission;
        bool is_bucket;  /* asks for the bucket, not for a key */
        bool is_head;    /* the answer has no body */
        bool is_write;   /* carries the destination's settings: sse, storage_class, tags */
        bool has_upload; /* names an upload */
} S3OperationRule;

const S3OperationRule *s3_rule_of_operation(S3Operation o);
const S3Rule *s3_rule_of_code(const char *code);  /* NULL = not known */
bool s3_rule_is_for_all(const S3Rule *rule);      /* see S3Answer */
const S3Rule *s3_rule_of_status(unsigned status); /* never NULL; any but 2xx */
const S3Rule *s3_rule_of_http_error(int error);   /* never NULL; HTTP_E_* */
