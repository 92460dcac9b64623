/* The fields of a manifest that is read, each by itself: with manifest_read.c. Nobody else includes this. All checks return 0; -EINVAL after
 * they have said into `fault` what is wrong; -ENOMEM. */
#pragma once

#include <jansson.h>

#include "lib/base/cleanup.h"
#include "lib/base/strbuf.h"

#define MANIFEST_TEXT_MAX 4096 /* bytes */

typedef enum ManifestObject {
        MANIFEST_PART,
        MANIFEST_MEMBER,
        MANIFEST_JOB,     /* of an incident */
        MANIFEST_FAILURE, /* its fields, and a job's, are checked if they are there */
        N_MANIFEST_OBJECTS
} ManifestObject;

/** Adds a fault, cut at 511 bytes and spelled so that it can be shown. @return -EINVAL */
int manifest_fault_add(StrBuf *fault, const char *fmt, ...) _printf_(2, 3);

/** The document's own fields and those of its sections. */
int manifest_check_document(const json_t *document, StrBuf *fault);
/** @param prefix  what stands before a key in a fault, e.g. `members[3].` */
int manifest_check_object(const json_t *object, ManifestObject which, const char *prefix,
                          StrBuf *fault);
/** A text that is a SHA-256 in hex. @param where  its name in a fault */
int manifest_check_digest(const json_t *v, const char *where, StrBuf *fault);

/** @return what a person calls it, with its article; static */
const char *manifest_type_name(json_type t);
