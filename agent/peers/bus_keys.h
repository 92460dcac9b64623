/* The key file of the bus: up to 4 lines `id:64 hex`, blank lines and comments (#). The first key
 * signs, all verify. It is read again when it has changed. */
#pragma once

#include <sys/stat.h>

#include "agent/peers/wire.h"
#include "lib/base/diag.h"

#define BUS_KEYS_MAX 4

typedef struct BusKeys {
        WireKey items[BUS_KEYS_MAX]; /* [0] signs */
        size_t n;
} BusKeys;

/** @param file  for the messages  @return 0; -EINVAL, with faults: *ret is untouched */
int bus_keys_parse(const char *text, const char *file, BusKeys *ret, Diags *faults);

typedef struct BusKeyFile {
        const char *path; /* borrowed; "" = none */
        uid_t uid;    /* a further permitted owner, beside root and this process's user; 0: none */
        BusKeys keys; /* from the last reading without a fault; n = 0: none */
        struct stat seen;
        bool was_read;
} BusKeyFile;

/** Reads it if it has changed since the last call. Symbolic links are followed. Faults are reported
 * once, and then the keys stay as they were.
 * @return 1: other keys; 0: the same; -errno, with faults */
int bus_key_file_check(BusKeyFile *f, Diags *faults);
/** For --check: whether the file can be used. @param path  "" = none, which is no fault  @return 0;
 * -EACCES, without a fault: this user cannot read it, the agent's may; -errno, with faults */
int bus_key_file_verify(const char *path, Diags *faults);
void bus_key_file_done(BusKeyFile *f); /* wipes the secrets */
