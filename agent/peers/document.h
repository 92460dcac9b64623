/* Fields of the documents of a failure (docs/BUNDLE.md). For record.c, incidents_name.c and
 * incident.c only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/peers/claim.h"
#include "lib/base/strbuf.h"

/** @return the time, bounded to what a document can hold: the years 1970 to 9999 */
uint64_t document_bounded_time(int64_t usec);
/** @param format  of strptime(3). The caller verifies the result by formatting it again
 * @return whether it could be read */
bool document_parse_seconds(const char *s, const char *format, int64_t *ret_usec);
/** Reads what document_add_time() writes. */
bool document_parse_time(const char *s, int64_t *ret_usec);
/** @return whether it can be an instance id: a plain name of letters, digits, `.`, `_` and `-` */
bool document_instance_id_is_valid(const char *s);
/** Rounds up; 0 for a negative duration. */
uint64_t document_usec_to_msec(int64_t usec);

/** null for INT64_MIN */
void document_add_time(StrBuf *b, const char *key, int64_t usec);
/** null for "" */
void document_add_text(StrBuf *b, const char *key, const char *text);
/** null for a negative number */
void document_add_number(StrBuf *b, const char *key, int64_t number);
/** Adds `error_code`. null without an error, or without a claim (NULL) */
void document_add_error(StrBuf *b, const Claim *c);
/** Ends the object that is the document. @return the caller's; NULL: no memory */
char *document_detach(StrBuf *b, size_t *ret_n);
