/* One record of the kernel log. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/strbuf.h"

#define KMSG_RECORD_BYTES_MAX 16384 /* of /dev/kmsg; the kernel's are at most 8 KiB */

typedef struct KmsgRecord {
        unsigned priority, facility; /* syslog's; facility 0: the kernel, else a program has written
                                        to /dev/kmsg */
        bool is_numbered;            /* seq is known: the record comes from /dev/kmsg */
        bool is_continued;           /* it may be a later line of the record before it, with any
                                        content */
        uint64_t seq;
        uint64_t usec; /* since boot, CLOCK_MONOTONIC as printk keeps it; 0: unknown (syslog(2) with
                          printk.time=0) */
        StrBuf text;   /* any bytes: `\xNN` is undone */
        StrBuf context; /* continuation lines (SUBSYSTEM=…, DEVICE=…), `\n` between them */
} KmsgRecord;

/** Parses a record of /dev/kmsg. @return 0, -EBADMSG, -ENOMEM */
int kmsg_record_parse(const char *data, size_t n, KmsgRecord *ret);
void kmsg_record_done(KmsgRecord *r);

/** @return the size of the first record in data, with its continuation lines; n if that record may
 * continue behind data */
size_t kmsg_record_size(const char *data, size_t n);

/** Parses a line of syslog(2): `<6>[   12.345678] text`, or with printk.time=0 `<6>text`. The
 * caller checks ret->text by strbuf_error(). @return whether it is one */
bool kmsg_record_parse_syslog(const char *line, size_t n, KmsgRecord *ret);

/** Tells whether a line of syslog(2) may continue the record of the line before it. The kernel
 * gives each line of a record the record's priority and time, so that a line within a user's text
 * looks like a record; without times, any line may be one. */
bool kmsg_record_may_continue(const KmsgRecord *r, const KmsgRecord *before);
