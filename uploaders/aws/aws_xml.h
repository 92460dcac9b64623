/* XML answers of AWS, read by expat: the walk over a document, and what S3 and STS have in common.
 * Everything from outside is bounded: depth, counts, lengths, no entities, no DTD. Pure. The one
 * wrapper of expat. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* What a document's reader wants to hear. Paths are below the root: `Part/ETag`. Each returns 0 or
 * a negative errno, which ends the walk; any may be NULL. */
typedef struct XmlReader {
        const char *root; /* NULL = any */
        int (*on_open)(void *document, const char *path);
        int (*on_leaf)(void *document, const char *path, const char *text);
        void *document;
} XmlReader;

/** @return 0; -EINVAL for no XML, another root, a DTD, too deep, too large; -ENOMEM; what the
 *   reader returned */
int xml_walk(const char *text, size_t n, const XmlReader *reader);

/* Leaves into fields; 0, -EINVAL, -ENOMEM. */
int xml_put_text(char **to, const char *text); /* frees what was there: of two elements of one name
                                                  the last one counts */
int xml_put_time(uint64_t *to, const char *text);

typedef struct AwsError {  /* of <Error> */
        char code[64];     /* "" when there was none */
        char message[512]; /* radosgw leaves it empty; control characters replaced */
        /* of redirects and of AuthorizationHeaderMalformed */
        char region[64], bucket[64], endpoint[256];
        char server_time[40]; /* of RequestTimeTooSkewed */
        char request_id[128];
} AwsError;

/** @return 0 when the document's root is <Error> (or STS' <ErrorResponse><Error>) and *ret;
 *   -EINVAL when it is something else or no XML; -ENOMEM, as all here */
int aws_xml_error(const char *text, size_t n, AwsError *ret);
