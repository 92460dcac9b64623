/* Between s3_xml.c, which has the walk over a document and the small ones, and s3_xml_lists.c, which has the lists. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* What a document's reader wants to hear. Paths are below the root: `Part/ETag`. Each returns 0 or a negative errno, which ends
 * the walk; any may be NULL. */
typedef struct XmlReader {
        const char *root; /* NULL = any */
        int (*on_open)(void *document, const char *path);
        int (*on_leaf)(void *document, const char *path, const char *text);
        int (*on_close)(void *document, const char *path);
        void *document;
} XmlReader;

/** @return 0; -EINVAL for no XML, another root, a DTD, too deep, too large; -ENOMEM; what the reader returned */
int xml_walk(const char *text, size_t n, const XmlReader *reader);

/* Leaves into fields; 0, -EINVAL, -ENOMEM. */
int xml_put_text(
        char **to,
        const char
                *text); /* frees what was there: of two elements of one name the last one counts */
int xml_put_time(uint64_t *to, const char *text);
