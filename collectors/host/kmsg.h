/* One record of /dev/kmsg. Pure. @see Documentation/ABI/testing/dev-kmsg; NEURON_HW_ERR: the Neuron
 * documentation */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/strbuf.h"

#define KMSG_RECORD_BYTES_MAX 16384 /* the kernel's is 8 KiB at most */
#define KMSG_FIELDS_MAX 32
#define KMSG_KEY_SIZE 48
#define KMSG_VALUE_SIZE 256

typedef struct KmsgRecord {
        unsigned priority, facility; /* syslog's; facility 0: the kernel itself, else a program
                                        wrote to /dev/kmsg */
        uint64_t seq, usec;          /* usec: since boot, CLOCK_MONOTONIC as printk keeps it */
        StrBuf text;                 /* with `\xNN` undone; any bytes */
        StrBuf context; /* continuation lines (SUBSYSTEM=…, DEVICE=…), `\n` between them */
} KmsgRecord;

void kmsg_record_done(KmsgRecord *r);

/** Parses "prio,seq,usec,flags[,…];text\n KEY=value\n…". @param n  one record
 * @return 0, -EBADMSG when it is none, -ENOMEM; r is set only on 0 */
int kmsg_parse(const char *data, size_t n, KmsgRecord *ret);

/** @return how many bytes of data are its first record with its continuation lines: up to the line
 * that begins the next one; n when there is none */
size_t kmsg_record_size(const char *data, size_t n);

typedef struct KmsgField {
        char key[KMSG_KEY_SIZE], value[KMSG_VALUE_SIZE]; /* printable ASCII, cut to fit */
} KmsgField;

/** What libnrt reports of the hardware: `NEURON_HW_ERR=<value> key=value …`. */
typedef struct KmsgHwError {
        char value[KMSG_VALUE_SIZE];
        KmsgField fields[KMSG_FIELDS_MAX]; /* in the line's order, keys as spelled, unknown ones too
                                            */
        size_t n_fields;
        bool is_cut; /* there were more */
} KmsgHwError;

/** @return whether the text holds one */
bool kmsg_find_hw_error(const char *text, size_t n, KmsgHwError *ret);

/** @return the value of a field, "" when it is not there. A `-` of the name stands for `_` too, and
 * case does not matter */
const char *kmsg_hw_field(const KmsgHwError *e, const char *key);

/** @return whether it is a line of the Neuron driver or about its devices: the word neuron
 * anywhere, or `nd0: …`, `[ND 0]` */
bool kmsg_is_neuron(const char *text, size_t n);
